"""A set in object storage, read in place: the same micro-batches, and only what is needed of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs

from pipeline.files import byte_files
from pipeline.files.url_path import as_path, is_remote
from pipeline.shard.reader import open_plan, open_shards
from pipeline.shard.tables import FormatError
from tests.fixture_contents import PARTS, SLOTS, STEPS
from tests.object_store import s3_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BUCKET = "sets"


@pytest.fixture(scope="module")
def options() -> Iterator[str]:
    """What follows a URL to reach a server of the S3 protocol in this process."""
    with s3_server() as endpoint:
        yield f"?endpoint_override={endpoint}&scheme=http"


@pytest.fixture(scope="module")
def bucket(options: str, directory: Path) -> fs.FileSystem:
    """The bucket, with the set under `a/set`."""
    system, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}/{options}&allow_bucket_creation=true")
    system.create_dir(BUCKET)
    for path in directory.rglob("*"):
        if path.is_file():
            put(system, path.relative_to(directory.parent).as_posix(), path.read_bytes())
    return system


def put(bucket: fs.FileSystem, name: str, content: bytes) -> None:
    with bucket.open_output_stream(f"{BUCKET}/a/{name}", compression=None) as stream:
        stream.write(content)


@pytest.fixture
def url(bucket: fs.FileSystem, options: str) -> str:
    return f"s3://{BUCKET}/a/set{options}"


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_set_in_object_storage_gives_the_micro_batches_of_the_local_one(
    url: str, directory: Path, prefetch: int
):
    local, remote = open_shards(directory), open_shards(url)
    for cp_size in (1, 2):
        rank = {"dp_rank": 0, "dp_size": 1, "cp_rank": 0, "cp_size": cp_size}
        found = list(remote.batches(**rank, prefetch=prefetch))
        assert len(found) == STEPS * SLOTS
        for one, other in zip(found, local.batches(**rank), strict=True):
            assert (one.step, one.slot) == (other.step, other.slot)
            for name in ("tokens", "labels", "position_ids", "query_index", "key_index"):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert remote.micro_batch(3, 1).doc_id.tolist() == local.micro_batch(3, 1).doc_id.tolist()


def test_a_row_group_is_one_request_and_a_file_one_more(
    url: str, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    requests: list[tuple[int, int]] = []
    fetch = byte_files._Fetched.read

    def counted(file: byte_files._Fetched, offset: int, length: int) -> object:
        requests.append((offset, length))
        return fetch(file, offset, length)

    monkeypatch.setattr(byte_files._Fetched, "read", counted)
    reader = open_shards(url)
    assert not requests
    for _ in range(2):
        for slot in range(SLOTS):
            reader.micro_batch(STEPS - 1, slot)  # both rows in the last row group of its part
        assert len(requests) == 2
    size = (directory / "shards/00001.parquet").stat().st_size
    assert requests[0][0] + requests[0][1] == size  # the footer
    assert requests[1][0] + requests[1][1] == requests[0][0]  # and what lies before it


def test_damage_is_found_and_named_by_its_url(
    bucket: fs.FileSystem, url: str, options: str, directory: Path
):
    path = directory / "shards/00001.parquet"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 4] ^= 1
    put(bucket, "set/shards/00001.parquet", bytes(damaged))
    try:
        reader = open_shards(url)
        assert reader.micro_batch(0, 0).step == 0
        with pytest.raises(
            FormatError, match=r"s3://sets/a/set/shards/00001.parquet.*XXH3"
        ) as error:
            list(reader.batches(PARTS[0], dp_rank=0, dp_size=1))
        assert error.value.row_group is not None
        bucket.delete_file(f"{BUCKET}/a/set/shards/00001.parquet")
        with pytest.raises(FormatError, match=r"shards/00001.parquet.*cannot be read"):
            open_shards(url).micro_batch(STEPS - 1, 0)
    finally:
        put(bucket, "set/shards/00001.parquet", path.read_bytes())


def test_where_there_is_no_set_one_line_says_so(url: str):
    with pytest.raises(FormatError, match=r"manifest.json.*: is missing: there is no finished set"):
        open_shards(url.replace("a/set", "nowhere"))
    with pytest.raises(FormatError, match=r"zzz://a/b/manifest.json: cannot be read: .*zzz"):
        open_shards("zzz://a/b")


def test_a_plan_is_read_over_token_stores_in_object_storage(url: str, directory: Path):
    rank = {"dp_rank": 0, "dp_size": 1, "cp_rank": 1, "cp_size": 2}
    pairs = zip(open_plan(url).batches(**rank), open_plan(directory).batches(**rank), strict=True)
    found = [(one.tokens, other.tokens) for one, other in pairs]
    assert len(found) == STEPS * SLOTS
    assert all(np.array_equal(*tokens) for tokens in found)


def test_a_file_url_is_a_local_path(directory: Path):
    assert as_path(f"file://{directory}") == directory
    assert not is_remote(as_path(str(directory)))
    assert open_shards(f"file://{directory}").num_steps == STEPS
