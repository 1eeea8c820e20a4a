"""A checkpoint is data: what a foreign one holds is never run."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.planner import ReadItem

from trainer.safe_loading import SafePlanner, SafeReader


class Runs:
    """Pickled, it makes whoever loads it touch a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_code_in_a_checkpoints_metadata_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Runs(mark)))
    with pytest.raises(
        pickle.UnpicklingError, match=r"holds posix\.mkdir, which no checkpoint of ours"
    ):
        SafeReader(tmp_path).read_metadata()
    assert not mark.exists()


def test_code_in_a_checkpoints_values_is_refused_and_not_run(tmp_path: Path) -> None:
    mark, content = tmp_path / "ran", io.BytesIO()
    torch.save(Runs(mark), content)
    content.seek(0)
    item: Any = object.__new__(ReadItem)
    with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights.only"):
        SafePlanner().load_bytes(item, content)
    assert not mark.exists()
