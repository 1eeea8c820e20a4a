"""A checkpoint is read as it was written, or not at all."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.shard.digests import xxh3_128
from tests.trainer import rank_jobs
from tests.trainer.ranks import run_ranks
from tests.trainer.small_sets import settings, sign
from trainer import checkpoint_digests
from trainer.checkpoint_digests import check_files, read_digests
from trainer.errors import TrainerError
from trainer.prepare import prepare
from trainer.settings import parse_settings

NAME = "step-00000001"
FLIPS = 3
"""Of each file."""


def tables(model: Path, directory: Path, dp_size: int = 1) -> dict[str, Any]:
    return settings(
        model,
        mesh={"dp_size": dp_size},
        run={"steps": 1},
        checkpoint={"directory": str(directory)},
    )


@pytest.fixture(scope="module")
def saved(
    small_set: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A directory with the checkpoint of two ranks, and the names of its files."""
    directory = tmp_path_factory.mktemp("checkpoints")
    chosen = tables(small_model, directory, 2)
    run_ranks(2, rank_jobs.train_on, chosen, str(small_set), 2)
    return directory, sorted(path.name for path in (directory / NAME).iterdir())


@pytest.fixture
def copied(saved: tuple[Path, list[str]], tmp_path: Path) -> Path:
    shutil.copytree(saved[0] / NAME, tmp_path / NAME)
    return tmp_path / NAME


def test_every_file_is_listed_and_nothing_else(saved: tuple[Path, list[str]]) -> None:
    directory, names = saved
    assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "digests.json", "run.json"]
    listed = read_digests(directory / NAME)
    assert sorted([*listed, "digests.json"]) == names
    for name, digest in listed.items():
        data = (directory / NAME / name).read_bytes()
        assert digest == (len(data), xxh3_128(data))


def test_a_flipped_bit_in_any_file_is_found_by_every_rank_and_the_file_named(
    saved: tuple[Path, list[str]], copied: Path, small_model: Path, small_set: Path
) -> None:
    chance = random.Random(0)
    flips = []
    for name in saved[1]:
        num_bits = 8 * (copied / name).stat().st_size
        places = [0, num_bits - 1, *(chance.randrange(num_bits) for _ in range(FLIPS))]
        flips += [(str(copied / name), place) for place in places]
    chosen = tables(small_model, copied.parent, 2)
    said = run_ranks(2, rank_jobs.load_flipped, chosen, str(small_set), 2, flips)
    assert said[0] == said[1]
    for (name, place), message in zip(flips, said[0], strict=True):
        assert Path(name).name in message, (name, place)
        assert "remove" in message
        assert "\n" not in message


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "message"),
    [(cut, r"has \d+ bytes, digests.json says \d+"), (Path.unlink, "is missing")],
)
def test_a_file_that_was_cut_short_or_lost_is_named(
    harm: Callable[[Path], None], message: str, copied: Path
) -> None:
    harm(copied / "__1_0.distcp")
    listed = read_digests(copied)
    wrong = check_files(copied, listed, sorted(listed))
    assert wrong is not None
    assert re.search(rf"__1_0.distcp: {message}; restore .* remove {NAME}: a run", wrong)


def test_digests_that_were_lost_are_asked_for(
    copied: Path, small_model: Path, small_set: Path
) -> None:
    (copied / checkpoint_digests.FILE).unlink()
    chosen = parse_settings(tables(small_model, copied.parent))
    with pytest.raises(TrainerError, match=r"digests.json: cannot be read: No such file .*restore"):
        prepare(chosen, small_set, {})


def test_a_checkpoint_of_a_version_without_digests_goes_on_and_it_is_told(
    copied: Path, small_model: Path, small_set: Path
) -> None:
    (copied / checkpoint_digests.FILE).unlink()
    lineage = json.loads((copied / "run.json").read_text())
    del lineage["digests"]
    (copied / "run.json").write_text(json.dumps(lineage))
    chosen = tables(small_model, copied.parent)
    ((records, notes),) = run_ranks(1, rank_jobs.train_on, chosen, str(small_set), 1)
    assert records == []
    assert "all are done of 1" in notes[0]
    assert "has no digests, an older steelyard wrote it" in notes[1]


def test_a_file_that_digests_do_not_list_is_not_believed(copied: Path) -> None:
    (copied / "run.json").rename(copied / "aside")
    sign(copied)
    (copied / "aside").rename(copied / "run.json")
    wrong = check_files(copied, read_digests(copied), ["run.json"])
    assert wrong is not None
    assert "run.json: digests.json does not list it" in wrong
