"""Baselines and the packers of others in plain Python: whole stream, whole lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packer.packing.config import PackingConfig
from packer.workload import Workload
from tests.reference_packing import (
    MicroBatch,
    Piece,
    Reference,
    Step,
    has_room,
    slots_of,
    stream_of,
    total,
    work_of,
)


def reference_fixed_greedy(
    lengths: Sequence[int], config: PackingConfig, workload: Workload
) -> Reference:
    fixed = replace(config, max_tokens=config.context_length)
    num, intake_tokens = config.num_micro_batches, config.intake_tokens
    unread = pieces_between_borders(lengths, config.context_length, workload)
    hand: list[Piece] = []
    steps: list[Step] = []
    intake = 0
    while True:
        left = hand + unread
        size = min(config.global_batches, total(left) // intake_tokens, len(left) // num)
        if not size:
            return Reference(steps, [(piece.position, piece.tokens) for piece in sorted(left)])
        first, last = len(steps), len(steps) + size - 1
        while unread and (
            (intake <= last and total(hand) <= size * intake_tokens) or len(hand) < size * num
        ):
            arriving = [piece for piece in unread if piece.position // intake_tokens == intake]
            unread = unread[len(arriving) :]
            hand += arriving
            intake += 1
        spare = config.max_displacement - 2 * size + 1
        if last - intake > max(1, min(config.max_displacement // 4, spare)) and unread:
            return Reference(steps, [], "late")
        bins = [MicroBatch() for _ in range(size * num)]
        rest = []
        for piece in placing_order(sorted(hand), first, size, config):
            with_room = [one for one in bins if has_room(one, piece, fixed)]
            if with_room:
                min(with_room, key=squares).pieces.append(piece)
            else:
                rest.append(piece)
        hand = sorted(rest)
        bins.sort(key=lambda one: (-one.work, min(one.pieces).position))
        groups = [bins[start : start + num] for start in range(0, len(bins), num)]
        groups.sort(key=lambda group: mean_arrival(group, intake_tokens))
        for group in groups:
            for piece in (piece for one in group for piece in one.pieces):
                age = len(steps) - piece.position // intake_tokens
                if abs(age) > config.max_displacement:
                    return Reference(steps, [], "late" if age > 0 else "early")
            steps.append(slots_of(group))


def pieces_between_borders(
    lengths: Sequence[int], context_length: int, workload: Workload
) -> list[Piece]:
    pieces, position = [], 0
    for tokens in lengths:
        while tokens:
            part = min(tokens, context_length - position % context_length)
            pieces.append(Piece(position, part, work_of(part, workload)))
            position += part
            tokens -= part
    return pieces


def placing_order(hand: list[Piece], step: int, size: int, config: PackingConfig) -> list[Piece]:
    release_age = config.max_displacement - max(1, config.max_displacement // 4)
    last_call = config.max_displacement - 2 * size + 2

    def key(piece: Piece) -> tuple[int, int]:
        age = step - piece.position // config.intake_tokens
        if age >= max(1, min(release_age, last_call)):
            return (0, 0)
        if 8 * piece.tokens > config.context_length:
            return (1, -piece.tokens)
        return (3, -piece.tokens) if config.longest_first and age <= 0 else (2, 0)

    return sorted(hand, key=key)


def squares(one: MicroBatch) -> int:
    return sum(piece.tokens**2 for piece in one.pieces)


def mean_arrival(group: list[MicroBatch], intake_tokens: int) -> float:
    pieces = [piece for one in group for piece in one.pieces]
    return sum(p.tokens * (p.position // intake_tokens) for p in pieces) / total(pieces)


def reference_ffd(lengths: Sequence[int], config: PackingConfig, workload: Workload) -> Reference:
    return by_length(lengths, config, workload, best_fit=False)


def reference_bfd(lengths: Sequence[int], config: PackingConfig, workload: Workload) -> Reference:
    return by_length(lengths, config, workload, best_fit=True)


def by_length(
    lengths: Sequence[int], config: PackingConfig, workload: Workload, *, best_fit: bool
) -> Reference:
    num = config.num_micro_batches
    window_tokens = config.global_batches * num * config.max_tokens
    unread, hand = stream_of(lengths, workload), []
    steps: list[Step] = []
    while True:
        while unread and total(hand) < window_tokens:
            hand.append(unread.pop(0))
        bins: list[MicroBatch] = []
        for piece in sorted(hand, key=lambda piece: (-piece.tokens, piece.position)):
            open_bins = [one for one in bins if has_room(one, piece, config)]
            if not open_bins:
                bins.append(MicroBatch([piece]))
            elif best_fit:
                max(open_bins, key=lambda one: one.tokens).pieces.append(piece)
            else:
                open_bins[0].pieces.append(piece)
        whole = len(bins) // num * num
        if not whole:
            left = sorted(hand + unread)
            return Reference(steps, [(piece.position, piece.tokens) for piece in left])
        steps += [slots_of(bins[start : start + num]) for start in range(0, whole, num)]
        hand = sorted(piece for one in bins[whole:] for piece in one.pieces)


def reference_karmarkar_karp(
    lengths: Sequence[int], config: PackingConfig, workload: Workload
) -> Reference:
    num, intake_tokens = config.num_micro_batches, config.intake_tokens
    unread = stream_of(lengths, workload)
    steps: list[Step] = []
    intake = 0
    while total(unread) >= intake_tokens and len(unread) >= num:
        hand: list[Piece] = []
        while unread and (intake <= len(steps) or len(hand) < num):
            hand += [piece for piece in unread if piece.position // intake_tokens == intake]
            unread = [piece for piece in unread if piece.position // intake_tokens > intake]
            intake += 1
        steps.append(slots_of(differences(hand, num)))
    return Reference(steps, [(piece.position, piece.tokens) for piece in unread])


def differences(pieces: list[Piece], num: int) -> list[MicroBatch]:
    parts = {
        number: [MicroBatch([piece])] + [MicroBatch() for _ in range(num - 1)]
        for number, piece in enumerate(pieces)
    }
    while len(parts) > 1:
        by_difference = sorted(
            parts, key=lambda number: (parts[number][-1].work - parts[number][0].work, number)
        )
        one, other = (parts.pop(number) for number in by_difference[:2])
        joined = [
            MicroBatch(full.pieces + empty.pieces)
            for full, empty in zip(one, reversed(other), strict=True)
        ]
        parts[by_difference[1]] = sorted(joined, key=lambda one: -one.work)
    return parts.popitem()[1]


REFERENCES = {
    "fixed_greedy": reference_fixed_greedy,
    "ffd": reference_ffd,
    "bfd": reference_bfd,
    "karmarkar_karp": reference_karmarkar_karp,
}
