"""The best plan of a tiny micro-batch, by trying all of them: what `mixed` is measured against."""

from __future__ import annotations

from collections.abc import Sequence

from packer.context_parallel.kernels import TILE


def least_slowest_area(piece_tiles: Sequence[int], cp_size: int) -> int:
    """Tile-padded area of the slowest rank under the best plan that is cut at tiles of 128.

    Every query tile goes to any rank; ranks hold equally many. Branch and bound over tiles, the
    dearest first: some million plans at most for 16 tiles.

    Args:
        piece_tiles: length of each piece in tiles.
        cp_size: ranks; must divide the tiles.

    Returns:
        Query-key pairs.

    Raises:
        ValueError: tiles that ranks cannot hold equally many of.
    """
    rows = sorted((row + 1 for tiles in piece_tiles for row in range(tiles)), reverse=True)
    if len(rows) % cp_size:
        raise ValueError(f"{len(rows)} tiles do not divide over {cp_size} ranks")
    even = -(-sum(rows) // cp_size)
    best = [sum(rows) + 1]
    loads, room = [0] * cp_size, [len(rows) // cp_size] * cp_size

    def place(index: int) -> None:
        if index == len(rows):
            best[0] = min(best[0], max(loads))
            return
        tried = set()
        for rank in range(cp_size):
            state = (loads[rank], room[rank])
            if best[0] == even:
                return
            if room[rank] == 0 or state in tried or loads[rank] + rows[index] >= best[0]:
                continue
            tried.add(state)
            loads[rank] += rows[index]
            room[rank] -= 1
            place(index + 1)
            loads[rank] -= rows[index]
            room[rank] += 1

    place(0)
    return best[0] * TILE * TILE
