"""Equation 1 of WLB-LLM over the steps of a window, as a mixed-integer program for HiGHS.

The paper's equation minimises the heaviest of all bins. Over several global batches that says
nothing, since the longest document alone decides it; here the heaviest bins of steps are summed:

    minimise    sum over steps t of M_t
    such that   every piece is in one bin
                the tokens of a bin are at most S
                the squares of the lengths in a bin of step t are at most M_t

which for one global batch is the equation itself. Pieces can be swapped between bins and bins
between steps without a difference, and hundreds of short ones make none one by one: so the longest
piece has its bin, steps are in order, and only the longest pieces are whole. The others may be
split over bins in the program, which makes its bound a bound of the whole problem as well; almost
none is, and those few are dealt out afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from packer.plan import Int64

WHOLE_PER_BIN = 4
"""The longest pieces, so many a bin on average, are whole in the program."""


class SolverMissing(ValueError):
    """The library that solves is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """What the solver found."""

    shares: np.ndarray
    """Of each piece in each bin, float64, (pieces, bins)."""
    bound: float
    """No assignment has a smaller sum of the steps' heaviest bins, in squared tokens."""
    at_limit: bool
    """The time was over before the gap was closed."""


def load_highs() -> Any:
    """The solver's module.

    Raises:
        SolverMissing: it is not installed.
    """
    try:
        return import_module("highspy")
    except ImportError:
        raise SolverMissing(
            "fixed_solver needs HiGHS, which is not installed; install the extra solver: "
            "pip install 'steelyard[solver]'"
        ) from None


def solve(
    tokens: Int64,
    start: Int64,
    *,
    num_micro_batches: int,
    num_steps: int,
    context_length: int,
    max_pieces: int,
    seconds: float,
    gap: float,
) -> Solution:
    """Improve an assignment.

    Args:
        tokens: of each piece, falling, (pieces,).
        start: the bin of each piece, step-major, the longest piece's first, the heaviest bins of
            the steps after the first falling, (pieces,).
        num_micro_batches: bins of a step.
        num_steps: of the window.
        context_length: S.
        max_pieces: of a bin; 0 for no bound.
        seconds: time limit.
        gap: relative gap at which to stop.
    """
    highspy = load_highs()
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", seconds)
    highs.setOptionValue("mip_rel_gap", gap)
    length = tokens / context_length  # squares as shares of the largest possible
    num_bins = num_micro_batches * num_steps
    highs.passModel(_model(highspy, length, num_micro_batches, num_steps, max_pieces))
    highs.setSolution(_point(highspy, length, start, num_micro_batches, num_steps))
    highs.run()
    info = highs.getInfo()
    values = np.array(highs.getSolution().col_value[: len(tokens) * num_bins])
    status = highs.getModelStatus()
    return Solution(
        shares=values.reshape(len(tokens), num_bins),
        bound=float(info.mip_dual_bound) * context_length**2,
        at_limit=status != highspy.HighsModelStatus.kOptimal,
    )


def _model(
    highspy: Any, length: np.ndarray, num_micro_batches: int, num_steps: int, max_pieces: int
) -> Any:
    """Columns: piece by bin, then M_t. Rows: pieces, room, work, the order of steps, counts."""
    pieces, bins = len(length), num_micro_batches * num_steps
    step_of_bin = np.arange(bins) // num_micro_batches
    piece = np.repeat(np.arange(pieces), bins)
    place = np.tile(np.arange(bins), pieces)
    share = np.arange(pieces * bins)
    heaviest = pieces * bins + np.arange(num_steps)
    later = np.arange(1, max(1, num_steps - 1))  # M_t >= M_(t+1) from the second step on
    first_room, first_work = pieces, pieces + bins
    first_order = first_work + bins
    first_count = first_order + len(later)
    entries = [  # rows, columns, values
        (piece, share, np.ones(pieces * bins)),
        (first_room + place, share, length[piece]),
        (first_work + place, share, length[piece] ** 2),
        (first_work + np.arange(bins), heaviest[step_of_bin], -np.ones(bins)),
        (first_order + later - 1, heaviest[later], -np.ones(len(later))),
        (first_order + later - 1, heaviest[(later + 1) % num_steps], np.ones(len(later))),
    ]
    if max_pieces:
        entries.append((first_count + place, share, np.ones(pieces * bins)))
    rows = first_count + (bins if max_pieces else 0)
    upper = np.zeros(rows)
    upper[:first_work] = 1.0
    upper[first_count:] = max_pieces
    lower = np.full(rows, -highspy.kHighsInf)
    lower[:pieces] = 1.0
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    by_column = np.argsort(column, kind="stable")
    columns = pieces * bins + num_steps
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, rows
    lp.col_cost_ = np.r_[np.zeros(pieces * bins), np.ones(num_steps)]
    fixed = np.zeros(columns)
    fixed[0] = 1.0  # the longest piece is in the first bin
    lp.col_lower_ = fixed
    lp.col_upper_ = np.ones(columns)
    lp.row_lower_, lp.row_upper_ = lower, upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(column[by_column], np.arange(columns + 1))
    lp.a_matrix_.index_ = row[by_column]
    lp.a_matrix_.value_ = value[by_column]
    whole = min(pieces, WHOLE_PER_BIN * bins) * bins
    kinds = [highspy.HighsVarType.kInteger] * whole
    lp.integrality_ = kinds + [highspy.HighsVarType.kContinuous] * (columns - whole)
    return lp


def _point(
    highspy: Any, length: np.ndarray, start: Int64, num_micro_batches: int, num_steps: int
) -> Any:
    """The assignment to start from, in the model's columns."""
    bins = num_micro_batches * num_steps
    shares = np.zeros((len(length), bins))
    shares[np.arange(len(length)), start] = 1.0
    work = np.bincount(start, length**2, bins).reshape(num_steps, num_micro_batches)
    solution = highspy.HighsSolution()
    solution.col_value = [*shares.ravel().tolist(), *work.max(axis=1).tolist()]
    return solution
