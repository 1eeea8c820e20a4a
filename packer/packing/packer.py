"""The front door of packing: a stream of pieces in, whole steps out.

A policy sees its backlog and what is new; it never sees how the stream was cut into chunks, and the
steps do not depend on that. What is kept between two chunks is a `Backlog`: pieces that no step
holds yet, never more than the displacement bound allows, plus the last chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import cast

import numpy as np

from packer.packing.backlog import Backlog, Filled, Improver, Policy, Solved, Stop
from packer.packing.config import PackingConfig
from packer.plan import Pieces, Steps
from packer.workload import LONGEST_PIECE, Workload

_MODULES = {
    "concat": "packer.packing.concat",
    "reorder": "packer.packing.reorder",
    "wlb": "packer.packing.wlb",
    "lookahead": "packer.packing.lookahead",
    "wlb_printed": "packer.packing.printed",
    "fixed_greedy": "packer.packing.fixed",
    "fixed_solver": "packer.packing.fixed_solver",
    "ffd": "packer.packing.by_length:first_fit",
    "bfd": "packer.packing.by_length:best_fit",
    "karmarkar_karp": "packer.packing.karmarkar_karp",
}
"""Where each policy is: a module, and its function unless that is `fill`."""
_IMPROVERS = {"lookahead": "packer.packing.lookahead:improved"}
"""The improver of each policy that has one."""
POLICIES = ("concat", "reorder", "wlb", "lookahead", "fixed_greedy")
"""Policies that keep every law."""
SIMULATED = tuple(_MODULES)
"""Those, and what runs in simulations only."""
MOST_STEP_WORK = 1 << 54
"""Bound on a step's workload, so that 64 bits hold it in the units of the clock too."""

Search = Callable[[Callable[[Steps], Steps], Iterable[Steps]], Iterable[Steps]]
"""Maps a function over windows of steps and gives the results in their order, as `map` does.

It may take some windows ahead and call the function anywhere: it and the windows can be pickled.
"""


class PackingError(ValueError):
    """No plan within the bounds; the message says which bound is in the way."""


class IntakeTooLarge(PackingError):
    """Steps cannot hold the A tokens that they take in.

    `sustainable` is what they did hold: start again with an intake of at most that.
    """

    def __init__(self, message: str, sustainable: int) -> None:
        super().__init__(message)
        self.sustainable = sustainable


def policy_of(name: str) -> Policy:
    """The policy of that name; its module, and with it numba, is loaded here.

    Raises:
        PackingError: there is no such policy.
    """
    if name not in _MODULES:
        raise PackingError(f"no packing policy {name!r}; known are {', '.join(_MODULES)}")
    return cast(Policy, _load(_MODULES[name]))


def _improver_of(name: str) -> Improver | None:
    return cast(Improver, _load(_IMPROVERS[name])) if name in _IMPROVERS else None


def _load(place: str) -> object:
    module, _, function = place.partition(":")
    return getattr(import_module(module), function or "fill")


def sustainable_intake(backlog: Backlog, config: PackingConfig) -> tuple[int, int]:
    """What steps held since intake last kept pace, and the intake to try next.

    That is what they held, but no less than three quarters of the last at once, since a few lean
    steps say little, and at least a hundredth less.
    """
    held = config.intake_tokens
    if backlog.window_steps:
        held = backlog.window_tokens // backlog.window_steps
    tokens = config.intake_tokens
    lower = tokens * 3 // 4
    return held, min(max(held, lower), tokens * 99 // 100) if held < tokens else lower


def _check_work(config: PackingConfig, workload: Workload) -> None:
    """Refuse steps whose workload may leave 64 bits: every slot full of the longest pieces."""
    longest = min(config.context_length, LONGEST_PIECE)
    pieces = -(-config.max_tokens // longest)
    slot = pieces * int(workload.of(np.array([longest]))[0]) + workload.constant
    if config.num_micro_batches * slot >= MOST_STEP_WORK:
        raise PackingError(
            f"{config.num_micro_batches} micro-batches of up to {config.max_tokens} tokens, in "
            f"pieces of up to {config.context_length}, may have a workload of "
            f"{config.num_micro_batches * slot} together; 64 bits allow less than "
            f"{MOST_STEP_WORK}: lower num_micro_batches, max_tokens or context_length"
        )


class Packer:
    """Feeds a policy pieces in stream order, any chunking, and hands back whole steps.

    Args:
        policy: one of `SIMULATED`.
        config: the bounds; `intake_tokens` is A.
        workload: what a piece costs.
        first_step: number of the segment's first step.
        search: maps the search of a window over the windows of `lookahead`; no other policy uses
            it, and no result depends on it.

    Raises:
        PackingError: no such policy, or bounds under which a step's workload leaves 64 bits.

    Example:
        >>> config = PackingConfig(num_micro_batches=1, context_length=4, max_tokens=4)
        >>> packer = Packer("concat", config, Workload(crossover=1))
        >>> packer.push(Pieces.from_lengths(np.array([3, 2])), final=True).num_steps
        1
        >>> packer.tail.tokens
        array([1])
    """

    def __init__(
        self,
        policy: str,
        config: PackingConfig,
        workload: Workload,
        *,
        first_step: int = 0,
        search: Search = map,
    ) -> None:
        _check_work(config, workload)
        self._fill = policy_of(policy)
        self._improver = _improver_of(policy)
        self._search = search
        self._config = config
        self._workload = workload
        self._first_step = first_step
        self._backlog = Backlog.start()
        self._ended = False
        self.solved: tuple[Solved, ...] = ()
        """What a policy that uses a solver says of its windows so far."""

    def push(self, pieces: Pieces, *, final: bool = False) -> Steps | None:
        """Take the stream's next pieces; hand back the steps that can now be made.

        Args:
            pieces: the pieces that follow those of the last call.
            final: the stream ends with them.

        Returns:
            The steps, numbered on from those of the last call, or None if there is none yet.

        Raises:
            IntakeTooLarge: steps cannot hold the intake; lower it and start again.
            PackingError: no plan within the bounds.
            ValueError: not the next pieces of the stream, or pieces of a length not allowed.
        """
        made = list(self._improved(self._made(pieces, final)))
        return Steps.concatenate(made) if made else None

    def steps_of(self, chunks: Iterable[Pieces]) -> Iterator[Steps]:
        """The steps of a whole stream that comes in chunks, as they can be made.

        A search may take windows ahead, of later chunks too; `tail` is behind what it took.

        Raises:
            PackingError: as `push`.
        """

        def made() -> Iterator[Steps]:
            for pieces in chunks:
                yield from self._made(pieces, False)
            yield from self._made(Pieces.empty(), True)

        return self._improved(made())

    @property
    def tail(self) -> Pieces:
        """What no step holds, in stream order; after `final` that is less than a step."""
        return self._backlog.pieces

    def _made(self, pieces: Pieces, final: bool) -> Iterator[Steps]:
        """What the policy makes of the stream's next pieces, counted from the segment's start."""
        self._check(pieces)
        self._ended = final
        self._backlog = replace(
            self._backlog,
            pieces=Pieces.concatenate([self._backlog.pieces, pieces]),
            stream_tokens=self._backlog.stream_tokens + int(pieces.tokens.sum()),
        )
        again = True
        while again:
            filled = self._fill(self._backlog, self._config, self._workload, final)
            again, self._backlog = filled.again, filled.backlog
            self.solved += filled.solved
            if filled.stop is not Stop.MORE:
                self._ended = True
                raise self._refusal(filled)
            if filled.steps is not None:
                yield filled.steps

    def _improved(self, made: Iterator[Steps]) -> Iterator[Steps]:
        """Steps at their best, numbered as they will stand."""
        found: Iterable[Steps] = made
        if self._improver is not None:
            improve = partial(self._improver, config=self._config, workload=self._workload)
            found = self._search(improve, made)
        for steps in found:
            yield replace(steps, first_step=self._first_step + steps.first_step)

    def _check(self, pieces: Pieces) -> None:
        if self._ended:
            raise ValueError("pieces pushed after the final ones; use a new Packer")
        if not len(pieces):
            return
        tokens = pieces.tokens
        longest, shortest = int(tokens.max()), int(tokens.min())
        if longest > self._config.context_length or shortest < 1:
            found = longest if longest > self._config.context_length else shortest
            raise ValueError(
                f"a piece of {found} tokens; pieces have 1 to context_length "
                f"{self._config.context_length} tokens, cut longer documents first"
            )
        ends = pieces.position + tokens
        before = self._backlog.stream_tokens
        if pieces.position[0] != before or np.any(pieces.position[1:] != ends[:-1]):
            raise ValueError(
                f"pieces do not follow the {before} stream tokens before them end to "
                "end; push them in stream order with their positions"
            )

    def _refusal(self, filled: Filled) -> PackingError:
        config, backlog = self._config, filled.backlog
        step = self._first_step + backlog.step
        if filled.stop is Stop.EMPTY:
            return PackingError(f"the policy leaves a micro-batch of step {step} empty")
        if filled.stop is Stop.EARLY:
            return PackingError(
                f"step {step} needs {config.num_micro_batches} pieces and would run one more than "
                f"max_displacement {config.max_displacement} steps before its arrival (a step "
                f"takes in {config.intake_tokens} tokens); raise max_displacement, max_pieces or "
                "max_tokens, or lower num_micro_batches"
            )
        held, sustainable = sustainable_intake(backlog, config)
        bound = f"max_tokens {config.max_tokens}"
        if config.max_pieces:
            bound += f" or max_pieces {config.max_pieces}"
        found = (
            f"at step {step} pieces wait {backlog.step - backlog.intake} steps for their intake"
            if filled.stop is Stop.LAG
            else f"at step {step} a piece exceeds max_displacement {config.max_displacement}"
        )
        message = (
            f"{found}: steps take in {config.intake_tokens} tokens and held {held}; lower the "
            f"intake to {sustainable}, or raise {bound}"
        )
        if sustainable < config.num_micro_batches:
            return PackingError(message)
        return IntakeTooLarge(message, sustainable)
