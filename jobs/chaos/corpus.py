"""The corpus that faults are tried on: small, in several formats, with some bad records in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_WORDS = (
    *("a", "steelyard", "weighs", "heavy", "loads", "with", "one", "small", "sliding", "weight"),
    "\u6f22\u5b57",
)
_END = "<|end|>"
_CONFIG = """
[tokenizer]
path = "{root}/tokenizer.json"
engine = "hf"
eos_token = "{end}"

[[sources]]
name = "lines"
paths = ["{root}/lines.jsonl", "{root}/more.jsonl.gz"]
id_column = "id"
duplicate_ids = "reject"

[[sources]]
name = "mixed"
paths = ["{root}/rows.parquet", "{root}/tree"]

[[sources]]
name = "ids"
paths = ["{root}/ids.parquet"]
token_column = "ids"

[packing]
policy = "wlb"
num_micro_batches = 4
context_length = 512
max_displacement = 8
thresholds = [300]

[workload]
crossover = 200

[context_parallel]
sizes = [2, 4]
strategy = "per_document"

[parallel]
dp_size = 2
pp_size = 2

[shards]
shard_tokens = {shard_tokens}
row_group_tokens = 2048
split_bytes = {split_bytes}
run_tokens = {shard_tokens}

[job]
executor = "{executor}"
workers = 2
object_store_mb = 100
"""

_NEXT = """
[[sources]]
name = "lines"
paths = ["{root}/lines.jsonl", "{root}/more.jsonl.gz"]
id_column = "id"
duplicate_ids = "reject"

[[sources]]
name = "late"
paths = ["{root}/late.jsonl"]
id_column = "id"
duplicate_ids = "reject"

[packing]
policy = "reorder"
num_micro_batches = 6
context_length = 768
max_displacement = 8

[parallel]
dp_size = 2
pp_size = 2

[shards]
shard_tokens = 32_768
row_group_tokens = 3072
run_tokens = 32_768

[job]
executor = "{executor}"
workers = 2
object_store_mb = 100
"""


def write_corpus(
    root: Path,
    *,
    documents: int = 400,
    seed: int = 0,
    executor: str = "ray",
    shard_tokens: int = 32_768,
    split_bytes: int = 65_536,
) -> Path:
    """Write a corpus below `root` and the configuration of a build of it.

    Args:
        root: an absolute directory.
        documents: of the largest file; the others follow.
        seed: of their lengths and words.
        executor: what runs the build, "ray" or "local".
        shard_tokens: of a shard, and of a run.
        split_bytes: of a split; with the other sizes it sets how many units of work there are.

    Returns:
        the TOML file.
    """
    (root / "tree").mkdir(parents=True, exist_ok=True)
    _tokenizer().save(str(root / "tokenizer.json"))
    lines = _jsonl(_texts(seed + 0, documents)) + b"{broken\n" + _jsonl(["one", "two"])  # ids again
    (root / "lines.jsonl").write_bytes(lines)
    more = _jsonl(_texts(seed + 1, documents // 4), first=documents)
    (root / "more.jsonl.gz").write_bytes(gzip.compress(more, mtime=0))
    table = pa.table({"text": [*_texts(seed + 2, documents), "  "]})
    pq.write_table(table, root / "rows.parquet", row_group_size=50)
    for number, text in enumerate(_texts(seed + 3, documents // 8)):
        (root / "tree" / f"{number}.txt").write_text(text, encoding="utf-8")
    draw = np.random.default_rng(seed + 4)
    ids = [draw.integers(0, 256, length).tolist() for length in _lengths(draw, documents // 2)]
    pq.write_table(pa.table({"ids": ids}), root / "ids.parquet", row_group_size=50)
    path = root / "run.toml"
    text = _CONFIG.format(
        root=root,
        end=_END,
        executor=executor,
        shard_tokens=shard_tokens,
        split_bytes=split_bytes,
    )
    path.write_text(text, encoding="utf-8")
    return path


def write_next(root: Path, *, documents: int = 400, seed: int = 5, executor: str = "ray") -> Path:
    """Write what a further segment of a build of `write_corpus` takes, and its configuration.

    Args:
        root: as there, and written there before.
        documents: of the source that is new.
        seed: of their lengths and words.
        executor: what runs the extension.

    Returns:
        the TOML file.
    """
    (root / "late.jsonl").write_bytes(_jsonl(_texts(seed, documents)))
    path = root / "next.toml"
    path.write_text(_NEXT.format(root=root, executor=executor), encoding="utf-8")
    return path


def _tokenizer() -> Tokenizer:
    """Bytes as tokens, no merges: nothing to download, nothing to train."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_END])
    return tokenizer


def _lengths(draw: np.random.Generator, count: int) -> np.ndarray:
    """Heavy-tailed: most short, some many times the context length."""
    return np.minimum(draw.pareto(0.9, count) * 12 + 2, 2000).astype(int)


def _texts(seed: int, count: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(_WORDS, length)) for length in _lengths(draw, count)]


def _jsonl(texts: list[str], *, first: int = 0) -> bytes:
    lines = (json.dumps({"id": first + n, "text": text}) for n, text in enumerate(texts))
    return "".join(f"{line}\n" for line in lines).encode()
