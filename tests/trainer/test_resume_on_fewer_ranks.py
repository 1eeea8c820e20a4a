"""A run stopped on eight data-parallel ranks goes on with four, and each step is run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.shard.rank_reader import Reader
from pipeline.shard.reader import open_shards
from tests.trainer import rank_jobs
from tests.trainer.rank_jobs import Taken
from tests.trainer.ranks import run_ranks
from tests.trainer.small_sets import NUM_MICRO_BATCHES as NUM_OF_SMALL_SET
from tests.trainer.small_sets import build_set, settings

NUM_STEPS, STOPPED = 4, 2
NUM_MICRO_BATCHES = 8

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Runs:
    """What each rank took, and the records of rank 0."""

    reader: Reader
    stopped: list[Taken]
    resumed: list[Taken]
    stopped_records: list[dict[str, Any]]
    resumed_records: list[dict[str, Any]]
    whole_records: list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = build_set(tmp_path_factory.mktemp("eight"), num_micro_batches=NUM_MICRO_BATCHES)
    directory = str(tmp_path_factory.mktemp("checkpoints"))

    def tables(dp_size: int, **checkpoint: Any) -> dict[str, Any]:
        run = {"steps": NUM_STEPS, "prefetch": 2}
        return settings(small_model, mesh={"dp_size": dp_size}, run=run, checkpoint=checkpoint)

    first = tables(8, directory=directory, every_steps=STOPPED)
    on_eight = run_ranks(8, rank_jobs.stopped_and_whole, first, tables(8), str(root), 8)
    second = tables(4, directory=directory)
    on_four = run_ranks(4, rank_jobs.train_and_list, second, str(root), 4)
    return Runs(
        reader=open_shards(root),
        stopped=[stopped[1] for stopped, _ in on_eight],
        resumed=[taken for _, taken in on_four],
        stopped_records=on_eight[0][0][0],
        resumed_records=on_four[0][0],
        whole_records=on_eight[0][1][0],
    )


def test_exactly_the_steps_that_are_left_are_trained(runs: Runs) -> None:
    assert [record["step"] for record in runs.stopped_records] == list(range(STOPPED))
    assert [record["step"] for record in runs.resumed_records] == list(range(STOPPED, NUM_STEPS))


def check_taken_once(reader: Reader, ranks: Sequence[Taken], num_micro_batches: int) -> None:
    """Over all ranks of all runs, every micro-batch is taken once, and as it is in the set."""
    taken = [batch for rank in ranks for batch in rank]
    assert sorted((step, slot) for step, slot, _ in taken) == [
        (step, slot) for step in range(NUM_STEPS) for slot in range(num_micro_batches)
    ]
    for step, slot, tokens in taken:
        assert tokens == reader.micro_batch(step, slot).tokens.tolist()


def test_no_micro_batch_is_taken_twice_and_none_is_left_out(runs: Runs) -> None:
    check_taken_once(runs.reader, (*runs.stopped, *runs.resumed), NUM_MICRO_BATCHES)


@pytest.mark.parametrize("steps_off", [-1, 1])
def test_a_run_that_goes_on_a_step_early_or_late_is_noticed(
    steps_off: int, small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    def tables(every_steps: int) -> dict[str, Any]:
        checkpoint = {"directory": str(tmp_path), "every_steps": every_steps}
        return settings(small_model, run={"steps": NUM_STEPS}, checkpoint=checkpoint)

    job, shards = rank_jobs.train_and_list, str(small_set)
    ((_, first),) = run_ranks(1, job, tables(STOPPED), shards, 1, True)
    ((_, second),) = run_ranks(1, job, tables(0), shards, 1, False, steps_off)
    with pytest.raises(AssertionError):
        check_taken_once(open_shards(small_set), (first, second), NUM_OF_SMALL_SET)


def test_each_rank_takes_the_micro_batches_that_the_reader_gives_it(runs: Runs) -> None:
    for dp_size, ranks, steps in (
        (8, runs.stopped, range(STOPPED)),
        (4, runs.resumed, range(STOPPED, NUM_STEPS)),
    ):
        assert len(ranks) == dp_size
        for dp_rank, taken in enumerate(ranks):
            assert [(step, slot) for step, slot, _ in taken] == [
                (step, view.slot)
                for step in steps
                for view in runs.reader.micro_batches(step, dp_rank=dp_rank, dp_size=dp_size)
            ]


def test_tokens_counted_are_those_taken_and_those_of_the_set(runs: Runs) -> None:
    taken = [batch for rank in (*runs.stopped, *runs.resumed) for batch in rank]
    for record in (*runs.stopped_records, *runs.resumed_records):
        step = record["step"]
        of_the_set = [
            len(runs.reader.micro_batch(step, slot).tokens) for slot in range(NUM_MICRO_BATCHES)
        ]
        assert record["tokens"] == sum(of_the_set)
        assert record["tokens"] == sum(len(tokens) for at, _, tokens in taken if at == step)


def test_losses_are_those_of_a_run_without_a_break(runs: Runs) -> None:
    both = (*runs.stopped_records, *runs.resumed_records)
    for found, wanted in zip(both, runs.whole_records, strict=True):
        assert (found["step"], found["tokens"], found["lr"]) == (
            wanted["step"],
            wanted["tokens"],
            wanted["lr"],
        )
        for figure in ("loss", "grad_norm"):
            assert found[figure] == pytest.approx(wanted[figure], rel=1e-10)
    assert len({record["loss"] for record in both}) == NUM_STEPS  # losses that tell steps apart
