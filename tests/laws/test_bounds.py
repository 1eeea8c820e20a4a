"""Law 3: bounds hold, or the job stops and says which one is in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.build import build
from packer.packing import packer as packer_module
from packer.packing.backlog import Filled
from packer.packing.config import PackingConfig
from packer.packing.whole import pack
from packer.plan import Pieces, Steps
from packer.workload import Workload
from pipeline.planning.plan import PlanError
from tests.fixture_contents import MAX_DISPLACEMENT, S_MAX, N
from tests.jobs.small_run import QUIET
from tests.laws.lies import Rows, check_is_found, set_of_rows
from tests.laws.noticed import noticed
from tests.laws.quick import quick_config
from tests.packer.test_packing_laws import check_bounds


def overfill(rows: Rows) -> None:
    """All of a step in one micro-batch but a piece."""
    first = next(i for i in range(0, len(rows), N) if len(rows[i]) + len(rows[i + 1]) > 2)
    rows[first] += rows[first + 1][1:] if len(rows[first + 1]) > 1 else rows[first][1:]
    moved = rows[first + 1][1:]
    del rows[first + 1][1:]
    if not moved:  # the other way round
        rows[first + 1] += rows[first][1:]
        del rows[first][1:]


def empty(rows: Rows) -> None:
    rows[0] += rows[1]
    rows[1] = []


def delay(rows: Rows) -> None:
    """The first step's micro-batches change places with those of the last."""
    rows[:N], rows[-N:] = rows[-N:], rows[:N]


LIES = {
    f"a micro-batch of more than {S_MAX} tokens": (overfill, f"at most {S_MAX} are allowed"),
    "an empty micro-batch": (empty, "holds no piece"),
    "a piece too far from its arrival": (delay, f"at most {MAX_DISPLACEMENT} is allowed"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_signed_lie_about_bounds_is_found(lie: str, tmp_path: Path) -> None:
    change, message = LIES[lie]
    check_is_found(set_of_rows(change), message, tmp_path)


CONFIG = PackingConfig(
    num_micro_batches=2, context_length=16, max_tokens=16, max_pieces=4, max_displacement=2
)
LENGTHS = np.array([9, 7, 3, 5, 8, 4, 12, 16, 2, 6, 1, 7] * 6)


def moved_border(steps: Steps) -> Steps:
    """The first piece of the second micro-batch runs in the first."""
    offsets = steps.row_offsets.copy()
    offsets[1] += 1
    return replace(steps, row_offsets=offsets)


def late(steps: Steps) -> Steps:
    return replace(steps, first_step=steps.first_step + 3)


@pytest.mark.parametrize("break_steps", [moved_border, late])
def test_a_policy_that_does_not_keep_to_its_bounds_is_noticed(
    break_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, workload = Pieces.from_lengths(LENGTHS), Workload(crossover=20)
    packing = pack("concat", pieces, CONFIG, workload)
    assert packing.steps is not None
    check_bounds(packing.steps, packing.config)
    policy_of = packer_module.policy_of

    def broken(name: str) -> Any:
        fill = policy_of(name)

        def filled(*arguments: Any) -> Filled:
            found = fill(*arguments)
            return found if found.steps is None else replace(found, steps=break_steps(found.steps))

        return filled

    monkeypatch.setattr(packer_module, "policy_of", broken)
    with noticed():
        packing = pack("concat", pieces, CONFIG, workload)
        assert packing.steps is not None
        check_bounds(packing.steps, packing.config)


def test_a_bound_that_cannot_be_kept_stops_the_job_and_nothing_is_published(
    tmp_path: Path,
) -> None:
    config = quick_config(tmp_path / "corpus")
    impossible = {"max_pieces": 1, "num_micro_batches": 512, "max_displacement": 1}
    packing = config.packing.model_copy(update=impossible)
    with pytest.raises(PlanError, match=r"max_displacement|max_pieces|num_micro_batches"):
        build(config.model_copy(update={"packing": packing}), tmp_path / "out", QUIET)
    for name in ("manifest.json", "shards", "files.parquet"):
        assert not (tmp_path / "out" / name).exists()
