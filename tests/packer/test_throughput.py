"""How fast attention runs, by the shape of a chunk."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.reference_throughput as slow
from packer import throughput
from packer.context_parallel import kernels as cp_kernels
from packer.profile import Profile, Table, parse_profile
from packer.throughput import FLASH_ATTENTION_3, FLAT, PUBLISHED, TILE, Throughput
from packer.throughput_kernels import relative_throughput, weighted_area
from packer.workload import Workload
from tests.packer.test_workload_profile import document

PAGE = (Path(__file__).parents[2] / "docs" / "WORKLOAD.md").read_text(encoding="utf-8")
SMALL = Throughput(
    query_tokens=(100, 200), key_tokens=(100, 300), achieved=((2.0, 6.0), (4.0, 8.0))
)


def share(grid: Throughput, queries: int, keys: int) -> float:
    return relative_throughput(queries, keys, grid.table())


def weighted(grid: Throughput, area: int, queries: int, keys: int) -> int:
    return weighted_area(area, queries, keys, grid.table())


def test_a_cell_by_hand() -> None:
    assert share(SMALL, 100, 100) == 0.25
    assert share(SMALL, 100, 200) == 0.5
    assert share(SMALL, 150, 100) == 0.375
    assert share(SMALL, 150, 150) == 0.5
    assert share(SMALL, 200, 300) == 1.0
    assert weighted(SMALL, 300, 100, 100) == 1200
    assert weighted(SMALL, 1001, 100, 200) == 2002
    assert weighted(SMALL, 1, 150, 100) == 3  # 1 / 0.375 = 2.67


def test_outside_the_border_stays() -> None:
    assert share(SMALL, 1, 1) == 0.25
    assert share(SMALL, 1, 10_000) == share(SMALL, 100, 300)
    assert share(SMALL, 10_000, 10_000) == 1.0
    assert share(SMALL, 10_000, 200) == share(SMALL, 200, 200)


@pytest.mark.parametrize("area", [0, 1, 12_345, 2**52, 2**53 + 1])
def test_the_fastest_shapes_keep_their_area(area: int) -> None:
    assert weighted(FLAT, area, 17, 1000) == area
    assert weighted(SMALL, area, 200, 300) == area
    assert weighted(SMALL, area, 4096, 65_536) == area


@st.composite
def grids(draw: st.DrawFn) -> Throughput:
    sizes = st.lists(st.integers(1, 1 << 26), min_size=1, max_size=6, unique=True).map(sorted)
    query_tokens, key_tokens = draw(sizes), draw(sizes)
    row = st.lists(
        st.one_of(st.floats(1.0, 1024.0), st.sampled_from([1.0, 620.0])),
        min_size=len(key_tokens),
        max_size=len(key_tokens),
    )
    rows = draw(st.lists(row, min_size=len(query_tokens), max_size=len(query_tokens)))
    return Throughput(
        query_tokens=tuple(query_tokens),
        key_tokens=tuple(key_tokens),
        achieved=tuple(tuple(row) for row in rows),
    )


sizes = st.integers(1, 1 << 27)


@given(grid=grids(), queries=sizes, keys=sizes, area=st.integers(1, 1 << 51))
def test_the_kernels_are_their_slow_twin(
    grid: Throughput, queries: int, keys: int, area: int
) -> None:
    expected = slow.relative_throughput(grid, queries, keys)
    found = share(grid, queries, keys)
    assert math.isclose(found, expected, rel_tol=1e-11)
    lowest, highest = grid.relative.min(), grid.relative.max()
    assert lowest * (1 - 1e-12) <= found <= highest * (1 + 1e-12)
    work = weighted(grid, area, queries, keys)
    assert work >= area
    assert math.isclose(
        work, slow.weighted_area(grid, area, queries, keys), rel_tol=1e-11, abs_tol=0.5 + 1e-9
    )


@given(grid=grids())
def test_grid_points_are_met_exactly(grid: Throughput) -> None:
    for i, queries in enumerate(grid.query_tokens):
        for j, keys in enumerate(grid.key_tokens):
            assert share(grid, queries, keys) == grid.relative[i, j]


@given(grid=grids(), queries=sizes, keys=sizes)
def test_a_shape_is_between_the_corners_of_its_cell(
    grid: Throughput, queries: int, keys: int
) -> None:
    def around(points: tuple[int, ...], value: int) -> list[int]:
        below = [i for i, point in enumerate(points) if point <= value][-1:] or [0]
        return below + ([i for i, point in enumerate(points) if point >= value][:1] or below)

    corners = grid.relative[
        np.ix_(around(grid.query_tokens, queries), around(grid.key_tokens, keys))
    ]
    found = share(grid, queries, keys)
    assert corners.min() * (1 - 1e-12) <= found <= corners.max() * (1 + 1e-12)


@given(queries=st.integers(1, 1 << 17), before=st.integers(0, 1 << 17), more=st.integers(1, 4096))
def test_the_default_is_faster_with_more_keys_and_never_slower_than_its_corner(
    queries: int, before: int, more: int
) -> None:
    found = share(PUBLISHED, queries, queries + before)
    assert found <= share(PUBLISHED, queries, queries + before + more) * (1 + 1e-12)
    assert 204 / 621 <= found <= 1


def test_whole_pieces_of_the_default_are_the_published_figure() -> None:
    """Figure 5 (d) of FlashAttention-3, its pairs counted in whole tiles."""
    whole = {512: 365, 1024: 476, 2048: 554, 4096: 597, 8192: 611, 16_384: 621}
    for tokens, speed in whole.items():
        padded = cp_kernels.tile_area(0, tokens)
        assert round(FLASH_ATTENTION_3[tokens] * padded / (tokens * tokens / 2)) == speed
        assert share(PUBLISHED, tokens, tokens) == speed / 621


def test_pieces_between_published_lengths_run_between_them() -> None:
    for shorter, longer in ((128, 256), (256, 512), (512, 1024), (1024, 2048), (2048, 4096)):
        middle = (shorter + longer) // 2
        ends = share(PUBLISHED, shorter, shorter), share(PUBLISHED, longer, longer)
        found = share(PUBLISHED, middle, middle)
        assert sum(ends) / 2 < found < sum(ends) / 2 + 0.25 * (ends[1] - ends[0])


def test_time_of_a_query_tile_is_a_line_over_its_keys() -> None:
    """What lets figures of whole pieces speak for chunks: Figure 5 (c) and (d).

    Least squares of relative errors: a + b x keys, a over b being the keys that a tile's start and
    end are worth.
    """
    lengths = np.array(list(FLASH_ATTENTION_3))
    causal = np.array(list(FLASH_ATTENTION_3.values())) * (1 + TILE / lengths)
    not_causal = np.array([467, 565, 625, 638, 646, 648])
    for speed, keys, worth in ((causal, (lengths + TILE) / 2, 237), (not_causal, lengths, 209)):
        time = keys / speed
        basis = np.stack([1 / time, keys / time], axis=1)
        line = np.linalg.lstsq(basis, np.ones(len(keys)), rcond=None)[0]
        assert np.abs(basis @ line - 1).max() < 0.031
        assert round(line[0] / line[1]) == worth


def test_a_tail_runs_like_a_whole_piece_of_as_many_keys_a_tile() -> None:
    assert share(PUBLISHED, 4096, 8192) > share(PUBLISHED, 8192, 8192)  # 6208 and 4160 keys a tile
    assert share(PUBLISHED, 128, 16_384) == share(PUBLISHED, 16_384, 16_384) == 1.0
    assert share(PUBLISHED, 128, 128) < share(PUBLISHED, 128, 256) < share(PUBLISHED, 128, 4096)


def test_from_chunks_asks_for_what_can_be_measured_alone() -> None:
    asked = []

    def achieved(queries: int, keys: int) -> float:
        asked.append((queries, keys))
        return float(keys)

    grid = Throughput.from_chunks([1, 4, 16], [2, 8, 16, 64], achieved)
    assert asked == [
        *((1, 2), (1, 8), (1, 16), (1, 64)),
        *((4, 8), (4, 16), (4, 64)),
        *((16, 16), (16, 64)),
    ]
    assert grid.achieved[1] == (2.0, 8.0, 16.0, 64.0)
    assert grid.achieved[2] == (2.0, 8.0, 16.0, 64.0)
    late = Throughput.from_chunks([4, 16], [2, 16], achieved)
    assert late.achieved == ((16.0, 16.0), (16.0, 16.0))


def test_from_chunks_needs_keys_for_all_queries() -> None:
    with pytest.raises(ValueError, match=r"chunks of 32 queries .* key_tokens end at 16"):
        Throughput.from_chunks([8, 32], [8, 16], lambda _queries, _keys: 1.0)


def test_tiles_are_those_of_the_area() -> None:
    assert throughput.TILE == cp_kernels.TILE


@given(grid=grids())
def test_json_brings_it_back(grid: Throughput) -> None:
    assert Throughput.parse(json.loads(json.dumps(grid.as_dict()))) == grid


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": 1}, 'an object with the lists "query_tokens" and "key_tokens"'),
        ({"query_tokens": 5}, "query_tokens holds 5 in the place of a list"),
        ({"query_tokens": "12"}, "query_tokens holds '12' in the place of a list"),
        ({"query_tokens": [1, 2.5]}, "query_tokens holds 2.5; tokens must be whole numbers"),
        ({"query_tokens": [1, math.inf]}, "query_tokens holds inf; tokens must be whole"),
        ({"query_tokens": [1, True]}, "query_tokens holds True; it must hold numbers"),
        ({"query_tokens": [0, 1]}, "query_tokens must be positive .* but 0 follows 0"),
        ({"key_tokens": [5, 5]}, "key_tokens must be positive .* but 5 follows 5"),
        ({"key_tokens": []}, "key_tokens has 0 numbers; it must have 1 to 256"),
        ({"key_tokens": list(range(1, 258))}, "key_tokens has 257 numbers"),
        ({"key_tokens": [1, 2**26 + 1]}, "up to 67108865 tokens; at most 67108864"),
        ({"achieved": 3}, "achieved must be a list of lists"),
        ({"achieved": [1, 2]}, "achieved holds 1 in the place of a list"),
        ({"achieved": [[1, "2"], [1, 1]]}, "achieved holds '2'; it must hold numbers"),
        ({"achieved": [[1, 2]]}, "it needs 2 rows, as query_tokens, of 2, as key_tokens"),
        ({"achieved": [[1, 2], [3]]}, r"rows of \[1, 2\] numbers, 2 of them"),
        ({"achieved": [[1, 0], [1, 1]]}, "achieved holds 0.0; it must be above 0, finite"),
        ({"achieved": [[1, math.nan], [1, 1]]}, "achieved holds nan"),
        ({"achieved": [[1, math.inf], [1, 1]]}, "achieved holds inf"),
        ({"achieved": [[1, 10**400], [1, 1]]}, "achieved holds an integer beyond"),
        ({"key_tokens": [1, 10**400]}, "key_tokens holds an integer beyond"),
        ({"achieved": [[1, 1025], [1, 1]]}, "from 1.0 to 1025.0; .* 1024 times"),
    ],
)
def test_bad_grids_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Throughput.parse(SMALL.as_dict() | change)


def test_a_profile_may_have_it() -> None:
    found, _ = parse_profile(document(throughput=SMALL.as_dict()))
    assert found.throughput == SMALL
    assert Profile.from_tables(found.tables()) == found
    workload = Workload(crossover=None, profile=found)
    assert Workload.from_dict(json.loads(json.dumps(workload.as_dict()))) == workload
    without, _ = parse_profile(document())
    assert without.throughput is None
    assert set(without.tables()) == {"linear", "attention"}
    tokens = np.array([1, 1000, 100_000])
    plain = Workload(crossover=None, profile=without)
    assert plain.of(tokens).tolist() == workload.of(tokens).tolist()


@pytest.mark.parametrize("value", [None, {}, {"query_tokens": [1]}])
def test_a_profile_with_a_bad_one_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="throughput must be an object"):
        parse_profile(document(throughput=value))


def test_a_profile_made_without_it_has_none() -> None:
    table = Table(tokens=(1, 2), time=(1.0, 2.0))
    assert Profile(linear=table, attention=table).throughput is None


def test_the_page_has_the_defaults() -> None:
    rows = re.findall(r"^\| ([\d,]+) queries \| (.*) \|$", PAGE, re.MULTILINE)
    (keys,) = re.findall(r"^\| default \| (.*) keys \|$", PAGE, re.MULTILINE)
    sizes = [int(cell.replace(",", "")) for cell in keys.split(" | ")]
    assert tuple(sizes) == PUBLISHED.key_tokens
    assert tuple(int(name.replace(",", "")) for name, _ in rows) == PUBLISHED.query_tokens
    for (name, cells), row in zip(rows, PUBLISHED.achieved, strict=True):
        for cell, size, number in zip(cells.split(" | "), sizes, row, strict=True):
            measurable = size >= int(name.replace(",", ""))
            assert cell.strip() == (f"{number:.0f}" if measurable else "")
    sources = re.findall(r"^\| ([\d,]+) tokens \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert {int(name.replace(",", "")): int(flops) for name, flops, _ in sources} == (
        FLASH_ATTENTION_3
    )
    for name, _, padded in sources:
        i = PUBLISHED.query_tokens.index(int(name.replace(",", "")))
        assert PUBLISHED.achieved[i][i] == int(padded)
