"""What was lost or damaged is found, named, or made again; never built upon."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.build import build
from jobs.executor import LocalExecutor
from pipeline.config import RunConfig
from pipeline.reading.listing import SourceError
from pipeline.report import report
from pipeline.shard.tables import FormatError
from pipeline.shard.token_store import StoreError
from pipeline.verify import VerifyError, verify
from tests.jobs.small_run import QUIET, build_with, digests, small_config


def test_lengths_that_were_changed_are_not_planned_with(config: RunConfig, tmp_path: Path) -> None:
    build(config, tmp_path, QUIET, dry_run=True)
    lengths = next(tmp_path.glob("store/*/lengths.u32"))
    content = bytearray(lengths.read_bytes())
    content[0] ^= 1
    lengths.write_bytes(content)
    with pytest.raises(StoreError, match=r"lengths\.u32"):
        build(config, tmp_path, QUIET)


def test_a_file_that_went_missing_is_named_and_the_way_out(
    config: RunConfig, tmp_path: Path
) -> None:
    build(config, tmp_path, QUIET)
    (tmp_path / "shards" / "00001.parquet").unlink()
    with pytest.raises(FormatError, match=r"shards/00001\.parquet.*remove manifest\.json"):
        build(config, tmp_path, QUIET)


def test_a_flipped_bit_is_found_in_every_file(config: RunConfig, tmp_path: Path) -> None:
    sizes = {"shard_tokens": 40_000, "split_bytes": 120_000}  # fewer parts, the same kinds
    shards = config.shards.model_copy(update=sizes)
    build(config.model_copy(update={"shards": shards}), tmp_path, QUIET)
    files = [tmp_path / name for name in digests(tmp_path)]
    assert len(files) > 25
    for path in files:
        content = path.read_bytes()
        if not content:
            continue
        damaged = bytearray(content)
        damaged[len(content) // 2] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(VerifyError) as caught:
            verify(tmp_path)
        name = path.relative_to(tmp_path).as_posix()
        # the manifest and its digest vouch for one another: either may be the damaged one
        assert name in str(caught.value) or "manifest" in name
        if name.startswith(("shards/", "plan/", "cp=")):
            assert "row group" in str(caught.value) or "footer" in str(caught.value)
        path.write_bytes(content)
    verify(tmp_path)


@pytest.mark.parametrize(
    "name", ["plan/00001.parquet", "cp=4/00000.parquet", "store/*/lengths.u32", "steps.parquet"]
)
def test_report_does_not_measure_damage(config: RunConfig, tmp_path: Path, name: str) -> None:
    build(config, tmp_path, QUIET)
    path = next(tmp_path.glob(name))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 16
    path.write_bytes(content)
    with pytest.raises((FormatError, StoreError), match=path.name):
        report(tmp_path)


@pytest.mark.parametrize(
    "lost", [".build/inverse", "steps.parquet", "tail.parquet", ".build/inputs-lines.json"]
)
def test_what_is_lost_between_two_runs_is_made_again(
    config: RunConfig, built: Path, tmp_path: Path, lost: str
) -> None:
    build(config, tmp_path, QUIET, dry_run=True)
    path = tmp_path / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_bytes(b"{")
    build(config, tmp_path, QUIET)
    assert digests(tmp_path) == digests(built)


def test_a_store_damaged_before_the_tokens_move_stops_the_move(
    config: RunConfig, tmp_path: Path
) -> None:
    build(config, tmp_path, QUIET, dry_run=True)
    path = next(tmp_path.glob("store/*/parts/00001.tokens"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"00001\.tokens: block 0"):
        build(config, tmp_path, QUIET)


def test_a_file_that_changes_while_it_is_read_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path / "corpus")

    class Meddling(LocalExecutor):
        def map(self, function: Any, arguments: Any) -> Iterator[tuple[int, Any]]:
            yield from super().map(function, arguments)
            with Path(config.sources[0].paths[0]).open("a") as file:
                file.write("\n")

    with pytest.raises(SourceError, match="changed while it was read"):
        build_with(Meddling(), config, tmp_path / "out", monkeypatch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_micro_batches": 8}, "has steps of 4 micro-batches, its segment of 8"),
        ({"sources": 0}, "min_tokens is -1, must be a positive integer"),
    ],
)
def test_a_signed_manifest_that_lies_about_its_segment_is_refused_in_a_line(
    config: RunConfig, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    build(config, tmp_path, QUIET)
    document = json.loads((tmp_path / "manifest.json").read_bytes())
    segment = document["segments"][0]
    if "sources" in change:
        segment["sources"][0]["min_tokens"] = -1
    else:
        segment.update(change)
    content = json.dumps(document).encode()
    (tmp_path / "manifest.json").write_bytes(content)
    (tmp_path / "manifest.sha256").write_text(hashlib.sha256(content).hexdigest() + "\n")
    with pytest.raises(FormatError, match=message):
        report(tmp_path)
