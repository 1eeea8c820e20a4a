"""What a context-parallel plan is made for, beside the degree: kernels, network, padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.plan import Int64
from packer.throughput import PUBLISHED, Throughput
from packer.workload import SCALE, Workload

EXCHANGE_SCALE = 1 << 16
"""Integer `kv_exchange` of one linear-token equivalent."""
PAPER = ("per_sequence", "per_document")
"""What WLB-LLM chooses from (arXiv 2503.17924, section 5.3)."""
CANDIDATES = (*PAPER, "mixed")
"""What `adaptive` chooses from, the first of equals."""
_NO_ATTENTION = 1 << 61
"""A crossover at which no area that fits a micro-batch is work."""
_DEAREST_EXCHANGE = 1 << 24
"""Query-key pairs that a KV token is worth at most while ranks are compared."""
MOST_PAIRS = 1 << 53
"""Of a rank, weighted: 2 x SCALE times as many fit int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CPOptions:
    """How time is predicted, and what strategies with a choice may do.

    Args:
        throughput: of the attention kernel by a chunk's shape; None for the workload's profile, and
            where that has none `packer.throughput.PUBLISHED`.
        kv_exchange: exposed time of a key-value token that a rank receives, forward and backward,
            in linear-token equivalents; 0 where computing hides it.
        pad_to: what a padded piece is a multiple of, beside 2 x cp_size; `padded_head_tail` alone.
        max_tokens: S_max, which a padded micro-batch must not exceed; 0 for no bound.
        candidates: of `adaptive`.
    """

    throughput: Throughput | None = None
    kv_exchange: float = 0.0
    pad_to: int = 1
    max_tokens: int = 0
    candidates: tuple[str, ...] = CANDIDATES

    def __post_init__(self) -> None:
        if not 0 <= self.kv_exchange <= 64:
            raise ValueError(
                f"kv_exchange is {self.kv_exchange}; it must be 0 to 64 linear-token equivalents"
            )
        if self.pad_to < 1 or self.max_tokens < 0:
            raise ValueError(
                f"pad_to {self.pad_to} must be at least 1 and max_tokens {self.max_tokens} must "
                "not be negative"
            )
        if not self.candidates or not set(self.candidates) <= set(CANDIDATES):
            raise ValueError(
                f"candidates are {list(self.candidates)}; give one or more of {list(CANDIDATES)}"
            )

    def throughput_of(self, workload: Workload) -> Throughput:
        """The grid that counts."""
        if self.throughput is not None:
            return self.throughput
        measured = None if workload.profile is None else workload.profile.throughput
        return PUBLISHED if measured is None else measured

    @property
    def exchange(self) -> int:
        """`kv_exchange` in 1/65,536 of a linear-token equivalent."""
        return round(self.kv_exchange * EXCHANGE_SCALE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CPCost:
    """What chunks of many micro-batches cost their ranks.

    Work is counted in query-key pairs while plans are made, since that is what their cuts change;
    `crossovers` turns pairs into linear-token equivalents, 2 / L each.
    """

    crossovers: Int64
    """L* of each micro-batch, (rows,)."""
    grid: np.ndarray
    """Throughput by a chunk's shape, `Throughput.table`."""
    exchange: int
    """Of a KV token received, in 1/65,536 of a linear-token equivalent."""

    @property
    def exchange_pairs(self) -> Int64:
        """The same in query-key pairs of each micro-batch, rounded down, (rows,)."""
        crossovers = np.minimum(self.crossovers, 1 << 40)
        pairs = self.exchange * (crossovers / (2 * EXCHANGE_SCALE))
        return np.minimum(pairs, _DEAREST_EXCHANGE).astype(np.int64)

    def predict(self, tokens: np.ndarray, weighted: np.ndarray, received: np.ndarray) -> np.ndarray:
        """Work of ranks, in 1/256 of a linear-token equivalent, each term rounded once a rank.

        A whole piece of d tokens has about d^2 / 2 query-key pairs, which cost d^2 / L*; so a pair
        costs 2 / L*. Tile padding makes the area, and so the work, a little larger than
        `Workload.of`.

        Args:
            tokens: of each rank, int64, (rows, cp_size).
            weighted: tile-padded query-key pairs by the time they take, same shape.
            received: KV tokens that a rank needs and does not hold, same shape.

        Raises:
            ValueError: a rank of more than `MOST_PAIRS`.
        """
        if (most := int(weighted.max(initial=0))) > MOST_PAIRS:
            raise ValueError(
                f"a rank has {most:.3g} query-key pairs by the time they take, at most "
                f"{MOST_PAIRS:.3g} are allowed: pack shorter micro-batches, or give a throughput "
                "table that falls off less"
            )
        crossover = self.crossovers[:, None]
        attention = (2 * SCALE * weighted + crossover // 2) // crossover
        per_unit = EXCHANGE_SCALE // SCALE
        return tokens * SCALE + attention + (self.exchange * received + per_unit // 2) // per_unit


def cost_of(
    piece_tokens: Int64, row_offsets: Int64, workload: Workload, options: CPOptions
) -> CPCost:
    """What chunks of these micro-batches cost.

    Args:
        piece_tokens: (pieces,).
        row_offsets: (rows + 1,).
        workload: what pieces cost.
        options: kernels and network.
    """
    return CPCost(
        crossovers=effective_crossovers(piece_tokens, row_offsets, workload),
        grid=options.throughput_of(workload).table(),
        exchange=options.exchange,
    )


def effective_crossovers(piece_tokens: Int64, row_offsets: Int64, workload: Workload) -> Int64:
    """The L at which d^2 / L, over a micro-batch's pieces, is its attention work, (rows,).

    Of the quadratic model that is its crossover. Of others it spreads a micro-batch's attention
    over its ranks by their share of the causal area: exact in sum, but which rank has the cheap
    tokens beyond a window, or the chunks that a profile finds slow, is not seen.

    Args:
        piece_tokens: (pieces,).
        row_offsets: (rows + 1,).
        workload: what pieces cost.
    """
    if workload.is_quadratic:
        return np.full(len(row_offsets) - 1, workload.crossover, dtype=np.int64)
    if not len(piece_tokens):
        return np.empty(0, dtype=np.int64)
    square = np.add.reduceat(piece_tokens * piece_tokens, row_offsets[:-1]) * SCALE
    work = np.add.reduceat(workload.attention_of(piece_tokens), row_offsets[:-1])
    some = np.maximum(work, 1)
    return np.where(work > 0, np.maximum((square + some // 2) // some, 1), _NO_ATTENTION)
