"""Baselines and the packers of others: small enough to check by hand, and the paper's Table 2."""

from __future__ import annotations

import sys
from statistics import mean

import numpy as np
import pytest

from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.packer import PackingError, policy_of
from packer.packing.whole import Packing, pack
from packer.plan import Pieces, Steps
from packer.simulate import simulate
from packer.window_lengths import fig3_stream_lengths
from packer.workload import Workload
from tests.packer.small_plans import SQUARE, lengths_of

S = 131_072


def packed(policy: str, lengths: list[int], **bounds: object) -> Packing:
    settings = {"num_micro_batches": 2, "context_length": 8, "max_tokens": 16} | bounds
    config = PackingConfig(**settings)  # pyright: ignore
    return pack(policy, Pieces.from_lengths(np.array(lengths)), config, SQUARE)


def squares(steps: Steps) -> int:
    """The sum over steps of the largest sum of squares."""
    rows = np.add.reduceat(steps.pieces.tokens**2, steps.row_offsets[:-1])
    return int(rows.reshape(-1, steps.num_micro_batches).max(axis=1).sum())


class TestFixedGreedy:
    def test_bins_hold_s_tokens_whatever_s_max_is(self) -> None:
        # 8 alone; the rest, 4 3 1, beside it; S_max 16 would hold both
        packing = packed("fixed_greedy", [4, 3, 1, 8])
        assert lengths_of(packing.steps) == [[[8], [4, 3, 1]]]

    def test_documents_are_cut_where_the_stream_passes_s_tokens(self) -> None:
        # positions 0 to 5, 5 to 8 | 8 to 14, 14 to 16: the 9 and the 5 are cut, nothing else
        packing = packed("fixed_greedy", [5, 8, 5])
        assert packing.steps is not None
        pieces = packing.steps.pieces
        cut = sorted(zip(pieces.doc_id, pieces.doc_start, pieces.doc_stop, strict=True))
        assert cut == [(0, 0, 5), (1, 0, 3), (1, 3, 8), (2, 0, 3)]
        assert packing.tail.doc_start.tolist() == [3]
        assert packing.tail.num_targets.tolist() == [1]

    def test_two_global_batches_bring_like_sequences_together(self) -> None:
        # each step has one full document; dealt out together they make a step of two
        lengths = [8, 4, 4, 8, 4, 4]
        apart = packed("fixed_greedy", lengths)
        assert lengths_of(apart.steps) == [[[8], [4, 4]], [[8], [4, 4]]]
        together = packed("fixed_greedy", lengths, global_batches=2)
        assert lengths_of(together.steps) == [[[8], [8]], [[4, 4], [4, 4]]]
        assert together.steps is not None
        assert together.steps.pieces.position.tolist() == [0, 16, 8, 24, 12, 28]

    def test_what_fits_no_bin_waits_and_goes_first_among_its_kind(self) -> None:
        # 8 7 and 8 7 leave a token each, so the 2 waits; beside the 14 it goes before the new 2
        lengths = [8, 8, 7, 7, 2, 14, 2, 16]
        packing = packed("fixed_greedy", lengths, context_length=16)
        assert lengths_of(packing.steps) == [[[8, 7], [8, 7]], [[16], [2, 14]]]
        assert packing.steps is not None
        assert packing.steps.pieces.position[-2:].tolist() == [30, 32]
        assert packing.tail.position.tolist() == [46]

    def test_too_many_global_batches_for_the_displacement_bound_are_refused(self) -> None:
        with pytest.raises(ValueError, match="raise max_displacement to 17"):
            packed("fixed_greedy", [8], global_batches=9)


class TestOthers:
    def test_first_and_best_fit_differ_where_a_later_bin_is_fuller(self) -> None:
        # 15 leaves 5 of 20 tokens, 13 leaves 7 and with the 6 one; the 1 fits both
        bounds = {"context_length": 16, "max_tokens": 20}
        first = packed("ffd", [15, 13, 6, 1], **bounds)
        assert lengths_of(first.steps) == [[[15, 1], [13, 6]]]
        best = packed("bfd", [15, 13, 6, 1], **bounds)
        assert lengths_of(best.steps) == [[[15], [13, 6, 1]]]

    def test_bins_left_over_are_packed_again(self) -> None:
        # windows of 24 tokens: 7 8 3 6 fill three bins of 12, the third waits: 6, then 6 6
        bounds = {"max_tokens": 12, "intake_tokens": 24}
        packing = packed("ffd", [7, 8, 3, 6, 6, 8, 8], **bounds)
        assert lengths_of(packing.steps) == [[[8, 3], [7]], [[8], [8]]]
        assert packing.tail.tokens.tolist() == [6, 6]

    def test_differencing_is_even_where_the_greedy_is_not(self) -> None:
        # the textbook's 8 7 6 5 4: differencing leaves 2 of 30 (16, 14), the greedy 4 (17, 13)
        linear = Workload(crossover=1 << 26)
        config = PackingConfig(num_micro_batches=2, context_length=15, max_tokens=15)
        pieces = Pieces.from_lengths(np.array([8, 7, 6, 5, 4]))
        packing = pack("karmarkar_karp", pieces, config, linear)
        assert sorted(map(sum, lengths_of(packing.steps)[0])) == [14, 16]
        assert packing.steps is not None
        assert packing.steps.row_tokens.max() > config.max_tokens

    def test_violations_are_counted(self) -> None:
        (row,) = simulate(
            np.array([8, 7, 6, 5, 4] * 4),
            ("karmarkar_karp",),
            PackingConfig(num_micro_batches=2, context_length=15, max_tokens=15),
            workload=Workload(crossover=1 << 20),
        )
        assert row["violations"]["max_tokens"] > 0
        assert row["violations"]["max_displacement"] == 0


class TestTable2:
    """The paper's figures within 0.04: mean over steps of max over mean, seeds 0 to 4."""

    @pytest.mark.parametrize(
        ("lengths", "longest_first"),
        [
            ("fig3", False),
            pytest.param("fig3_stream", True, marks=pytest.mark.slow),
        ],
    )
    def test_original_and_greedy(self, lengths: str, longest_first: bool) -> None:
        make = {"fig3": fig3_lengths, "fig3_stream": fig3_stream_lengths}[lengths]
        runs = [
            simulate(
                make(1600 * 4 * S // 1550, seed),
                ("concat", "fixed_greedy"),
                PackingConfig(
                    num_micro_batches=4,
                    context_length=S,
                    max_tokens=S * 3 // 2,
                    longest_first=longest_first,
                ),
                workload=Workload(crossover=47_100),
                global_batches=(1, 2, 4, 8),
                steps=1600,
            )
            for seed in range(5)
        ]
        degrees = [
            mean(row["imbalance_degree_mean"] for row in rows) for rows in zip(*runs, strict=True)
        ]
        assert degrees == pytest.approx([1.44, 1.41, 1.22, 1.11, 1.08], abs=0.04)
        assert [row["global_batches"] for row in runs[0]] == [None, 1, 2, 4, 8]

    def test_the_printed_algorithm_with_two_queues(self) -> None:
        (row,) = simulate(
            fig3_lengths(400 * 4 * S // 1550, 0),
            ("wlb_printed",),
            PackingConfig(
                num_micro_batches=4,
                context_length=S,
                max_tokens=S * 3 // 2,
                thresholds=(S * 4 // 16, S * 11 // 16),
                max_displacement=64,
            ),
            workload=Workload(crossover=47_100),
        )
        assert row["imbalance_degree_mean"] < 1.05
        assert row["displacement_mean"] == pytest.approx(0.5, abs=0.07)


class TestSolver:
    def test_without_the_library_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "highspy", None)
        with pytest.raises(ValueError, match=r"pip install 'steelyard\[solver\]'"):
            packed("fixed_solver", [8, 8])

    def test_it_finds_what_the_greedy_does_not(self) -> None:
        pytest.importorskip("highspy")
        lengths = [23, 41, 36, 31, 29, 40, 12, 38, 34, 16]
        bounds = {"context_length": 100, "max_tokens": 100, "num_micro_batches": 3}
        greedy = packed("fixed_greedy", lengths, longest_first=True, **bounds).steps
        packing = packed("fixed_solver", lengths, **bounds)
        assert greedy is not None
        assert packing.steps is not None
        assert squares(packing.steps) < squares(greedy)
        (window,) = packing.solved
        assert window.gap <= 1e-3
        assert not window.at_limit

    @pytest.mark.parametrize("batches", [1, 2])
    def test_a_window_is_never_worse_than_the_better_greedy(self, batches: int) -> None:
        pytest.importorskip("highspy")
        for seed in range(4):
            lengths = fig3_lengths(batches * 4 * S // 1000, seed).tolist()
            bounds = {
                "num_micro_batches": 4,
                "context_length": S,
                "max_tokens": S,
                "global_batches": batches,
            }
            costs = []
            for policy, longest in (
                ("fixed_solver", False),
                *(("fixed_greedy", b) for b in (0, 1)),
            ):
                options = {"longest_first": bool(longest), "solver_seconds": 0.2}
                steps = packed(policy, lengths, **bounds, **options).steps
                assert steps is not None
                first = steps.take_steps(0, batches)
                assert first.row_tokens.max() <= S
                costs.append(squares(first) / int(first.row_tokens.sum()))
            assert costs[0] <= min(costs[1:])

    def test_rows_say_how_it_fared(self) -> None:
        pytest.importorskip("highspy")
        (row,) = simulate(
            fig3_lengths(3000, 0),
            ("fixed_solver",),
            PackingConfig(num_micro_batches=4, context_length=S, max_tokens=S, solver_seconds=0.05),
            workload=Workload(crossover=47_100),
        )
        assert row["solver"]["windows"] == row["steps"]
        assert 0 <= row["solver"]["gap_mean"] <= row["solver"]["gap_max"] < 1
        assert not any(row["violations"].values())


def test_an_unknown_policy_is_told_all_that_there_are() -> None:
    with pytest.raises(PackingError, match="fixed_greedy, fixed_solver, ffd, bfd, karmarkar_karp"):
        policy_of("first_fit")
