"""Corpora to token stores: which files there are, which store they make, and making it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.duplicates import compare_ids
from jobs.executor import Executor
from jobs.progress import Reporter
from jobs.stamped import check_stamps, is_as_expected, read_stamped, without_stamps
from jobs.units import Unit, run_units
from jobs.workplace import Workplace
from pipeline.config import RunConfig, fingerprint
from pipeline.files.sizes import Sizes
from pipeline.files.url_path import as_path, is_inside, is_remote
from pipeline.publish import WORK
from pipeline.reading.inputs import look_at, word_of
from pipeline.reading.listing import InputFile, SourceError, list_inputs
from pipeline.reading.sample import sample_texts
from pipeline.reading.splits import Split, plan_splits
from pipeline.settings.documents import RejectSettings, SourceConfig
from pipeline.shard.schema import part_name
from pipeline.shard.token_store import TokenStore
from pipeline.state.ledger import Ledger, Receipt, remove_ledger
from pipeline.state.lock import Hold, exclusive
from pipeline.stores.finish import finish_store, part_is_there, rejects_path, remove_leftovers
from pipeline.stores.key import store_key
from pipeline.stores.rejects import check_share, check_stop_on, first_row, stop_on_duplicates
from pipeline.stores.tokenize import PARTS, StorePartReceipt, tokenize_split
from pipeline.tokenizer.choose import choose_engine
from pipeline.tokenizer.identity import TokenizerIdentity

_LEDGER = "ledger.jsonl"
_SAMPLE = 1 << 20
_SAMPLE_IN_ALL = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One source's files as they are now, and the store that they make."""

    source: SourceConfig
    inputs: tuple[InputFile, ...]
    digests: tuple[str, ...]
    """XXH3-128 of each file."""
    stamps: tuple[str | None, ...]
    """Of each file, taken before it was digested."""
    key: str
    directory: Path
    """The token store's; it may not be there yet."""
    scratch: Path
    """Of making the store: local; the same where the store is."""
    digest_cache: Path


def find_corpora(
    config: RunConfig, identity: TokenizerIdentity, place: Workplace
) -> tuple[Corpus, ...]:
    """List and digest every source's files; nothing is tokenized.

    Raises:
        SourceError: files that are missing or undecidable.
    """
    root, own = place.root, config.shards.store
    store_root = root / "store" if own is None else as_path(own).resolve()
    corpora = []
    for source in config.sources:
        inputs = list_inputs(source)
        for target in (root, store_root):
            if any(is_inside(as_path(file.path), target) for file in inputs):
                raise SourceError(
                    f"source {source.name!r}: its paths hold {target}, where the result goes; "
                    "choose another --out or shards.store"
                )
        cache = place.state / f"inputs-{source.name}.json"
        seen = look_at(inputs, cache=cache)
        key = store_key(source, inputs, seen.digests, identity, config.shards.split_bytes)
        name = f"{source.name}-{key[:16]}"
        corpora.append(
            Corpus(
                source=source,
                inputs=inputs,
                digests=seen.digests,
                stamps=seen.stamps,
                key=key,
                directory=store_root / name,
                scratch=(
                    place.scratch_of_store(name) if is_remote(store_root) else store_root / name
                ),
                digest_cache=cache,
            )
        )
    return tuple(corpora)


def with_engine(
    corpora: Sequence[Corpus], config: RunConfig, identity: TokenizerIdentity, reporter: Reporter
) -> TokenizerIdentity:
    """The identity with the engine that this job encodes with, where a store is to be made.

    Its ids are proven on texts made to differ and on a sample of every corpus without a store.

    Raises:
        SourceError: a file cannot be read.
        TokenizerError: the engine that was asked for cannot be used.
    """
    missing = [
        corpus
        for corpus in corpora
        if not corpus.source.brings_tokens and not (corpus.directory / "source.json").exists()
    ]
    if not missing:
        return identity
    share = min(_SAMPLE, _SAMPLE_IN_ALL // len(missing))
    texts = [
        text
        for corpus in missing
        for text in sample_texts(
            corpus.source,
            corpus.inputs,
            split_bytes=config.shards.split_bytes,
            max_characters=share,
        )
    ]
    choice = choose_engine(identity, config.tokenizer.engine, texts)
    reporter.line(str(choice))
    return choice.identity


def tokenize(
    corpora: Sequence[Corpus],
    identity: TokenizerIdentity,
    config: RunConfig,
    executor: Executor,
    reporter: Reporter,
) -> list[TokenStore]:
    """Every corpus's token store; errors as `tokenize_corpus`."""
    return [
        tokenize_corpus(
            corpus,
            identity,
            executor,
            reporter,
            split_bytes=config.shards.split_bytes,
            rejects=config.rejects,
        )
        for corpus in corpora
    ]


def tokenize_corpus(
    corpus: Corpus,
    identity: TokenizerIdentity,
    executor: Executor,
    reporter: Reporter,
    *,
    split_bytes: int,
    rejects: RejectSettings,
) -> TokenStore:
    """The token store of a corpus, made where it is missing; its tables are checked.

    Raises:
        Busy: another job makes the same store.
        RejectsError: what was rejected stops the job; finished parts, or the store, stay.
        SourceError: a file cannot be read, or changed while it was read.
        StoreError: the store that is there is damaged.
    """
    directory, name = corpus.directory, corpus.source.name
    with exclusive(directory.parent / WORK / directory.name) as hold:
        if (directory / "source.json").exists():
            remove_leftovers(directory)
            remove_ledger(directory / _LEDGER)
            reporter.line(f"tokenize {name}: there already")
        else:
            splits = plan_splits(corpus.source, corpus.inputs, split_bytes=split_bytes)
            _make_store(corpus, splits, identity, executor, reporter, rejects, hold)
    store = TokenStore(directory)
    store.check_tables()  # planning trusts lengths.u32
    for note, count in store.identity.get("notes", {}).items():
        table = directory / "notes.parquet"
        if note == "duplicate_id" and corpus.source.duplicate_ids == "stop":
            row = first_row(table, [note])
            stop_on_duplicates(count, source=name, path=row["path"], record=row["record"])
        reporter.line(f"tokenize {name}: {count:,} {note}; see {table}")
    rejected = store.identity["rejected"]
    if rejected:
        table = directory / "rejects.parquet"
        words = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
        reporter.line(f"tokenize {name}: rejected {words}; see {table}")
        check_stop_on(rejected, rejects.stop_on, source=name, table=table)
        check_share(rejected, store.documents, rejects.max_share, source=name, table=table)
    return store


def _make_store(
    corpus: Corpus,
    splits: Sequence[Split],
    identity: TokenizerIdentity,
    executor: Executor,
    reporter: Reporter,
    rejects: RejectSettings,
    hold: Hold,
) -> None:
    directory, name = corpus.directory, corpus.source.name
    units = [
        Unit(
            name=part_name(split.number),
            arguments=(split, corpus.source, identity, directory, corpus.scratch),
            amount=split.num_bytes,
        )
        for split in splits
    ]

    expected = [word_of([corpus.stamps[file] for file in split.files]) for split in splits]

    def check(index: int, receipt: Receipt) -> None:
        check_stamps(receipt, expected[index], name, splits[index])
        start = splits[index].start
        check_stop_on(
            receipt["rejected"],
            rejects.stop_on,
            source=name,
            table=rejects_path(directory, splits[index].number),
            after=f" after {start:,} {splits[index].unit}" if start else "",
        )

    total = sum(unit.amount for unit in units)
    with (
        Ledger(directory / _LEDGER, hold) as ledger,
        reporter.stage(f"tokenize {name}", total=total, unit="bytes") as stage,
    ):
        if corpus.source.id_column is not None:
            compare_ids(
                corpus.source,
                corpus.key,
                corpus.scratch,
                splits,
                expected,
                executor,
                ledger,
                reporter,
            )
        sizes = Sizes(directory / PARTS)
        receipts = run_units(
            executor,
            ledger,
            _parts_key(corpus, identity),
            _tokenize_split,
            units,
            stage,
            intact=lambda index, receipt: (
                is_as_expected(receipt, expected[index])
                and part_is_there(
                    directory, StorePartReceipt.from_dict(without_stamps(receipt)), sizes
                )
            ),
            check=check,
        )
        if look_at(corpus.inputs, cache=corpus.digest_cache).digests != corpus.digests:
            ledger.remove()  # its parts may hold either content
            raise SourceError(
                f"source {name!r}: a file changed while it was read; run again when its files are "
                "at rest"
            )
        finish_store(
            directory,
            name=name,
            key=corpus.key,
            identity=identity,
            inputs=corpus.inputs,
            digests=corpus.digests,
            receipts=[StorePartReceipt.from_dict(without_stamps(receipt)) for receipt in receipts],
            splits=splits,
            keep_columns=corpus.source.keep_columns,
            given_ends=corpus.source.given_ends,
        )
        ledger.remove()


def _parts_key(corpus: Corpus, identity: TokenizerIdentity) -> str:
    """What an unfinished store's parts depend on: no store has parts of two engines."""
    engine = {"engine": identity.engine, "version": identity.engine_version}
    return fingerprint({"store": corpus.key, **engine})


def _tokenize_split(
    split: Split, source: SourceConfig, identity: TokenizerIdentity, directory: Path, scratch: Path
) -> Receipt:
    return read_stamped(
        split, lambda: tokenize_split(split, source, identity, directory, scratch).as_dict()
    )
