"""Slow twins of the context-parallel plans: one entry a token, loops over tiles and sets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

Token = tuple[int, int]
"""piece, offset in it."""
Chunk = tuple[int, int, int, int]
"""cp_rank, piece, start, stop."""


def tokens_of(pieces: Sequence[int]) -> list[Token]:
    return [(p, i) for p, length in enumerate(pieces) for i in range(length)]


def per_sequence(pieces: Sequence[int], cp_size: int) -> dict[Token, int]:
    """The owner of each token: front halves for ranks 0, 1, ..., then back halves mirrored."""
    tokens = tokens_of(pieces)
    shares = [len(tokens) // cp_size + (r < len(tokens) % cp_size) for r in range(cp_size)]
    order = [r for r in range(cp_size) for _ in range(shares[r] - shares[r] // 2)]
    order += [r for r in reversed(range(cp_size)) for _ in range(shares[r] // 2)]
    return dict(zip(tokens, order, strict=True))


def per_document(pieces: Sequence[int], cp_size: int) -> dict[Token, int]:
    """The owner of each token: deal the remainder slot by slot, never starting over."""
    owner: dict[Token, int] = {}
    next_slot = 0
    for p, length in enumerate(pieces):
        sizes = [length // (2 * cp_size)] * (2 * cp_size)
        for _ in range(length % (2 * cp_size)):
            sizes[next_slot] += 1
            next_slot = (next_slot + 1) % (2 * cp_size)
        slots = [slot for slot, size in enumerate(sizes) for _ in range(size)]
        for i, slot in enumerate(slots):
            owner[p, i] = min(slot, 2 * cp_size - 1 - slot)
    return owner


TWINS = {"per_sequence": per_sequence, "per_document": per_document}


def chunks_of(owner: dict[Token, int]) -> list[Chunk]:
    """Maximal runs of one rank in one piece, sorted."""
    chunks: list[Chunk] = []
    for (rank, piece), run in groupby(sorted(owner), key=lambda token: (owner[token], token[0])):
        offsets = [offset for _, offset in run]
        chunks.append((rank, piece, offsets[0], offsets[-1] + 1))
    return sorted(chunks)


def tile_area(start: int, stop: int) -> int:
    """Query tiles of 128 rows from `start`, each with the keys it needs in tiles of 128."""
    area = 0
    for first in range(start, stop, 128):
        last_row = min(first + 128, stop) - 1
        keys = last_row + 1
        while keys % 128:
            keys += 1
        area += 128 * keys
    return area


def predicted(chunks: Sequence[Chunk], cp_size: int, crossover: int) -> list[int]:
    work: list[int] = []
    for rank in range(cp_size):
        mine = [(start, stop) for r, _, start, stop in chunks if r == rank]
        tokens = sum(stop - start for start, stop in mine)
        area = sum(tile_area(start, stop) for start, stop in mine)
        work.append(256 * tokens + (512 * area + crossover // 2) // crossover)
    return work


def measures(
    rows: Sequence[Sequence[int]],
    plans: Sequence[Sequence[Chunk]],
    cp_size: int,
    crossover: int,
) -> dict[str, float]:
    """Numerators and denominators added over all rows."""
    top = dict.fromkeys(("cp_attention", "cp_tokens", "tile_waste", "kv_cut", "kv_needed"), 0)
    base = dict.fromkeys(top, 0)
    ratios: list[float] = []
    times: list[float] = []
    for pieces, chunks in zip(rows, plans, strict=True):
        area, tokens = [0] * cp_size, [0] * cp_size
        held: list[set[Token]] = [set() for _ in range(cp_size)]
        needed: list[set[Token]] = [set() for _ in range(cp_size)]
        for rank, piece, start, stop in chunks:
            area[rank] += tile_area(start, stop)
            tokens[rank] += stop - start
            held[rank] |= {(piece, i) for i in range(start, stop)}
            needed[rank] |= {(piece, i) for i in range(stop)}
        owners = {p: {r for r, q, _, _ in chunks if q == p} for p in range(len(pieces))}
        whole = sum(tile_area(0, d) for d in pieces)
        ratios.append(max(area) * cp_size / whole)
        times.append(max(predicted(chunks, cp_size, crossover)) / 256)
        top["cp_attention"] += max(area) * cp_size
        base["cp_attention"] += whole
        top["cp_tokens"] += max(tokens) * cp_size
        base["cp_tokens"] += sum(pieces)
        top["tile_waste"] += sum(area)
        base["tile_waste"] += sum(d * (d + 1) // 2 for d in pieces)
        cut = [p for p, d in enumerate(pieces) if len(owners[p]) > 1 or is_split(chunks, p)]
        top["kv_cut"] += sum(pieces[p] for p in cut)
        base["kv_cut"] += sum(pieces)
        top["kv_needed"] += sum(len(n - h) for n, h in zip(needed, held, strict=True))
        base["kv_needed"] += (cp_size - 1) * sum(pieces)
    sums = {name: top[name] / base[name] if base[name] else 0.0 for name in top}
    means = {"cp_attention_mean": ratios, "predicted_time": times}
    return sums | {name: sum(values) / len(rows) for name, values in means.items()}


def is_split(chunks: Sequence[Chunk], piece: int) -> bool:
    """Whether a piece has more than one chunk."""
    return sum(chunk[1] == piece for chunk in chunks) > 1
