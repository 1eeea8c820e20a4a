"""Packing policies in plain Python: whole stream, whole lists, one sentence a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from packer.packing.config import PackingConfig
from packer.workload import Workload
from tests import reference_workload


class Piece(NamedTuple):
    position: int
    tokens: int
    work: int


@dataclass
class MicroBatch:
    pieces: list[Piece] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def work(self) -> int:
        return sum(piece.work for piece in self.pieces)


Step = list[list[tuple[int, int]]]
"""Slots of a step, each (position, tokens) of its pieces."""


@dataclass
class Reference:
    """What a policy makes of a whole stream; `stop` says which bound is in the way."""

    steps: list[Step]
    tail: list[tuple[int, int]]
    stop: str = ""


@cache
def work_of(tokens: int, workload: Workload) -> int:
    if not workload.is_quadratic:
        return reference_workload.workload(tokens, workload.crossover, workload.spans)
    linear, square = tokens * 256, tokens * tokens * 256
    return linear + (square + workload.crossover // 2) // workload.crossover


def stream_of(lengths: Sequence[int], workload: Workload) -> list[Piece]:
    position, pieces = 0, []
    for tokens in lengths:
        pieces.append(Piece(position, tokens, work_of(tokens, workload)))
        position += tokens
    return pieces


def slots_of(batches: list[MicroBatch]) -> Step:
    for batch in batches:
        batch.pieces.sort()
    ordered = sorted(batches, key=lambda batch: (-batch.work, batch.pieces[0].position))
    return [[(piece.position, piece.tokens) for piece in batch.pieces] for batch in ordered]


def total(pieces: Sequence[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def reference_concat(
    lengths: Sequence[int], config: PackingConfig, workload: Workload
) -> Reference:
    num, intake = config.num_micro_batches, config.intake_tokens
    rest, steps = stream_of(lengths, workload), []
    while total(rest) >= max(intake, num):
        made = cut_step(rest, [config.context_length] * num, config)
        if made is None:
            even, more = divmod(total(rest), num)
            made = cut_step(rest, [even + (slot < more) for slot in range(num)], config)
        assert made is not None
        batches, after = made
        first = batches[0].pieces[0].position // intake
        last = batches[-1].pieces[-1].position // intake
        if last - len(steps) > config.max_displacement:
            return Reference(steps, [], "early")
        if len(steps) - first > max(1, config.max_displacement // 4):
            return Reference(steps, [], "late")
        for batch in batches:
            batch.pieces = [
                piece._replace(work=work_of(piece[1], workload)) for piece in batch.pieces
            ]
        steps.append(slots_of(batches))
        rest = after
    return Reference(steps, [(piece.position, piece.tokens) for piece in rest])


def cut_step(
    pieces: list[Piece], rooms: list[int], config: PackingConfig
) -> tuple[list[MicroBatch], list[Piece]] | None:
    rest, batches = list(pieces), []
    for room in rooms:
        batch = MicroBatch()
        while batch.tokens < room and len(batch.pieces) < (config.max_pieces or 10**9):
            if not rest:
                return None
            piece = rest.pop(0)
            tokens = min(piece.tokens, room - batch.tokens)
            batch.pieces.append(piece._replace(tokens=tokens))
            if tokens < piece.tokens:
                rest.insert(0, Piece(piece.position + tokens, piece.tokens - tokens, 0))
        batches.append(batch)
    return batches, rest


def reference_reorder(
    lengths: Sequence[int], config: PackingConfig, workload: Workload
) -> Reference:
    return greedy(lengths, config, workload, thresholds=(), patience=1)


def reference_wlb(lengths: Sequence[int], config: PackingConfig, workload: Workload) -> Reference:
    age = release_age(config)
    return greedy(lengths, config, workload, thresholds=config.thresholds, patience=age)


def release_age(config: PackingConfig) -> int:
    return config.max_displacement - max(1, config.max_displacement // 4)


def level_of(piece: Piece, thresholds: Sequence[int]) -> int:
    return sum(piece.tokens >= threshold for threshold in thresholds) - 1


def greedy(
    lengths: Sequence[int],
    config: PackingConfig,
    workload: Workload,
    *,
    thresholds: Sequence[int],
    patience: int,
) -> Reference:
    num, intake_tokens = config.num_micro_batches, config.intake_tokens
    unread = stream_of(lengths, workload)
    hand: list[Piece] = []
    queued: list[Piece] = []
    steps: list[Step] = []
    intake = 0
    while total(hand + queued + unread) >= intake_tokens and len(hand + queued + unread) >= num:
        step = len(steps)
        while unread and (
            (intake <= step and total(hand) <= intake_tokens) or len(hand + queued) < num
        ):
            arriving = [piece for piece in unread if piece.position // intake_tokens == intake]
            unread = unread[len(arriving) :]
            hand += [piece for piece in arriving if level_of(piece, thresholds) < 0]
            queued += [piece for piece in arriving if level_of(piece, thresholds) >= 0]
            intake += 1
        ages = {piece: step - piece.position // intake_tokens for piece in hand + queued}
        released = released_of(queued, hand, thresholds, ages, config, everything=not unread)
        queued = [piece for piece in queued if piece not in released]
        candidates = sorted(hand + released)
        if any(ages[piece] > config.max_displacement for piece in candidates + queued):
            return Reference(steps, [], "late")
        if any(ages[piece] < -config.max_displacement for piece in candidates):
            return Reference(steps, [], "early")
        if step - intake > max(1, config.max_displacement // 4) and unread:
            return Reference(steps, [], "late")
        batches = [MicroBatch() for _ in range(num)]
        hand = []
        for piece in placing_order(candidates, ages, config, patience):
            with_room = [batch for batch in batches if has_room(batch, piece, config)]
            if with_room:
                min(with_room, key=lambda batch: batch.work).pieces.append(piece)
            else:
                hand.append(piece)
        hand.sort()
        steps.append(slots_of(batches))
    return Reference(steps, [(piece[0], piece[1]) for piece in sorted(hand + queued + unread)])


def released_of(
    queued: list[Piece],
    hand: list[Piece],
    thresholds: Sequence[int],
    ages: dict[Piece, int],
    config: PackingConfig,
    *,
    everything: bool,
) -> list[Piece]:
    num = config.num_micro_batches
    released = [piece for piece in queued if everything or ages[piece] >= release_age(config)]
    for level in range(len(thresholds)):
        members = [piece for piece in queued if level_of(piece, thresholds) == level]
        if len(members) >= num:
            released += [piece for piece in members[:num] if piece not in released]
    for piece in queued:
        if len(hand) + len(released) < num and piece not in released:
            released.append(piece)
    return released


def placing_order(
    candidates: list[Piece], ages: dict[Piece, int], config: PackingConfig, patience: int
) -> list[Piece]:
    def key(piece: Piece) -> tuple[int, int]:
        if ages[piece] >= release_age(config):
            return (0, 0)
        if 2 * piece.tokens > config.max_tokens:
            return (1, -piece.work)
        if ages[piece] >= patience:
            return (2, 0)
        return (3, -piece.work)

    return sorted(candidates, key=key)


def has_room(batch: MicroBatch, piece: Piece, config: PackingConfig) -> bool:
    if config.max_pieces and len(batch.pieces) >= config.max_pieces:
        return False
    return batch.tokens + piece.tokens <= config.max_tokens


def reference_wlb_printed(
    lengths: Sequence[int], config: PackingConfig, workload: Workload
) -> Reference:
    num = config.num_micro_batches
    stream = stream_of(lengths, workload)
    queues: list[list[Piece]] = [[] for _ in config.thresholds]
    remained: list[Piece] = []
    steps: list[Step] = []
    for step in range(total(stream) // config.intake_tokens):
        new = []
        for piece in stream:
            if piece.position // config.intake_tokens == step:
                level = level_of(piece, config.thresholds)
                (queues[level] if level >= 0 else new).append(piece)
        for queue in queues:
            if len(queue) >= num:
                new += [queue.pop(0) for _ in range(num)]
        doc_set = remained + sorted(new, key=lambda piece: (-piece.work, piece.position))
        remained, batches = [], [MicroBatch() for _ in range(num)]
        for piece in doc_set:
            lightest = min(batches, key=lambda batch: batch.work)
            shortest = min(batches, key=lambda batch: batch.tokens)
            if lightest.tokens + piece.tokens < config.max_tokens:
                lightest.pieces.append(piece)
            elif shortest.tokens + piece.tokens < config.max_tokens:
                shortest.pieces.append(piece)
            else:
                remained.append(piece)
        if any(not batch.pieces for batch in batches):
            return Reference(steps, [], "empty")
        steps.append(slots_of(batches))
    placed = {piece[0] for step in steps for slot in step for piece in slot}
    return Reference(steps, [(p.position, p.tokens) for p in stream if p.position not in placed])


REFERENCES = {
    "concat": reference_concat,
    "reorder": reference_reorder,
    "wlb": reference_wlb,
    "wlb_printed": reference_wlb_printed,
}
