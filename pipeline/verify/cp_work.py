"""Work of CP ranks, worked out anew from docs/FORMAT.md, sections 4 and 6, in plain numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.throughput import Throughput
from packer.workload import Workload
from pipeline.built import throughput_of, workload_of
from pipeline.shard.manifest import Manifest
from pipeline.verify.result import VerifyError

_TILE = 128
_NO_ATTENTION = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Degree:
    """How the manifest says that a degree was planned."""

    cp_size: int
    strategy: str
    candidates: tuple[str, ...]
    exchange: int
    """Work of a KV token received, in 1/65,536 of a linear-token equivalent."""
    throughput: Throughput
    workload: Workload
    scale: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkList:
    """Chunks of a part, int64, one entry a chunk, in the order of the file."""

    row: np.ndarray
    cp_rank: np.ndarray
    piece: np.ndarray
    """-1 for pads."""
    start: np.ndarray
    stop: np.ndarray


def degree_of(manifest: Manifest, cp_size: int) -> Degree:
    """A degree's entry in the manifest, checked.

    Raises:
        VerifyError: a field is missing or malformed.
    """
    entry, workload = manifest.cp[str(cp_size)], workload_of(manifest)
    try:
        strategy, exchange = entry["strategy"], entry["kv_exchange"]
        candidates = entry.get("candidates", [])
        if not isinstance(strategy, str) or not _are_names(candidates):
            raise ValueError("strategy must be a string, candidates a list of distinct ones")
        if (strategy == "adaptive") != bool(candidates):
            raise ValueError(
                f"strategy is {strategy!r}, candidates are {candidates}; adaptive, and it alone, "
                "has some"
            )
        if isinstance(exchange, bool) or not isinstance(exchange, int | float):
            raise ValueError(f"kv_exchange is {exchange!r}; it must be a number")
        if not 0 <= exchange <= 64:
            raise ValueError(f"kv_exchange is {exchange}; it must be 0 to 64")
        throughput = throughput_of(entry["throughput"], workload)
    except (KeyError, TypeError, ValueError) as error:
        raise VerifyError(
            f"cp.{cp_size}: a field is missing or malformed: {error}",
            path=manifest.directory / "manifest.json",
        ) from error
    return Degree(
        cp_size=cp_size,
        strategy=strategy,
        candidates=tuple(candidates),
        exchange=round(exchange * 65_536),
        throughput=throughput,
        workload=workload,
        scale=manifest.workload.scale,
    )


def work_of(
    chunks: ChunkList, piece_tokens: np.ndarray, row_offsets: np.ndarray, degree: Degree
) -> np.ndarray:
    """Predicted work of every rank, int64, (rows, cp_size).

    Args:
        chunks: a part's, sound.
        piece_tokens: of all pieces of the part's rows, (pieces,).
        row_offsets: where each row's pieces begin, (rows + 1,).
        degree: how it was planned.
    """
    rows = len(row_offsets) - 1

    def add_up(values: np.ndarray, of: np.ndarray | slice) -> np.ndarray:
        sums = np.zeros(rows * degree.cp_size, np.int64)
        np.add.at(sums, (chunks.row * degree.cp_size + chunks.cp_rank)[of], values)
        return sums.reshape(rows, degree.cp_size)

    length, real = chunks.stop - chunks.start, np.flatnonzero(chunks.piece >= 0)
    pairs = _pairs(chunks.start[real], chunks.stop[real], degree.throughput)
    group = np.stack([chunks.row[real], chunks.cp_rank[real], chunks.piece[real]])
    last = np.append(np.any(group[:, 1:] != group[:, :-1], axis=0), True)
    needed = np.where(last, chunks.stop[real], 0)  # the last chunk of a piece reaches furthest
    received = add_up(needed - length[real], real)
    crossover = _crossovers(piece_tokens, row_offsets, degree)[:, None]
    attention = (2 * degree.scale * add_up(pairs, real) + crossover // 2) // crossover
    exchange = (degree.exchange * received + 128) // 256
    return degree.scale * add_up(length, slice(None)) + attention + exchange


def _pairs(start: np.ndarray, stop: np.ndarray, grid: Throughput) -> np.ndarray:
    """Query-key pairs of tiles, by the time that they take."""
    full, rest = np.divmod(stop - start, _TILE)
    tiles = full * -(-start // _TILE) + full * (full + 1) // 2
    tiles += np.where(rest > 0, -(-stop // _TILE), 0)
    pairs = tiles * _TILE * _TILE
    share = _share(stop - start, stop, grid)
    return np.where(share >= 1, pairs, np.floor(pairs / share + 0.5).astype(np.int64))


def _share(queries: np.ndarray, keys: np.ndarray, grid: Throughput) -> np.ndarray:
    """Throughput over the largest: between entries first along keys, then along queries."""
    relative = grid.relative
    i, next_i, along_queries = _place(np.array(grid.query_tokens), queries)
    j, next_j, along_keys = _place(np.array(grid.key_tokens), keys)
    low = relative[i, j] + (relative[i, next_j] - relative[i, j]) * along_keys
    high = relative[next_i, j] + (relative[next_i, next_j] - relative[next_i, j]) * along_keys
    return low + (high - low) * along_queries


def _place(points: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points around, and how far from the first to the second; no way outside all."""
    i = np.maximum(np.searchsorted(points, value, side="right") - 1, 0)
    after = np.minimum(i + 1, len(points) - 1)
    inside = (after > i) & (value > points[i])
    part = (value - points[i]) / np.maximum(points[after] - points[i], 1)
    return i, after, np.where(inside, part, 0.0)


def _crossovers(piece_tokens: np.ndarray, row_offsets: np.ndarray, degree: Degree) -> np.ndarray:
    """L of each row."""
    workload = degree.workload
    if workload.is_quadratic:
        return np.full(len(row_offsets) - 1, workload.crossover, np.int64)
    square = np.add.reduceat(piece_tokens * piece_tokens, row_offsets[:-1]) * degree.scale
    work = np.add.reduceat(workload.attention_of(piece_tokens), row_offsets[:-1])
    some = np.maximum(work, 1)
    return np.where(work > 0, np.maximum((square + some // 2) // some, 1), _NO_ATTENTION)


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )
