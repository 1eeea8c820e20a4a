"""Hypothesis strategies: streams and bounds that packers do not like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from packer.packing.config import PackingConfig
from packer.plan import Pieces
from packer.schedule import Schedule
from packer.workload import Span, Workload


@dataclass(frozen=True)
class Case:
    """A stream's piece lengths, and what to pack them under."""

    lengths: tuple[int, ...]
    config: PackingConfig
    workload: Workload

    @property
    def pieces(self) -> Pieces:
        return Pieces.from_lengths(np.array(self.lengths, np.int64))


def hostile_lengths(name: str, context_length: int, num_pieces: int) -> tuple[int, ...]:
    """A stream known to break packers, by name; lengths in 1..context_length."""
    powers = [2**k + 1 for k in range(30) if 2**k + 1 <= context_length] or [1]
    streams = {
        "full": [context_length] * num_pieces,
        "just over half": [min(context_length, context_length // 2 + 1)] * num_pieces,
        "one giant, then crumbs": [context_length] + [1] * (num_pieces - 1),
        "crumbs, then one giant": [1] * (num_pieces - 1) + [context_length],
        "equal": [max(1, context_length // 7)] * num_pieces,
        "powers of two plus one": [powers[i % len(powers)] for i in range(num_pieces)],
        "full and one in turn": [context_length if i % 2 else 1 for i in range(num_pieces)],
        "crumbs, then full": [1] * (num_pieces // 2) + [context_length] * -(-num_pieces // 2),
    }
    return tuple(streams[name])


HOSTILE = (
    "full",
    "just over half",
    "one giant, then crumbs",
    "crumbs, then one giant",
    "equal",
    "powers of two plus one",
    "full and one in turn",
    "crumbs, then full",
)


TOO_LARGE_AN_INTAKE = Case(
    lengths=hostile_lengths("just over half", 16, 60),
    config=PackingConfig(num_micro_batches=2, context_length=16, max_tokens=17, max_pieces=1),
    workload=Workload(crossover=10),
)
"""Steps that hold 18 tokens and would take in 32."""


SPANS = (
    Span(mask="window", tokens=5, crossover=3),
    Span(mask="chunk", tokens=7, crossover=10),
)
"""Layers that make work neither quadratic nor smooth in length."""


def schedules(num_micro_batches: int) -> st.SearchStrategy[Schedule | None]:
    """What look-ahead minimises: the heaviest micro-batch, or the time of some cluster's steps."""
    sizes = [size for size in (1, 2, 4, 32) if num_micro_batches % size == 0]
    clusters = st.builds(
        Schedule,
        dp_size=st.sampled_from(sizes),
        pp_size=st.sampled_from([1, 3]),
        coupling=st.sampled_from(["gradient_sync", "lockstep"]),
    )
    return st.none() | clusters


@st.composite
def configs(draw: st.DrawFn) -> PackingConfig:
    """Small bounds of every kind, tight ones among them."""
    context_length = draw(st.sampled_from([1, 2, 7, 16, 64]))
    spare = draw(st.sampled_from([0, 1, context_length // 4, context_length]))
    num = draw(st.sampled_from([1, 2, 3, 4, 5, 32]))
    thresholds = draw(st.sets(st.integers(1, context_length), max_size=3))
    return PackingConfig(
        num_micro_batches=num,
        context_length=context_length,
        max_tokens=context_length + spare,
        max_pieces=draw(st.sampled_from([0, 0, 0, 1, 2, 9])),
        intake_tokens=draw(st.sampled_from([0, 0, 0, max(num, num * context_length // 2)])),
        thresholds=tuple(sorted(thresholds)),
        max_displacement=(most := draw(st.sampled_from([1, 2, 5, 16, 16]))),
        mean_displacement=draw(st.sampled_from([0.25, 0.5, 4.0])),
        window_steps=draw(st.sampled_from([1, 3, 8])),
        moves_per_piece=draw(st.sampled_from([1, 20])),
        schedule=draw(schedules(num)),
        token_band=draw(st.sampled_from([0.0, 0.0, 0.1])),
        global_batches=draw(st.sampled_from([1, 1, 2, 3])) if most >= 5 else 1,
        longest_first=draw(st.booleans()),
    )


@st.composite
def cases(draw: st.DrawFn, max_pieces: int = 120) -> Case:
    """Bounds, and a stream for them: hostile by name, or anything."""
    config = draw(configs())
    num_pieces = draw(st.integers(1, max_pieces))
    if draw(st.booleans()):
        lengths = hostile_lengths(draw(st.sampled_from(HOSTILE)), config.context_length, num_pieces)
    else:
        length = st.integers(1, config.context_length)
        lengths = tuple(draw(st.lists(length, min_size=num_pieces, max_size=num_pieces)))
    workload = Workload(
        crossover=draw(st.sampled_from([1, 10, 1000])),
        spans=draw(st.sampled_from([(), (), SPANS])),
        constant=draw(st.sampled_from([0, 300])),
    )
    return Case(lengths=lengths, config=config, workload=workload)


def chunkings(num_pieces: int) -> st.SearchStrategy[list[int]]:
    """Borders of a stream's chunks: ascending, 0 and `num_pieces` among them, empty chunks too."""
    inner = st.lists(st.integers(0, num_pieces), max_size=8)
    return inner.map(lambda borders: [0, *sorted(borders), num_pieces])
