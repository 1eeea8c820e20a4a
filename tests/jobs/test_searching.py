"""Windows of look-ahead on workers: the same plan, few in flight, dead workers forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import searching as searching_module
from jobs.executor import Executor, LocalExecutor, RayExecutor, open_executor
from jobs.progress import Reporter
from jobs.searching import searching
from packer.packing.config import PackingConfig
from packer.packing.packer import Packer
from packer.plan import Pieces, Steps
from packer.workload import Workload
from pipeline.config import JobSettings, RunConfig
from tests.jobs.small_run import build_with, digests

CONFIG = PackingConfig(
    num_micro_batches=4, context_length=512, max_tokens=640, window_steps=4, moves_per_piece=20
)
WORKLOAD = Workload(crossover=200)


class Counted:
    """A stage that counts."""

    def __init__(self) -> None:
        self.windows = self.documents = self.tokens = 0

    def advance(self, amount: int, *, documents: int = 0, tokens: int = 0) -> None:
        self.windows += amount
        self.documents += documents
        self.tokens += tokens


class SideBySide(LocalExecutor):
    """Says that it has workers, and notes how far ahead it is asked to take windows."""

    num_workers = 4

    def __init__(self) -> None:
        super().__init__()
        self.mapped = 0

    def map_in_order(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        self.mapped += 1
        return map(function, items)


def lengths(count: int) -> np.ndarray:
    generator = np.random.default_rng(1)
    return np.minimum(generator.pareto(0.9, count) * 12 + 2, 512).astype(np.int64)


def planned(
    executor: Executor, count: int = 1200, *, alone: int = 0
) -> tuple[list[Steps], Counted]:
    """Windows of a stream that comes in chunks of less than a window."""
    stage, pieces = Counted(), Pieces.from_lengths(lengths(count))
    search = searching(executor, stage)
    packer = Packer("lookahead", CONFIG, WORKLOAD, first_step=7, search=search)
    chunks = (pieces.take(slice(start, start + 60)) for start in range(0, count, 60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching_module, "ALONE_PIECES", alone)
        return list(packer.steps_of(chunks)), stage


def columns(windows: list[Steps]) -> list[bytes]:
    steps = Steps.concatenate(windows)
    arrays = (steps.pieces.position, steps.pieces.tokens, steps.row_offsets, steps.row_workload)
    return [array.tobytes() for array in arrays]


def double(number: int) -> int:
    return 2 * number


def refuse(number: int) -> int:
    if number == 5:
        raise ValueError("no 5")
    return number


class DiesOnce:
    """Ends the process that calls it, the first time that it is called with `number`."""

    def __init__(self, directory: Path, number: int) -> None:
        self.mark, self.number = directory / "died", number

    def __call__(self, number: int) -> int:
        if number == self.number and not self.mark.exists():
            self.mark.touch()
            os._exit(1)
        return number


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """Four workers that run kernels as they are written, which takes less time than compiling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        patch.setenv("PYTHONWARNINGS", "ignore")  # of 64-bit integers that wrap, as they should
        with open_executor(JobSettings(executor="ray", workers=4, object_store_mb=100)):
            yield


class TestSearching:
    def test_counts_windows_documents_and_tokens(self) -> None:
        windows, stage = planned(LocalExecutor())
        assert stage.windows == len(windows) >= 5
        assert stage.documents == sum(len(steps.pieces) for steps in windows)
        assert stage.tokens == sum(int(steps.pieces.tokens.sum()) for steps in windows)

    def test_numbers_windows_on_from_the_first_step(self) -> None:
        windows, _ = planned(LocalExecutor())
        assert [steps.first_step for steps in windows] == [7 + 4 * i for i in range(len(windows))]

    def test_moves_pieces_and_gives_what_push_gives(self) -> None:
        windows, _ = planned(LocalExecutor())
        pieces = Pieces.from_lengths(lengths(1200))
        whole = Packer("lookahead", CONFIG, WORKLOAD).push(pieces, final=True)
        plain = Packer("reorder", CONFIG, WORKLOAD).push(pieces, final=True)
        assert whole is not None
        assert plain is not None
        assert columns(windows) == columns([whole]) != columns([plain])

    @pytest.mark.parametrize(("alone", "mapped"), [(0, 1), (900, 1), (1190, 0), (1 << 20, 0)])
    def test_leaves_short_streams_to_the_driver(self, alone: int, mapped: int) -> None:
        executor = SideBySide()
        windows, _ = planned(executor, alone=alone)
        assert executor.mapped == mapped
        assert columns(windows) == columns(planned(LocalExecutor())[0])

    def test_is_handed_to_the_plan_of_a_build(
        self, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        packing = config.packing.model_copy(update={"policy": "lookahead", "window_steps": 4})
        config = config.model_copy(update={"packing": packing})
        monkeypatch.setattr(searching_module, "ALONE_PIECES", 0)
        executor = SideBySide()
        build_with(executor, config, tmp_path / "side by side", monkeypatch)
        assert executor.mapped
        build_with(LocalExecutor(), config, tmp_path / "alone", monkeypatch)
        assert digests(tmp_path / "side by side") == digests(tmp_path / "alone")

    def test_leaves_one_window_to_the_driver(self) -> None:
        executor = SideBySide()
        windows, _ = planned(executor, 120)
        assert len(windows) == 1
        assert not executor.mapped

    @pytest.mark.ray
    @pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
    def test_gives_the_same_with_any_number_of_workers(
        self, ray_cluster: None, workers: int
    ) -> None:
        windows, stage = planned(RayExecutor(workers))
        expected, counted = planned(LocalExecutor())
        assert columns(windows) == columns(expected)
        assert vars(stage) == vars(counted)


@pytest.mark.ray
class TestMapInOrder:
    def test_takes_no_more_than_two_items_a_worker_ahead(self, ray_cluster: None) -> None:
        taken: list[int] = []

        def items() -> Iterator[int]:
            for number in range(20):
                taken.append(number)
                yield number

        results = RayExecutor(2).map_in_order(double, items())
        for place, result in enumerate(results):
            assert result == 2 * place
            assert len(taken) <= place + 4
        assert len(taken) == 20

    def test_forgets_a_worker_that_dies(self, ray_cluster: None, tmp_path: Path) -> None:
        results = RayExecutor(2).map_in_order(DiesOnce(tmp_path, 3), range(8))
        assert list(results) == list(range(8))
        assert (tmp_path / "died").exists()

    def test_hands_on_what_a_function_raises(self, ray_cluster: None) -> None:
        results = RayExecutor(2).map_in_order(refuse, range(8))
        with pytest.raises(ValueError, match="no 5"):
            list(results)


def test_a_stage_without_a_total_counts_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().stage("plan", total=None, unit="windows") as stage:
        stage.advance(2, documents=3000, tokens=4_500_000)
    assert "plan: 2 windows, 3,000 documents, 4.5 M tokens, 0.0 s" in capsys.readouterr().err
