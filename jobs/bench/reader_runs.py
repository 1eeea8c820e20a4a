"""One way of reading, in a process of its own: `python -m jobs.bench.reader_runs WAY ROOT`.

Every way gives the same micro-batches: token ids, labels and positions as int64, boundaries as
int32. Where a library only gives ids, labels and positions are made by our own code, for small
micro-batches several at a time as our readers do, so what differs is the reading. A first pass is
not timed; it warms caches and digests all that was read, so that equal
work is not a matter of trust. Prints one JSON object.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import xxhash

from pipeline.shard.micro_batch import RankMicroBatch
from pipeline.shard.rank_chunks import RankChunks, whole_pieces
from pipeline.shard.rank_reader import TOGETHER_TOKENS
from pipeline.shard.rank_views import fill_packed, rank_views
from pipeline.shard.reader import Reader, open_plan, open_shards

ROUNDS = 4
Batches = Iterator[RankMicroBatch]
_NOT_FOR_READING = (
    "transformers", "torchvision", "matplotlib", "boto3", "botocore", "google", "azure", "oci",
    "paramiko",
)  # fmt: skip


def shards(root: Path) -> Callable[[], Batches]:
    """Our shards, every row group checked on every pass."""
    reader = open_shards(root / "set")
    return lambda: _all(reader)


def shards_ahead(root: Path) -> Callable[[], Batches]:
    """The same by `Reader.batches`, two micro-batches ahead; CPU time is that of both threads."""
    reader = open_shards(root / "set")
    return lambda: reader.batches(dp_rank=0, dp_size=1, prefetch=2)


def plan(root: Path) -> Callable[[], Batches]:
    """Plan and token store; the store's blocks are checked once, in the first pass."""
    reader = open_plan(root / "set")
    return lambda: _all(reader)


def mapped(root: Path) -> Callable[[], Batches]:
    """`np.memmap` of the micro-batches back to back: what reading can cost at least."""
    pieces = np.load(root / "pieces.npz")
    columns = _Pieces(pieces)
    ids = np.memmap(root / "flat/tokens.bin", _dtype(root), mode="r").view(np.ndarray)
    starts = np.concatenate([[0], np.cumsum(pieces["tokens"])]).tolist()

    def read() -> Iterator[_Packed]:
        for number in range(len(starts) - 1):
            yield columns.packed(number, ids[starts[number] : starts[number + 1]])

    return lambda: _views(read())


def megatron(root: Path) -> Callable[[], Batches]:
    """`IndexedDataset.get`, a piece a call, as Megatron's own datasets call it a document."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(root / "documents"), mmap=True)
    pieces = np.load(root / "pieces.npz")
    columns = _Pieces(pieces)
    doc_id, doc_start = pieces["doc_id"].tolist(), pieces["doc_start"].tolist()

    def read() -> Iterator[_Packed]:
        for number in range(len(columns)):
            first, last = columns.pieces_of(number)
            bounds = columns.cu_seqlens(number)
            tokens = np.empty(bounds[-1], dataset.index.dtype)
            ends = bounds.tolist()
            for piece, start, stop in zip(range(first, last), ends, ends[1:], strict=False):
                tokens[start:stop] = dataset.get(doc_id[piece], doc_start[piece], stop - start)
            yield columns.packed(number, tokens)

    return lambda: _views(read())


def streaming(root: Path) -> Callable[[], Batches]:
    """`LocalDataset`, a sample a micro-batch: ids, boundaries and last labels as arrays."""
    sys.meta_path.append(_EmptyModules())
    from streaming import LocalDataset, MDSWriter

    pieces = np.load(root / "pieces.npz")
    columns, dtype = _Pieces(pieces), _dtype(root)
    if not (root / "mds").exists():
        kinds = {"tokens": f"ndarray:{dtype}", "cu": "ndarray:int32", "last": "ndarray:int64"}
        with MDSWriter(out=str(root / "mds"), columns=kinds) as writer:
            for number, view in enumerate(mapped(root)()):
                bounds, last = columns.cu_seqlens(number), columns.last_labels(number)
                writer.write({"tokens": view.tokens.astype(dtype), "cu": bounds, "last": last})
    dataset = LocalDataset(str(root / "mds"))

    def read() -> Iterator[_Packed]:
        for number in range(len(dataset)):
            sample = dataset[number]
            yield _Packed(columns.place(number), sample["tokens"], sample["cu"], sample["last"])

    return lambda: _views(read())


WAYS: dict[str, Callable[[Path], Callable[[], Batches]]] = {
    "shards": shards,
    "shards, read ahead": shards_ahead,
    "plan + token store": plan,
    "raw mmap": mapped,
    "Megatron IndexedDataset": megatron,
    "MosaicML LocalDataset": streaming,
}


def run(way: str, root: Path) -> dict[str, Any]:
    """Tokens, their digest, and the least CPU and wall seconds of some passes."""
    read = WAYS[way](root)
    digest, tokens = xxhash.xxh3_128(), 0
    for view in read():
        tokens += len(view.tokens)
        for values in (view.tokens, view.labels, view.position_ids, view.cu_seqlens_q):
            digest.update(np.ascontiguousarray(values).data)
    cpu, wall = [], []
    for _ in range(ROUNDS):
        started = time.process_time(), time.perf_counter()
        found = sum(len(view.tokens) for view in read())
        cpu.append(time.process_time() - started[0])
        wall.append(time.perf_counter() - started[1])
        if found != tokens:
            raise RuntimeError(f"{found} tokens, the pass before had {tokens}")
    return {
        "tokens": tokens,
        "digest": digest.hexdigest(),
        "cpu_seconds": min(cpu),
        "seconds": min(wall),
    }


class _Packed(NamedTuple):
    """A micro-batch as it was read: step and slot, ids, boundaries, the labels of pieces' ends."""

    place: tuple[int, int]
    tokens: np.ndarray
    cu_seqlens: np.ndarray
    last_labels: np.ndarray


class _Pieces:
    """The table of pieces, cut into micro-batches."""

    def __init__(self, pieces: Any) -> None:
        self._offsets = pieces["offsets"].tolist()
        self._places = pieces["places"].tolist()
        self._last, self._bounds = pieces["last_labels"], pieces["cu_seqlens"]

    def __len__(self) -> int:
        return len(self._places)

    def place(self, number: int) -> tuple[int, int]:
        return self._places[number]

    def pieces_of(self, number: int) -> tuple[int, int]:
        return self._offsets[number], self._offsets[number + 1]

    def cu_seqlens(self, number: int) -> np.ndarray:
        first, last = self.pieces_of(number)
        return self._bounds[first + number : last + number + 1]  # one more entry a micro-batch

    def last_labels(self, number: int) -> np.ndarray:
        first, last = self.pieces_of(number)
        return self._last[first:last]

    def packed(self, number: int, tokens: np.ndarray) -> _Packed:
        bounds, last = self.cu_seqlens(number), self.last_labels(number)
        return _Packed(self.place(number), tokens, bounds, last)


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that `streaming` imports, and reading local files does not use."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in _NOT_FOR_READING:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _all(reader: Reader) -> Batches:
    for step in range(reader.num_steps):
        yield from reader.micro_batches(step, dp_rank=0, dp_size=1)


def _views(found: Iterator[_Packed]) -> Batches:
    """The views of the only rank, made together until they hold as much as our readers' groups."""
    held: list[_Packed] = []
    tokens = 0
    for packed in found:
        if held and tokens + len(packed.tokens) > TOGETHER_TOKENS:
            yield from _group(held)
            held, tokens = [], 0
        held.append(packed)
        tokens += len(packed.tokens)
    yield from _group(held)


def _group(held: list[_Packed]) -> list[RankMicroBatch]:
    """Other tools' data have no workloads, and nobody asks."""
    pieces = np.array([len(packed.last_labels) for packed in held])
    chunks = whole_pieces(np.concatenate([packed.cu_seqlens for packed in held]), pieces)
    last_labels = np.concatenate([packed.last_labels for packed in held])
    tokens = [packed.tokens for packed in held]

    def fill(chunks: RankChunks, out: np.ndarray) -> np.ndarray:
        return fill_packed(chunks, out, tokens, last_labels)

    places = [(*packed.place, 0) for packed in held]
    return rank_views(places, chunks, fill, cp_rank=0, cp_size=1)


def _dtype(root: Path) -> str:
    return json.loads((root / "set/manifest.json").read_text())["dtype"]


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
