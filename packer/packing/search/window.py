"""A window's search set up and read back: long pieces one by one, short ones as filler.

From 32 micro-batches a step on, the search is done twice: first with pieces in groups (`groups`),
then piece by piece from there.
"""

from __future__ import annotations

import numpy as np

from packer.packing.config import PackingConfig
from packer.packing.search.annealing import search
from packer.packing.search.fluid import Bounds
from packer.packing.search.groups import by_step, carry_of, group_size, grouped, spread_out
from packer.packing.search.moves import Window
from packer.packing.search.objective import Objective, band_of, source_tokens
from packer.plan import Int64, Pieces, Steps
from packer.workload import SCALE, Workload

LONG, VERY_LONG = 11, 4
"""Pieces of S / VERY_LONG tokens or more are placed one by one, and of those down to S / LONG the
longest, up to MANY_LONG a micro-batch in all: where there are more of them, they even out."""
MANY_LONG = 2
INNER = 0.9
"""Share of a band that the search uses; the rest is for what the fluid does not show."""
MOVES = 800
"""Tries for each long piece, or group of them."""
REFINING, REFINING_FROM = 100, 0.7
"""Tries for each long piece after a search of groups, and how much of the search is over then."""
REFINING_SIZE = 64
"""Micro-batches of a step from which on tries are fewer, since each looks at more of them."""
DEAREST, SMALL_BUDGET = 5.0, 0.1
"""Bound of the price of a token's step, in the linear work of a token; higher for a budget below
the second number. Where it is too high, the price runs away while the search is hot."""
CRUMB = 64
"""Pieces below S / CRUMB tokens fill up to a step's exact share."""


def moves_per_piece(config: PackingConfig) -> int:
    """Effort: as configured, or MOVES."""
    return config.moves_per_piece or MOVES


def search_window(
    steps: Steps, config: PackingConfig, workload: Workload, margin: float
) -> Int64 | None:
    """The step of each piece, counted from the window's first; None where none better is found.

    Args:
        steps: the window as it is.
        config: the bounds, the displacement budget and the effort.
        workload: what a piece costs.
        margin: share of the displacement budget to keep.

    Returns:
        int64 (pieces,), pieces by position.
    """
    order = np.argsort(steps.pieces.position)
    pieces = steps.pieces.take(order)
    num_steps = steps.num_steps
    arrival = pieces.position // config.intake_tokens - steps.first_step
    runs_in = (steps.piece_step - steps.first_step)[order]
    tokens, work = pieces.tokens, workload.of(pieces.tokens)
    by_length = np.argsort(-tokens, kind="stable")
    long = by_length[: _num_long(tokens, num_steps, config)]
    short = np.sort(by_length[len(long) :])
    arrived = by_step(np.clip(arrival[short], 0, num_steps - 1), tokens[short], num_steps)
    held = by_step(runs_in[short], tokens[short], num_steps)
    least_of_source, most_of_source = _of_sources(pieces, short, num_steps, config)
    window = Window(
        tokens=tokens[long],
        work=work[long].astype(np.float64),
        arrival=arrival[long],
        source=pieces.source[long],
        step=runs_in[long],
        filler=held,
        carry=carry_of(arrived, held),
        least_of_source=least_of_source,
        most_of_source=most_of_source,
    )
    bounds = _bounds(pieces, short, config, workload, margin)
    seed = np.uint64(int(pieces.position[0]) + 1)
    moves = moves_per_piece(config)
    group = group_size(config.num_micro_batches)
    start = 0.0
    fewer = max(1, config.num_micro_batches // REFINING_SIZE)
    if group == 1:
        moves = max(1, moves // fewer)
    else:
        coarse = grouped(window, bounds, group, arrived)
        if search(coarse.window, coarse.bounds, moves * len(coarse.window.tokens), 0.0, seed):
            window = spread_out(coarse, window, bounds, arrived)
        moves = max(1, moves * REFINING // (MOVES * fewer))
        start = REFINING_FROM
    if not search(window, bounds, moves * len(long), start, seed + np.uint64(1)):
        return None
    return _step_of_all(window, long, short, pieces, config)


def _num_long(tokens: Int64, num_steps: int, config: PackingConfig) -> int:
    """How many of a window's pieces are placed one by one."""
    very_long = int(np.count_nonzero(tokens * VERY_LONG >= config.context_length))
    long = int(np.count_nonzero(tokens * LONG >= config.context_length))
    return max(very_long, min(long, MANY_LONG * config.num_micro_batches * num_steps))


def _bounds(
    pieces: Pieces, short: Int64, config: PackingConfig, workload: Workload, margin: float
) -> Bounds:
    objective = Objective.of(config)
    tokens = pieces.tokens
    short_tokens = int(tokens[short].sum())
    short_work = int(workload.of(tokens[short]).sum())
    least, most = band_of(config)
    inner = round((1 - INNER) * config.token_band * config.intake_tokens)
    return Bounds(
        num=config.num_micro_batches,
        max_tokens=config.max_tokens,
        max_displacement=config.max_displacement,
        filler_rate=short_work / short_tokens if short_tokens else float(SCALE),
        budget=config.mean_displacement * (1 - margin) * int(tokens.sum()),
        dearest=DEAREST * max(1.0, SMALL_BUDGET / config.mean_displacement) * SCALE,
        token_work=float(SCALE),
        least_tokens=least + inner,
        most_tokens=most - inner,
        dp_size=objective.dp_size,
        bubble=objective.bubble,
        lockstep=objective.lockstep,
    )


def _of_sources(
    pieces: Pieces, short: Int64, num_steps: int, config: PackingConfig
) -> tuple[Int64, Int64]:
    """Fewest and most tokens in long pieces that a step should hold of each source, (sources,).

    A source's short pieces make up for what its long ones lack, as far as they go.
    """
    of_source = _by_source(pieces.source, pieces.tokens, int(pieces.source.max()) + 1)
    if not config.source_band:
        return np.zeros_like(of_source), np.full_like(
            of_source, config.num_micro_batches * config.max_tokens
        )
    filler = _by_source(pieces.source[short], pieces.tokens[short], len(of_source)) // num_steps
    share = of_source / of_source.sum() * config.intake_tokens
    band = INNER * config.source_band * config.intake_tokens
    least = np.maximum(0, share - band - filler).astype(np.int64)
    return least, (share + band).astype(np.int64)


def _by_source(source: Int64, tokens: Int64, num_sources: int) -> Int64:
    """Tokens of each source, (sources,)."""
    return source_tokens(np.zeros_like(source), source, tokens, 1, num_sources)[0]


def _step_of_all(
    window: Window, long: Int64, short: Int64, pieces: Pieces, config: PackingConfig
) -> Int64:
    """The step of each piece: long ones as found, short ones in stream order up to the filler."""
    step = np.empty(len(pieces), np.int64)
    step[long] = window.step
    tokens, source = pieces.tokens, pieces.source
    if not config.source_band:
        step[short] = _poured(tokens[short], window.filler, config)
        return step
    shares = _shared_filler(window, long, short, pieces)
    for number in range(shares.shape[1]):
        of_source = short[source[short] == number]
        step[of_source] = _poured(tokens[of_source], shares[:, number], config)
    return step


def _poured(tokens: Int64, filler: np.ndarray, config: PackingConfig) -> Int64:
    """The step of each short piece, in stream order, (pieces,).

    Each goes where its middle lies; then the crumbs among them once more, up to what the others
    leave, so that steps hold their filler to a crumb.
    """
    step = _by_middle(tokens, np.cumsum(filler))
    crumbs = tokens * CRUMB < config.context_length
    left = np.cumsum(filler - by_step(step[~crumbs], tokens[~crumbs], len(filler)))
    step[crumbs] = _by_middle(tokens[crumbs], np.maximum.accumulate(left))
    return step


def _by_middle(tokens: Int64, ends: np.ndarray) -> Int64:
    """The step in which the middle of each piece lies; `ends` are tokens up to each step's end."""
    middles = np.cumsum(tokens) - tokens // 2
    return np.searchsorted(ends, middles).clip(0, len(ends) - 1)


def _shared_filler(window: Window, long: Int64, short: Int64, pieces: Pieces) -> np.ndarray:
    """Filler of each source in each step, float64 (steps, sources).

    What brings each source closest to its share of the window, scaled in turn until steps hold
    their filler and sources spend theirs.
    """
    steps = len(window.filler)
    tokens, source = pieces.tokens, pieces.source
    sources = int(source.max()) + 1
    of_source = _by_source(source, tokens, sources)
    held = source_tokens(window.step, source[long], tokens[long], steps, sources)
    total = held.sum(axis=1) + window.filler
    least = 1e-9
    wanted = np.maximum(total[:, None] * (of_source / of_source.sum()) - held, least)
    spend = _by_source(source[short], tokens[short], sources)
    for _ in range(50):
        wanted *= (window.filler / np.maximum(wanted.sum(axis=1), least))[:, None]
        wanted *= spend / np.maximum(wanted.sum(axis=0), least)
    return wanted
