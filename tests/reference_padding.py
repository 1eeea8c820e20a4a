"""Slow twin of the padded layout: piece by piece, token by token."""

from collections.abc import Sequence

from tests.micro_batches import Chunk

Place = tuple[str, int, int]
"""("token", piece, place in it) or ("pad", number among the micro-batch's pads, place in piece)."""


def padded_pieces(lengths: Sequence[int], multiple: int) -> list[list[Place]]:
    """Every piece with pads at its end, up to a multiple; pads are numbered piece by piece."""
    pieces: list[list[Place]] = []
    pads = 0
    for piece, length in enumerate(lengths):
        places: list[Place] = [("token", piece, i) for i in range(length)]
        while len(places) % multiple:
            places.append(("pad", pads, len(places)))
            pads += 1
        pieces.append(places)
    return pieces


def rank_places(lengths: Sequence[int], cp_size: int, multiple: int) -> list[list[list[Place]]]:
    """What each rank holds of each piece: of 2 x cp_size equal chunks the r-th from each end."""
    ranks: list[list[list[Place]]] = [[] for _ in range(cp_size)]
    for places in padded_pieces(lengths, multiple):
        size = len(places) // (2 * cp_size)
        cut = [places[i * size : (i + 1) * size] for i in range(2 * cp_size)]
        for rank in range(cp_size):
            ranks[rank].append(cut[rank] + cut[2 * cp_size - 1 - rank])
    return ranks


def padded_head_tail(lengths: Sequence[int], cp_size: int, multiple: int) -> list[Chunk]:
    """The plan's chunks in its order: a rank's runs of tokens and of pads, as they lie there."""
    chunks: list[Chunk] = []
    for rank, pieces in enumerate(rank_places(lengths, cp_size, multiple)):
        for places in pieces:
            run: list[int] = []
            for kind, number, place in places:
                piece, at = (number, place) if kind == "token" else (-1, number)
                if run and run[1] == piece and run[3] == at:
                    run[3] = at + 1
                else:
                    if run:
                        chunks.append((run[0], run[1], run[2], run[3]))
                    run = [rank, piece, at, at + 1]
            chunks.append((run[0], run[1], run[2], run[3]))
    return chunks
