"""Slow twins of workload models: pairs counted one by one."""

from __future__ import annotations

from fractions import Fraction

from packer.workload import Span


def double_pairs(mask: str, tokens: int, length: int) -> int:
    """Twice the query-key pairs of a piece; a query's own key counts half, as the one that has
    just left its window does, so that pairs are areas.
    """
    doubled = 0
    for query in range(length):
        for key in range(query + 1):
            seen = {
                "full": True,
                "window": query - key <= tokens,
                "chunk": query // tokens == key // tokens,
            }[mask]
            edge = query == key or (mask == "window" and query - key == tokens)
            doubled += seen * (1 if edge else 2)
    return doubled


def workload(length: int, crossover: int | None, spans: tuple[Span, ...]) -> int:
    """In 1/256 of a linear-token equivalent, each kind of layer to the nearest, halves up."""
    kinds = [(span.mask, span.tokens, span.crossover) for span in spans]
    kinds += [("full", length, crossover)] if crossover is not None else []
    work = 256 * length
    for mask, tokens, scale in kinds:
        share = Fraction(256 * double_pairs(mask, tokens, length), scale)
        work += int(share + Fraction(1, 2))
    return work
