"""What a plan says it costs: tiles, predicted work, and the measures of balance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.context_parallel import STRATEGIES
from packer.context_parallel.kernels import tile_area
from packer.context_parallel.measures import CPMeter
from packer.workload import SCALE, Span, Workload
from tests import reference_cp as slow
from tests.packer.small_cp_plans import balance, chunks, plan, ragged


def test_tiles_begin_at_the_chunk_and_are_padded_to_128_keys() -> None:
    assert tile_area(0, 1) == 128 * 128
    assert tile_area(0, 128) == 128 * 128
    assert tile_area(0, 129) == 128 * (128 + 256)
    # Rows 100..227 end in key tile 2, rows 228..299 in key tile 3.
    assert tile_area(100, 300) == 128 * (256 + 384)
    assert tile_area(127, 129) == 128 * 256


def test_predicted_work_is_tokens_plus_attention_in_units_of_workload() -> None:
    # At cp 2 rank 0 has tokens 0..255 and 768..1023, rank 1 the middle 512.
    got = plan([[1024]], 2, "per_document", Workload(crossover=4096))
    outer = 128 * (128 + 256) + 128 * (896 + 1024)
    middle = 128 * (384 + 512 + 640 + 768)
    assert outer == middle  # aligned to tiles, the mirrored pair is exactly even
    assert got.predicted.tolist() == [[SCALE * 512 + 2 * SCALE * outer // 4096] * 2]
    # Together they are what the piece costs, but for the tiles on the diagonal.
    whole = int(Workload(crossover=4096).of(np.array([1024]))[0])
    assert whole < got.predicted.sum() < 1.05 * whole


WINDOWED = Workload(crossover=8192, spans=(Span(mask="window", tokens=512, crossover=1024),))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "workload",
    [WINDOWED, replace(WINDOWED, crossover=None), Workload(crossover=None)],
    ids=["windows and all", "windows", "no attention"],
)
def test_predicted_work_of_any_model_adds_up_to_its_pieces(
    strategy: str, workload: Workload
) -> None:
    rows = [[16_384], [4096] * 8, [64, 8192, 100, 3000]]
    got = plan(rows, 4, strategy, workload)
    for predicted, pieces in zip(got.predicted, rows, strict=True):
        whole = int(workload.of(np.array(pieces)).sum())
        assert whole <= predicted.sum() + 4 <= 1.1 * whole
    if workload.crossover is None and not workload.spans:
        assert np.all(got.predicted % SCALE == 0)  # tokens and nothing else


def test_a_micro_batch_is_predicted_by_its_own_pieces() -> None:
    rows = [[16_384], [512] * 32]
    together = plan(rows, 2, "per_document", WINDOWED).predicted
    for row, pieces in enumerate(rows):
        alone = plan([pieces], 2, "per_document", WINDOWED).predicted[0]
        assert together[row].tolist() == alone.tolist()


def test_measures_of_a_plan_that_can_be_worked_out_by_hand() -> None:
    # Of 512 tokens rank 0 takes the first and the last 128, rank 1 the 256 in the middle.
    rows = [[256, 256]]
    got = plan(rows, 2, "per_sequence")
    assert chunks(got, 0) == [(0, 0, 0, 128), (0, 1, 128, 256), (1, 0, 128, 256), (1, 1, 0, 128)]
    tile = 128 * 128
    found = balance(rows, got)
    assert found.cp_attention == (1 + 2) * tile / (2 * 3 * tile / 2) == 1.0
    assert found.cp_tokens == 1.0
    assert found.tile_waste == 6 * tile / (2 * 256 * 257 / 2)
    assert found.kv_cut == 1.0
    # Rank 0 lacks the first half of piece 1, rank 1 of piece 0; an all-gather brings 512.
    assert found.kv_needed == (128 + 128) / 512


def test_sums_are_divided_not_ratios_averaged() -> None:
    rows = [[4000], [10, 10, 2000]]
    both = plan(rows, 4, "per_sequence")
    meter = CPMeter()
    for row in range(2):
        meter.add(both.rows(row, row + 1), *ragged(rows[row : row + 1]))
    assert meter.result() == balance(rows, both)
    separate = [balance(rows[i : i + 1], both.rows(i, i + 1)).cp_attention for i in range(2)]
    assert min(separate) < meter.result().cp_attention < max(separate)
    assert meter.result().cp_attention != sum(separate) / 2


@given(start=st.integers(0, 5000), tokens=st.integers(1, 3000))
@settings(deadline=None)
def test_area_of_tiles_equals_the_loop_over_tiles(start: int, tokens: int) -> None:
    assert tile_area(start, start + tokens) == slow.tile_area(start, start + tokens)
