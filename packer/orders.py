"""Which slots a rank runs, and in which order: rules that every rank follows alike.

A step's slots stand in non-increasing workload and are dealt to the data-parallel ranks back and
forth, so micro-batch 0 of a rank is its heaviest. A rule permutes these numbers and knows only how
many there are; so every rank of any cluster comes to the same without being told.

Why another order than heaviest first: while a pipeline fills, its later ranks wait for the first
micro-batches, and while it drains, its earlier ranks wait for the last. Light ones there make the
waiting short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

AUTO = "auto"
"""Stands for the rule that a plan's clock likes best."""
LIGHT = (1, 2, 4, 8, 16)
"""Numbers of light micro-batches that rules set apart."""


def identity(num: int) -> list[int]:
    """Heaviest first: 0 1 2 3 4 5."""
    return list(range(num))


def middle(num: int) -> list[int]:
    """Heaviest in the middle, lighter ones on both sides in turn: 5 3 1 0 2 4."""
    return [*reversed(range(1, num, 2)), *range(0, num, 2)]


def light_first(num: int, *, light: int) -> list[int]:
    """The `light` lightest, lightest first, then the others, heaviest first: 5 4 0 1 2 3."""
    heavy = max(num - light, 0)
    return [*reversed(range(heavy, num)), *range(heavy)]


def light_last(num: int, *, light: int) -> list[int]:
    """All but the `light` lightest, lightest first, then these, heaviest first: 3 2 1 0 4 5."""
    heavy = max(num - light, 0)
    return [*reversed(range(heavy)), *range(heavy, num)]


ORDERS: dict[str, Callable[[int], list[int]]] = {
    "identity": identity,
    "middle": middle,
    **{f"light_first_{light}": partial(light_first, light=light) for light in LIGHT},
    **{f"light_last_{light}": partial(light_last, light=light) for light in LIGHT},
}
"""From the number of micro-batches of a rank to their order, by name; docs/FORMAT.md has them."""


def run_order(rule: str, num: int) -> list[int]:
    """The micro-batches of a rank, by number, in the order in which it runs them.

    Raises:
        ValueError: no such rule.

    Example:
        >>> run_order("light_first_2", 6)
        [5, 4, 0, 1, 2, 3]
    """
    check_rule(rule)
    return ORDERS[rule](num)


def check_rule(rule: str) -> None:
    """Refuse a name that is no rule's.

    Raises:
        ValueError: no such rule.
    """
    if rule not in ORDERS:
        raise ValueError(f"no micro_batch_order {rule!r}; known: {', '.join(ORDERS)}")


def slot_of(*, micro_batch: int, dp_rank: int, dp_size: int) -> int:
    """The slot that a data-parallel rank runs as its given micro-batch.

    Ranks are dealt the slots back and forth, so that at every `dp_size` they run like with like
    and their sums are even.

    Example:
        >>> [slot_of(micro_batch=i, dp_rank=0, dp_size=4) for i in range(4)]
        [0, 7, 8, 15]
    """
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank {dp_rank} is not in 0..{dp_size - 1}")
    place = dp_rank if micro_batch % 2 == 0 else dp_size - 1 - dp_rank
    return micro_batch * dp_size + place


def slots_of_rank(rule: str, *, dp_rank: int, dp_size: int, num: int) -> list[int]:
    """The slots that a data-parallel rank runs, in order.

    Args:
        rule: of `ORDERS`.
        dp_rank: 0 <= dp_rank < dp_size.
        dp_size: data-parallel ranks.
        num: micro-batches of a rank.

    Example:
        >>> slots_of_rank("light_first_1", dp_rank=0, dp_size=4, num=4)
        [15, 0, 7, 8]
    """
    return [
        slot_of(micro_batch=index, dp_rank=dp_rank, dp_size=dp_size)
        for index in run_order(rule, num)
    ]
