"""`fixed_greedy`: Fixed-Len-Greedy of WLB-LLM (arXiv 2503.17924), its baseline of fixed length.

Micro-batches of at most S tokens, whatever S_max is. The stream is cut at every S tokens, as a
loader of fixed-length sequences cuts it, and the pieces of `global_batches` steps are dealt anew
over the bins of these steps: each to the bin of least attention work, the square of its length as
in the paper's equation 1, that has room. What fits no bin goes first into the next window. Bins of
like workload make a step together, and a window's steps run in order of the mean arrival of their
tokens.

The paper prints neither the order in which it places, nor what becomes of what fits nowhere, nor
which bins make a step. What is chosen, by its Table 2 (mean over steps of max over mean at N = 4
and 1 2 4 8 global batches: 1.41 1.22 1.11 1.08, and 1.44 for the stream as it is; means over seeds
0 to 4, 1,600 steps each, of `fig3`, where the stream has 1.40, and of `fig3_stream`, 1.46):

- Pieces of more than S / 8 first, the longest first, then the others in order of the stream: 1.384
  1.214 1.111 1.058, and 1.451 1.249 1.125 1.062. With the line at S / 4 the first is 1.397, at
  S / 16 1.376. The paper shuffles, but all in order of the stream (1.399 1.217 1.114 1.059) a long
  piece finds no room at the end of a window; half a step waits, and where full windows are many,
  ever more.
- `longest_first` sorts the short ones as well: 1.367 1.203 1.105 1.054, and 1.437 1.239 1.120
  1.059. It balances better and leaves a thousandth of what the other leaves.
- Bins of like workload make a step. All the gain of many global batches comes from that: the same
  bins dealt over the steps at random stay at 1.38.
- The square of the length is balanced. With the whole workload figures differ by 0.003 at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from packer.packing import kernels, kernels_fixed
from packer.packing.backlog import Backlog, Filled, Stop
from packer.packing.config import PackingConfig
from packer.packing.greedy import (
    MANY_STEPS,
    limits_of,
    rest_of,
    start_state,
    steps_of,
    with_room,
)
from packer.plan import Int64, Pieces
from packer.workload import Workload


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole windows that a backlog allows; see `packer.packing.backlog.Policy`.

    At the stream's end a window may have fewer steps.
    """
    backlog = with_borders(backlog, config.context_length)
    windows = pack_windows(
        backlog, config, workload, final=final, longest_first=config.longest_first
    )
    return windows.filled(backlog, config, workload)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """What the kernel made of a backlog, before it is a plan."""

    row: Int64
    """Of each piece of the backlog, -1 where none holds it, (pieces,)."""
    row_work: Int64
    """Of each row, without the constant, (rows,)."""
    hand: Int64
    """Pieces taken in that no row holds, in the first state[HAND] places, (pieces,)."""
    state: Int64
    """As in `kernels`."""
    stop: Stop

    def filled(self, backlog: Backlog, config: PackingConfig, workload: Workload) -> Filled:
        """The steps, and the backlog without their pieces."""
        work = self.row_work + workload.constant
        nothing = np.empty(0, np.int64)
        return Filled(
            steps=steps_of(backlog.pieces, self.row, work, backlog.step, config),
            backlog=rest_of(backlog, self.row, self.hand, nothing, self.state),
            stop=self.stop,
        )


def pack_windows(
    backlog: Backlog,
    config: PackingConfig,
    workload: Workload,
    *,
    final: bool,
    longest_first: bool,
    max_steps: int = MANY_STEPS,
) -> Windows:
    """Run the kernel.

    Args:
        backlog: its pieces cut at the borders.
        config: the bounds.
        workload: what a piece costs.
        final: the stream ends with the backlog.
        longest_first: place by falling length, but first what waited.
        max_steps: no window begins after so many steps.
    """
    tokens = backlog.pieces.tokens
    hand, state = with_room(backlog.hand, len(tokens)), start_state(backlog, tokens)
    limits = limits_of(config, 1, max_steps)
    limits[kernels.MAX_TOKENS] = config.context_length
    row, row_work, stop = kernels_fixed.fixed_steps(
        tokens,
        tokens * tokens,
        workload.of(tokens),
        backlog.pieces.position // config.intake_tokens,
        hand,
        limits,
        state,
        final,
        config.global_batches,
        longest_first,
    )
    return Windows(row=row, row_work=row_work, hand=hand, state=state, stop=Stop(int(stop)))


def with_borders(backlog: Backlog, context_length: int) -> Backlog:
    """The backlog with what is not taken in yet cut at every multiple of S stream tokens."""
    taken = backlog.pieces.take(slice(0, backlog.num_taken))
    new = cut_at_borders(backlog.pieces.take(slice(backlog.num_taken, None)), context_length)
    return replace(backlog, pieces=Pieces.concatenate([taken, new]))


def cut_at_borders(pieces: Pieces, context_length: int) -> Pieces:
    """Pieces cut wherever the stream passes a multiple of S tokens.

    Example:
        >>> cut_at_borders(Pieces.from_lengths(np.array([3, 4, 9])), 4).tokens
        array([3, 1, 3, 1, 4, 4])
    """
    start, stop = pieces.position, pieces.position + pieces.tokens
    first = start // context_length
    parts = (stop - 1) // context_length - first + 1
    piece = np.repeat(np.arange(len(pieces)), parts)
    number = np.arange(len(piece)) - np.repeat(np.cumsum(parts) - parts, parts)
    border = (first[piece] + number) * context_length
    whole = pieces.take(piece)
    begin = np.maximum(border, start[piece])
    end = np.minimum(border + context_length, stop[piece])
    return replace(
        whole,
        doc_start=whole.doc_start + begin - whole.position,
        doc_stop=whole.doc_start + end - whole.position,
        position=begin,
    )
