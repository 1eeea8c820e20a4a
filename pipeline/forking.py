"""A chain up to a step: its segments, its tables, its parts, and what its manifest says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.plan import Pieces
from pipeline.balance import cp_parts, describe_cp, measure_plan
from pipeline.built import config_of
from pipeline.chain_balance import combined
from pipeline.config import ConfigError, fingerprint
from pipeline.extending import balances_of, chain_cp_jobs, source_totals
from pipeline.files.contents import parquet_source
from pipeline.files.links import link_or_copy
from pipeline.files.storage import is_url
from pipeline.planning.chain import chain_key, plan_keys, with_sources
from pipeline.planning.cut import cut_segment
from pipeline.planning.mixing import selection_totals
from pipeline.planning.plan_parts import read_plan_part, tail_table
from pipeline.planning.pool import pool_before
from pipeline.publish import read_receipts
from pipeline.settings.cluster import schedule_of
from pipeline.shard import schema
from pipeline.shard.digests import sha256_file
from pipeline.shard.manifest import Manifest
from pipeline.shard.segment import Segment
from pipeline.shard.tables import FormatError, read_table
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import FileReceipt, write_part, write_table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fork:
    """Steps 0 .. `num_steps` - 1 of a chain, as a chain of its own.

    Attributes:
        segments: those that have them; the last may be cut.
        plan_keys: of each of them.
        num_sources: that they have; the chain's first ones.
        steps, tail: the two tables.
    """

    num_steps: int
    segments: tuple[Segment, ...]
    plan_keys: tuple[str, ...]
    num_sources: int
    steps: pa.Table
    tail: pa.Table

    @property
    def num_parts(self) -> int:
        return self.segments[-1].stop_part


def fork_at(manifest: Manifest, num_steps: int, stores: list[TokenStore], scratch: Path) -> Fork:
    """The first steps of a chain.

    Args:
        manifest: of the chain; the digests of its plan were checked.
        num_steps: how many, at least 1.
        stores: of its sources.
        scratch: a directory for temporary files.

    Raises:
        ConfigError: the chain has not so many steps.
        FormatError: its plan is not what its streams give.
    """
    if not 1 <= num_steps <= manifest.num_steps:
        raise ConfigError(
            f"fork: step {num_steps} is not in 1..{manifest.num_steps}; {manifest.directory} has "
            f"the steps 0..{manifest.num_steps - 1}, and the fork holds those before the one given"
        )
    last = sum(segment.stop_step < num_steps for segment in manifest.segments)
    segments, keys = list(manifest.segments[: last + 1]), plan_keys(manifest)[: last + 1]
    steps = read_table(manifest.directory / "steps.parquet", schema.STEPS).slice(0, num_steps)
    tail = read_table(manifest.directory / "tail.parquet", schema.TAIL)
    of_segment = tail.column("segment").to_numpy()
    if num_steps < segments[-1].stop_step:
        own = steps.slice(segments[-1].first_step)
        segment, pieces = cut_segment(
            manifest,
            last,
            num_steps,
            stores,
            pool_before(manifest, last, stores, scratch),
            placed_tokens=int(np.sum(own.column("tokens").to_numpy())),
        )
        keys[-1] = fingerprint({"plan": keys[-1], "steps": segment.steps})
        segments[-1] = replace(segment, plan_key=keys[-1] if last else None)
        kept = tail.filter(pa.array(of_segment < last))
        tail = pa.concat_tables([kept, tail_table(pieces, last)]).combine_chunks()
    else:
        tail = tail.filter(pa.array(of_segment <= last))
    num_sources = 1 + max(entry.source for segment in segments for entry in segment.sources)
    return Fork(
        num_steps=num_steps,
        segments=tuple(segments),
        plan_keys=tuple(keys),
        num_sources=num_sources,
        steps=with_sources(steps, num_sources),
        tail=tail,
    )


def write_fork(manifest: Manifest, fork: Fork, out: Path) -> list[FileReceipt]:
    """Write the fork's parts and tables: whole parts as links, or copies where links cannot be.

    Returns:
        The receipts of all files.

    Raises:
        FormatError: the part that is cut is damaged.
    """
    written = []
    for receipt in read_receipts(manifest):
        folder, _, name = receipt.path.rpartition("/")
        part = int(name.removesuffix(".parquet")) if folder else fork.num_parts
        if part >= fork.num_parts:
            continue
        stop = manifest.first_step_of(part + 1) if part + 1 < manifest.num_parts else None
        if part == fork.num_parts - 1 and fork.num_steps < (stop or manifest.num_steps):
            written.append(_cut_part(manifest, receipt, fork, out))
        else:
            link_or_copy(manifest.directory / receipt.path, out / receipt.path)
            written.append(receipt)
    return [
        *written,
        write_table(fork.steps, out, "steps.parquet"),
        write_table(fork.tail, out, "tail.parquet"),
    ]


def _cut_part(manifest: Manifest, receipt: FileReceipt, fork: Fork, out: Path) -> FileReceipt:
    """The rows of a part that are before the cut."""
    path = manifest.directory / receipt.path
    if sha256_file(path) != receipt.sha256:
        raise FormatError("is damaged; steelyard verify names the row group", path=path)
    with pq.ParquetFile(
        parquet_source(path)
    ) as file:  # a table of "cp=2/.." would have a column "cp"
        table = file.read()
    rows = int(np.count_nonzero(table.column("step").to_numpy() < fork.num_steps))
    is_shard = receipt.path.startswith("shards/")
    return write_part(
        table.slice(0, rows),
        out,
        receipt.path,
        rows_per_group=manifest.rows_per_group if is_shard else None,
    )


def link_stores(manifest: Manifest, fork: Fork, out: Path) -> None:
    """Token stores inside the set's directory, inside the fork's; others stay where they are."""
    for source in manifest.sources[: fork.num_sources]:
        if is_url(source.store) or Path(source.store).is_absolute():
            continue
        store = manifest.directory / source.store
        for path in sorted(store.rglob("*")):
            inside = path.relative_to(store)
            if path.is_file() and not inside.parts[0].startswith("."):
                link_or_copy(path, out / source.store / inside)


def describe_fork(
    document: Mapping[str, Any],
    manifest: Manifest,
    fork: Fork,
    stores: Sequence[TokenStore],
    out: Path,
) -> dict[str, Any]:
    """Every field of the fork's manifest but `digests`, its parts being there.

    Args:
        document: the chain's manifest.json.
        manifest: the same, read.
        fork: of it.
        stores: of the chain's sources.
        out: the fork's directory.
    """
    last = len(fork.segments) - 1
    balances = balances_of(document)[: last + 1]
    if fork.segments[-1].cut:
        schedule = schedule_of(config_of(manifest, last).parallel)
        balances[-1] = measure_plan(out, fork.segments[-1], schedule, manifest.micro_batch_order)
    several = {"segments": balances} if last else {}
    jobs = chain_cp_jobs(manifest, root=out, out=out, max_tokens=0)
    key, parts = chain_key(fork.plan_keys), range(fork.num_parts)
    sources = document["sources"][: fork.num_sources]
    return {
        **{name: value for name, value in document.items() if name != "digests"},
        "sources": sources,
        "segments": [segment.as_dict() for segment in fork.segments],
        "totals": source_totals(sources) | _totals(fork, stores, out),
        "balance": combined(balances) | several,
        "cp": {
            str(job.cp_size): describe_cp(job, cp_parts(out, parts, job.cp_size)) for job in jobs
        },
        "fingerprints": {
            **document["fingerprints"],
            "tokenize": document["fingerprints"]["tokenize"][: fork.num_sources],
            "plan": fork.plan_keys[0],
            "context_parallel": {str(job.cp_size): job.key(key) for job in jobs},
        },
    }


def _totals(fork: Fork, stores: Sequence[TokenStore], out: Path) -> dict[str, int]:
    """Totals over all pieces of the fork's streams."""
    tail_of = fork.tail.column("segment").to_numpy()
    names = [name for name in schema.TAIL.names if name != "segment"]
    columns = {name: fork.tail.column(name).to_numpy().astype(np.int64) for name in names}
    tail = Pieces(**columns, doc_tokens=columns["doc_stop"])
    counts = np.zeros(3, np.int64)
    for number, segment in enumerate(fork.segments):
        counts += _counts(tail.take(tail_of == number), segment, stores)
        for part in segment.part_numbers:
            path = out / "plan" / f"{schema.part_name(part)}.parquet"
            counts += _counts(read_plan_part(path).pieces, segment, stores)
    pieces, documents, cut = counts.tolist()
    placed = int(np.sum(fork.steps.column("tokens").to_numpy()))
    return {
        "stream_documents": documents,
        "stream_tokens": sum(segment.stream_tokens for segment in fork.segments),
        "stream_pieces": pieces,
        "cut_documents": cut,
        "steps": fork.num_steps,
        "placed_tokens": placed,
        "targets": int(np.sum(fork.steps.column("targets").to_numpy())),
        "tail_pieces": len(tail),
        "tail_tokens": int(tail.tokens.sum()),
        **selection_totals(fork.segments),
    }


def _counts(pieces: Pieces, segment: Segment, stores: Sequence[TokenStore]) -> tuple[int, int, int]:
    """Pieces, documents that begin among them, and of these the ones that are cut."""
    first = pieces.take(pieces.doc_start == 0)
    cut = 0
    for source in np.unique(first.source).tolist():
        mine = first.take(first.source == source)
        length = stores[source].lengths[mine.doc_id].astype(np.int64)
        taken = np.minimum(length, segment.most_taken(source))
        cut += int(np.count_nonzero(mine.doc_stop < taken))
    return len(pieces), len(first), cut
