"""Publication is all or nothing, and the directory has one owner at a time."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from pipeline import publish as module
from pipeline.files.atomic import atomic_path
from pipeline.publish import publish, read_receipts, recover
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import FormatError
from pipeline.shard.writer import FileReceipt, write_parquet, write_part, write_table
from pipeline.state.lock import Busy, exclusive


def parts_of(root: Path) -> list[FileReceipt]:
    table = pa.table({"step": [0, 0, 1, 1, 2, 2], "slot": [0, 1] * 3})
    return [write_part(table, root, "plan/00000.parquet", rows_per_group=4)]


def test_a_receipt_names_every_byte_but_the_magic(tmp_path: Path) -> None:
    (part,) = parts_of(tmp_path)
    ends = [group.offset + group.length for group in part.row_groups]
    assert [group.row_group for group in part.row_groups] == [0, 1, -1]
    assert [group.first_step for group in part.row_groups] == [0, 2, 0]
    assert part.row_groups[0].offset == 4
    assert [group.offset for group in part.row_groups[1:]] == ends[:-1]
    assert ends[-1] == part.bytes == (tmp_path / part.path).stat().st_size
    assert FileReceipt.from_dict(json.loads(json.dumps(part.as_dict()))) == part


def test_the_manifest_and_its_digest_agree_and_receipts_read_back(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    parts.append(write_table(pa.table({"step": [0]}), tmp_path, "steps.parquet"))
    publish(tmp_path, {"totals": {}}, parts[::-1])
    digest = hashlib.sha256((tmp_path / "manifest.json").read_bytes()).hexdigest()
    assert (tmp_path / "manifest.sha256").read_text() == f"{digest}\n"
    named = json.loads((tmp_path / "manifest.json").read_text())["digests"]
    manifest = SimpleNamespace(directory=tmp_path, digests=named)
    assert read_receipts(cast(Manifest, manifest)) == parts


@pytest.mark.parametrize("moves", range(5))
def test_a_publication_cut_short_is_finished_by_the_next_opener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    parts = parts_of(tmp_path)
    publish(tmp_path, {"run": "old"}, parts)
    replace, left = os.replace, [moves]

    def failing(source: Path, target: Path) -> None:
        if Path(target).parent == tmp_path:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        if moves < 4:
            with pytest.raises(KeyboardInterrupt):
                publish(tmp_path, {"run": "new"}, parts)
        else:
            publish(tmp_path, {"run": "new"}, parts)
    recover(tmp_path)
    text = (tmp_path / "manifest.json").read_bytes()
    assert json.loads(text)["run"] == "new"
    assert (tmp_path / "manifest.sha256").read_text().strip() == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("name", ["../plan/00000.parquet", "/etc/00000.parquet", "cp=../0.parquet"])
def test_a_listed_file_outside_the_set_is_refused(tmp_path: Path, name: str) -> None:
    (part,) = parts_of(tmp_path)
    tables = {
        "files.parquet": module._files_table([replace(part, path=name)]),
        "row_groups.parquet": module._row_groups_table([]),
    }
    digests = {}
    for table, rows in tables.items():
        write_parquet(rows, tmp_path / table)
        digests[table] = hashlib.sha256((tmp_path / table).read_bytes()).hexdigest()
    manifest = cast(Manifest, SimpleNamespace(directory=tmp_path, digests=digests))
    with pytest.raises(FormatError, match="which no set has"):
        read_receipts(manifest)


def test_a_failed_write_leaves_neither_the_file_nor_its_temporary(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "part") as path:
            path.write_text("half")
            raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        write()
    assert list(tmp_path.iterdir()) == []


def _try_lock(directory: Path, answer: multiprocessing.Queue[str]) -> None:
    try:
        with exclusive(directory):
            answer.put("held")
    except Busy as error:
        answer.put(str(error))


def test_two_jobs_on_one_directory_exclude_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with exclusive(tmp_path / "work"):
        other = context.Process(target=_try_lock, args=(tmp_path / "work", answer))
        other.start()
        assert f"process {os.getpid()}" in answer.get(timeout=60)
        other.join()
    with exclusive(tmp_path / "work"):  # free again
        pass
