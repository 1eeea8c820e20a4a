"""A set in an object store: the same bytes, whatever dies, and one job at a time."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyarrow import fs

from jobs import build as build_module
from jobs import stages
from jobs.build import build
from jobs.executor import LocalExecutor
from jobs.extend import extend
from jobs.fork import fork
from jobs.replan import replan
from jobs.workplace import Workplace
from pipeline.built import stores_of
from pipeline.config import ConfigError, JobSettings, RunConfig
from pipeline.files.atomic import write_atomically
from pipeline.files.url_path import UrlPath, as_path, is_inside
from pipeline.publish import WORK
from pipeline.report import report
from pipeline.shard.manifest import load_manifest, no_set
from pipeline.shard.reader import open_plan, open_shards
from pipeline.verify import VerifyError, verify
from tests.jobs.command_line import run
from tests.jobs.small_run import QUIET, DyingExecutor, build_with, digests
from tests.object_store import s3_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BUCKET = "steelyard"


@pytest.fixture(scope="module")
def options() -> Iterator[str]:
    """What follows a URL to reach a server of the S3 protocol in this process."""
    with s3_server() as endpoint:
        options = f"?endpoint_override={endpoint}&scheme=http"
        system, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}/{options}&allow_bucket_creation=true")
        system.create_dir(BUCKET)
        yield options


@pytest.fixture(scope="module")
def config(config: RunConfig) -> RunConfig:
    """Few parts: a server in this process takes its time over each request."""
    large = {"split_bytes": 100_000, "run_tokens": 100_000, "shard_tokens": 40_000}
    return config.model_copy(update={"shards": config.shards.model_copy(update=large)})


@pytest.fixture(scope="module")
def built(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on a disk."""
    root = tmp_path_factory.mktemp("built")
    assert build(config, root, QUIET).finished
    return root


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where scratch goes that nobody asked for elsewhere."""
    directory = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory))
        yield directory


@pytest.fixture(scope="module")
def whole(config: RunConfig, options: str, caches: Path) -> UrlPath:
    """An undisturbed build."""
    place = as_path(f"s3://{BUCKET}/whole/set{options}")
    assert build(config, place, QUIET).finished
    assert isinstance(place, UrlPath)
    return place


@pytest.fixture
def place(options: str, caches: Path, request: pytest.FixtureRequest) -> Path:
    """A place of its own in the store."""
    return as_path(f"s3://{BUCKET}/{request.node.name}/set{options}")


def stored(root: Path) -> dict[str, str]:
    """SHA-256 of every object of a set; its working state aside."""
    assert isinstance(root, UrlPath)
    return {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()
        for name in root.files_below()
        if WORK not in name.split("/")
    }


def test_a_set_built_in_a_store_is_the_one_built_on_a_disk(
    built: Path, whole: UrlPath, caches: Path
) -> None:
    assert stored(cast(Path, whole)) == digests(built)
    left = [name for name in whole.files_below() if WORK in name.split("/")]
    assert {name.rpartition("/")[2].partition("-")[0] for name in left} == {"inputs"}
    assert not any(path.is_file() for path in caches.rglob("*"))


def test_a_set_in_a_store_is_verified_and_measured_there(built: Path, whole: Path) -> None:
    assert verify(whole) == verify(built)
    assert report(whole) == report(built)


def test_a_job_that_dies_anywhere_goes_on_in_the_store(
    config: RunConfig, built: Path, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stages, "ALONE_ROWS", 0)
    counting = CountingExecutor()
    build_with(counting, config, tmp_path / "whole", monkeypatch)
    again = CountingExecutor()
    for tasks in (1, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            build_with(DyingExecutor(tasks), config, place, monkeypatch)
        assert not (place / "manifest.json").exists()
    build_with(again, config, place, monkeypatch)
    assert stored(place) == digests(built)
    assert again.tasks == counting.tasks - 2 - 4 - 5  # what was at hand was noted


@pytest.mark.slow
def test_scratch_that_is_lost_with_its_machine_is_made_again(
    config: RunConfig, built: Path, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            build(config, place, QUIET)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    assert build(config, place, QUIET).finished
    assert stored(place) == digests(built)


@pytest.mark.slow
def test_what_another_configuration_left_is_swept(
    config: RunConfig, built: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = config.model_copy(
        update={"shards": config.shards.model_copy(update={"shard_tokens": 3000})}
    )
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            build(other, place, QUIET)
    build(config, place, QUIET)
    assert stored(place) == digests(built)


class CountingExecutor(LocalExecutor):
    """Counts the tasks it was given."""

    tasks = 0

    def map(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        self.tasks += len(arguments)
        return super().map(function, arguments)


def dies(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_chains_and_replans_in_a_store_are_those_on_a_disk(
    before: Path, chain: Path, first: RunConfig, second: RunConfig, place: Path, tmp_path: Path
) -> None:
    build(first, place, QUIET)
    assert stored(place) == digests(before)
    assert extend(second, place, QUIET).finished
    assert stored(place) == digests(chain)
    fork(place, 7, place.parent / "fork", QUIET)
    fork(chain, 7, tmp_path / "fork", QUIET)
    assert stored(place.parent / "fork") == digests(tmp_path / "fork")
    verify(place.parent / "fork")
    local = shutil.copytree(chain, tmp_path / "set")
    for root in (place, local):
        replan(root, [3], "per_sequence", QUIET, JobSettings(executor="local"))
    assert stored(place) == digests(local)
    verify(place)


def test_readers_read_a_set_in_a_store_by_both_ways(built: Path, whole: Path) -> None:
    rank = {"dp_rank": 0, "dp_size": 1, "cp_rank": 1, "cp_size": 2}
    for open_set in (open_shards, open_plan):
        pairs = zip(
            open_set(str(whole)).batches(**rank), open_set(built).batches(**rank), strict=True
        )
        count = 0
        for one, other in pairs:
            assert (one.tokens == other.tokens).all()
            count += 1
        assert count


@pytest.mark.parametrize("kind", ["plan", "shards", "cp=2", "store"])
def test_damage_in_a_store_is_found_by_name(whole: UrlPath, kind: str) -> None:
    ending = ".tokens" if kind == "store" else ".parquet"
    name = max(name for name in whole.files_below() if name.startswith(kind) and ending in name)
    path = cast(Path, whole / name)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 1
    write_atomically(path, bytes(flipped))
    with pytest.raises(VerifyError, match=name.rpartition("/")[2]):
        verify(cast(Path, whole))
    write_atomically(path, content)


@pytest.mark.parametrize("remote", ["set", pytest.param("stores", marks=pytest.mark.slow)])
def test_a_set_and_its_stores_may_be_of_two_kinds(
    config: RunConfig, place: Path, tmp_path: Path, remote: str
) -> None:
    roots = {"set": tmp_path / "set", "stores": tmp_path / "stores", remote: place}
    shards = config.shards.model_copy(update={"store": str(roots["stores"])})
    assert build(config.model_copy(update={"shards": shards}), roots["set"], QUIET).finished
    assert verify(roots["set"]).pieces
    stores = [store.directory for store in stores_of(load_manifest(roots["set"]))]
    assert all(is_inside(directory, roots["stores"]) for directory in stores)


def test_what_making_a_store_elsewhere_needs_goes_with_the_scratch(tmp_path: Path) -> None:
    workplace = Workplace.of(tmp_path, JobSettings())
    ids = workplace.scratch_of_store("lines-0123") / "ids"
    ids.mkdir(parents=True)
    workplace.clean_up()
    assert not ids.exists()
    assert not ids.parent.exists()


def test_scratch_is_a_directory_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = Workplace.of(tmp_path / "set", JobSettings(scratch="~/scratch"))
    assert at_home.scratch.parent == tmp_path / "scratch"
    with pytest.raises(ConfigError, match=r"job\.scratch is s3://bucket/x; it must be a directory"):
        Workplace.of(tmp_path / "set", JobSettings(scratch="s3://bucket/x"))


def test_lengths_of_a_token_store_there_are_simulated(
    built: Path, whole: UrlPath, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next((built / "store").glob("*/lengths.u32")).parent.name
    options = ("--num-micro-batches=2", "--context-length=300", "--policies=concat", "--json")
    kept = []
    for root in (whole, built):
        assert run("simulate", "--lengths", str(root / "store" / name), *options) == 0
        (row,) = json.loads(capsys.readouterr().out)
        kept.append({name: row[name] for name in ("steps", "placed_tokens", "total_workload")})
    assert kept[0]["steps"]
    assert kept[0] == kept[1]


def test_a_slash_at_the_end_of_a_url_is_nothing(options: str) -> None:
    assert as_path(f"s3://{BUCKET}/set/{options}") == as_path(f"s3://{BUCKET}/set{options}")
    assert str(as_path(f"s3://{BUCKET}/set/{options}")) == f"s3://{BUCKET}/set{options}"


def test_a_command_with_a_url_can_be_pasted(options: str) -> None:
    url = f"s3://{BUCKET}/none{options}"
    assert "&" in url
    command = str(no_set(as_path(url))).partition("make one with: ")[2]
    assert shlex.split(command)[-1] == url


def test_a_cluster_without_common_scratch_is_refused(config: RunConfig, place: Path) -> None:
    job = JobSettings(address="127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"--set job\.scratch=DIR"):
        build(config.model_copy(update={"job": job}), place, QUIET)
