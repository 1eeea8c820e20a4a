"""Tiny corpora, a tiny vocabulary and small token stores, for every test that needs one."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import shutil
import tempfile
from atexit import register
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.files.storage import digest_file
from pipeline.reading.listing import list_inputs
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig, TokenizerConfig
from pipeline.stores.duplicates import find_duplicates, write_ids
from pipeline.stores.finish import finish_store
from pipeline.stores.key import store_key
from pipeline.stores.tokenize import tokenize_split
from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.tokenizer.resolve import resolve_tokenizer

BOS, EOS = "<|begin|>", "<|endoftext|>"
BOS_ID, EOS_ID = 0, 1
ENDS = [".", "!", " \u00e9\u6f22\U0001f40b"]
SENTENCE = "the steelyard weighs a heavy load with a small sliding weight so long and short balance"
WORDS = SENTENCE.split()


@cache
def tiny_tokenizer() -> Path:
    """A byte-level BPE tokenizer.json of about 320 ids: any text goes in and out unchanged.

    `BOS` is id 0, `EOS` id 1. Trained once a process.
    """
    root = Path(tempfile.mkdtemp(prefix="tiny-tokenizer-"))
    register(shutil.rmtree, root, ignore_errors=True)
    directory = root / "tiny"
    directory.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        show_progress=False,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory / "tokenizer.json"


def tokenizer_config(*, add_bos: bool = False, add_eos: bool = True) -> TokenizerConfig:
    return TokenizerConfig(
        path=str(tiny_tokenizer()), add_bos=add_bos, add_eos=add_eos, bos_token=BOS, eos_token=EOS
    )


@cache
def tiny_identity(*, add_bos: bool = False, add_eos: bool = True) -> TokenizerIdentity:
    return resolve_tokenizer(tokenizer_config(add_bos=add_bos, add_eos=add_eos))


def some_texts(count: int, *, seed: int = 0, longest: int = 200) -> list[str]:
    """Texts of 1 to about `longest` words, most of them short, some not ASCII; each differs."""
    draw = random.Random(seed)
    texts = []
    for number in range(count):
        words = draw.choices(WORDS, k=1 + int(longest * draw.random() ** 4))
        texts.append(f"{number} {' '.join(words)}{draw.choice(ENDS)}")
    return texts


def texts_of_lengths(lengths: Sequence[int], *, seed: int = 0) -> list[str]:
    """Texts that make documents of exactly these many tokens, the EOS included; at least 2 each."""
    draw = random.Random(seed)
    return ["".join(draw.choices("0123456789", k=length - 1)) for length in lengths]


def write_jsonl(path: Path, texts: Iterable[str], *, text_column: str = "text") -> Path:
    """JSON Lines; compressed if the name ends so."""
    lines = [json.dumps({"id": i, text_column: text}) for i, text in enumerate(texts)]
    return write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """A file with this content; compressed if the name ends in .gz, .zst, .bz2 or .xz."""
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".zst":
        content = zstandard.ZstdCompressor().compress(content)
    elif path.suffix == ".bz2":
        content = bz2.compress(content, 1)
    elif path.suffix == ".xz":
        content = lzma.compress(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_parquet(
    path: Path,
    texts: Sequence[str | None],
    *,
    text_column: str = "text",
    rows_per_group: int = 16,
    type_: pa.DataType | None = None,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(_table(texts, text_column, type_), path, row_group_size=rows_per_group)
    return path


def write_arrow(
    path: Path,
    texts: Sequence[str | None],
    *,
    text_column: str = "text",
    rows_per_batch: int = 16,
    kind: str = "stream",
    type_: pa.DataType | None = None,
) -> Path:
    """An Arrow IPC stream or file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = _table(texts, text_column, type_)
    open_writer = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with open_writer(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


def _table(texts: Sequence[str | None], text_column: str, type_: pa.DataType | None) -> pa.Table:
    column = pa.array(texts, type_ or pa.string())
    return pa.table({"id": pa.array(range(len(texts))), text_column: column})


def write_tree(directory: Path, files: dict[str, str]) -> Path:
    """Text files by relative path."""
    for name, text in files.items():
        write_bytes(directory / name, text.encode())
    return directory


def source_of(*paths: Path, name: str = "corpus", **settings: object) -> SourceConfig:
    return SourceConfig.model_validate({"name": name, "paths": tuple(map(str, paths)), **settings})


def build_store(
    source: SourceConfig,
    directory: Path,
    *,
    identity: TokenizerIdentity | None = None,
    split_bytes: int = 4096,
    buckets: int = 2,
) -> Path:
    """The finished token store of a source, below `directory`; returns its own directory."""
    identity = identity or tiny_identity()
    inputs = list_inputs(source)
    digests = [digest_file(file.path) for file in inputs]
    key = store_key(source, inputs, digests, identity, split_bytes)
    splits = plan_splits(source, inputs, split_bytes=split_bytes)
    store = directory / f"{source.name}-{key[:16]}"
    if source.id_column is not None:
        for split in splits:
            write_ids(split, source, store, buckets)
        for bucket in range(buckets):
            find_duplicates(store, bucket, len(splits))
    receipts = [tokenize_split(split, source, identity, store) for split in splits]
    finish_store(
        store,
        name=source.name,
        key=key,
        identity=identity,
        inputs=inputs,
        digests=digests,
        receipts=receipts,
        splits=splits,
        keep_columns=source.keep_columns,
        given_ends=source.given_ends,
    )
    return store
