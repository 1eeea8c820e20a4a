"""What a schedule may be, and what the ranks of a pipeline run under it, as pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer.program import program_of, queues_of
from packer.schedule import Schedule
from packer.schedule_kernels import sort_tasks
from tests.reference_schedule import order_of


def pictures(pp_size: int, virtual_stages: int, num: int) -> list[str]:
    """A line a rank: F or B, the micro-batch, the rank's chunk as a, b, ..."""
    lines = []
    for queue in queues_of(pp_size, virtual_stages, num):
        words = []
        for task in queue.tolist():
            stage, micro_batch = divmod(task // 2, num)
            chunk = "abcdefgh"[stage // pp_size] if virtual_stages > 1 else ""
            words.append(f"{'FB'[task % 2]}{micro_batch}{chunk}")
        lines.append(" ".join(words))
    return lines


def test_1f1b_of_three_ranks() -> None:
    assert pictures(3, 1, 4) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_fewer_micro_batches_than_ranks() -> None:
    assert pictures(3, 1, 1) == ["F0 B0"] * 3


def test_interleaved_1f1b_of_two_ranks_with_two_chunks() -> None:
    assert pictures(2, 2, 4) == [
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a",
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a",
    ]


def test_as_many_micro_batches_as_ranks_all_go_ahead_on_the_first_rank() -> None:
    assert pictures(2, 2, 2) == [
        "F0a F1a F0b F1b B0b B1b B0a B1a",
        "F0a F1a F0b B0b F1b B1b B0a B1a",
    ]


@pytest.mark.parametrize("pp_size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("virtual_stages", [1, 2, 3, 4])
def test_every_schedule_that_is_allowed_runs_to_its_end(pp_size: int, virtual_stages: int) -> None:
    # who waits for whom does not depend on times, so one run a shape says it for all workloads
    if virtual_stages > 1 and pp_size == 1:
        return
    nums = range(1, 20) if virtual_stages == 1 else range(pp_size, 5 * pp_size, pp_size)
    for num in nums:
        program = program_of(Schedule(pp_size=pp_size, virtual_stages=virtual_stages), num)
        tasks = 2 * num * pp_size * virtual_stages
        assert sorted(program.cell.tolist()) == sorted([*range(tasks // 2)] * 2)
        waited = program.waits_for[program.waits_for < tasks]
        assert np.all(waited < np.flatnonzero(program.waits_for < tasks))
        assert tasks - len(waited) == num  # only the first stage's forwards wait for nothing
        expected = [order_of(rank, pp_size, virtual_stages, num) for rank in range(pp_size)]
        for rank in range(pp_size):
            mine = program.rank == rank
            stage, micro_batch = np.divmod(program.cell[mine], num)
            kind = np.where(program.duration[mine] == 1, "F", "B")
            found = zip(kind, stage // pp_size, micro_batch, strict=True)
            assert [(str(k), int(c), int(m)) for k, c, m in found] == expected[rank]


def test_ranks_that_wait_for_each_other_are_found() -> None:
    # rank 0 runs task 0 and 1, rank 1 tasks 2 and 3; 1 waits for 3, which stands behind 2, for 1
    waits_for = np.array([-1, 3, 1, -1])
    place, order = np.empty(4, np.int64), np.empty(4, np.int64)
    assert sort_tasks(np.array([0, 1, 2, 3]), 2, waits_for, place, order) == 1
    assert sort_tasks(np.array([0, 1, 3, 2]), 2, waits_for, place, order) == 4
    assert order.tolist() == [0, 3, 1, 2] or order.tolist() == [0, 3, 2, 1]


def test_schedules_are_values() -> None:
    one = Schedule(pp_size=4, virtual_stages=2)
    assert one == Schedule(virtual_stages=2, pp_size=4)
    assert len({one, Schedule(pp_size=4, virtual_stages=2), Schedule(pp_size=4)}) == 2
    assert one.num_stages == 8
    assert one.shares == (1,) * 8
    assert Schedule(pp_size=2, stage_shares=(8, 6)).shares == (4, 3)
    assert Schedule(head_cost=0.5, embedding_cost=0.001).token_costs == (0, 128)


@pytest.mark.parametrize(
    ("factor", "times"), [(2.0, (1, 2)), (3.0, (1, 3)), (2.5, (2, 5)), (0.1, (10, 1))]
)
def test_pass_times_are_small_integers(factor: float, times: tuple[int, int]) -> None:
    assert Schedule(backward_factor=factor).pass_times == times


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dp_size": 0}, "dp_size 0, pp_size 1 and virtual_stages 1 must be at least 1"),
        ({"virtual_stages": 2}, "nothing to interleave; set virtual_stages to 1"),
        ({"pp_size": 512, "virtual_stages": 9}, "is 4608 stages; at most 4096"),
        ({"coupling": "fsdp"}, "'fsdp' is not known; use one of ['gradient_sync', 'lockstep']"),
        ({"pp_size": 2, "stage_shares": (1,)}, "1 stage_shares for 2 stages"),
        ({"stage_shares": (0,)}, "integers of 0 to 65536, such as the layers"),
        ({"pp_size": 2, "stage_shares": (-1, 3)}, "integers of 0 to 65536"),
        ({"backward_factor": 0.0}, "must be 1/64 to 64"),
        ({"backward_factor": float("nan")}, "must be 1/64 to 64"),
        ({"head_cost": -0.1}, "head_cost -0.1 must be 0 to 256"),
        ({"embedding_cost": float("inf")}, "embedding_cost inf must be"),
    ],
)
def test_what_no_cluster_has_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Schedule(**settings)
    assert words in str(caught.value)


def test_micro_batches_that_a_schedule_cannot_run_are_refused() -> None:
    assert Schedule(dp_size=2, pp_size=4).num_per_rank(6) == 3
    with pytest.raises(ValueError, match="dp_size 4 does not divide the 6 micro-batches"):
        Schedule(dp_size=4).num_per_rank(6)
    with pytest.raises(
        ValueError, match="of pp_size 4, and 12 micro-batches over dp_size 2 are 6 a rank"
    ):
        Schedule(dp_size=2, pp_size=4, virtual_stages=2).num_per_rank(12)
