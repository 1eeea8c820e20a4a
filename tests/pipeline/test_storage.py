"""The same corpus as local files, in object storage and behind other URLs."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from pipeline.files import storage
from pipeline.files.storage import (
    StorageError,
    digest_file,
    join_url,
    match_files,
    split_url,
    stamp,
)
from pipeline.reading.formats import resolve_formats
from pipeline.reading.inputs import look_at
from pipeline.reading.listing import SourceError, list_inputs
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
from pipeline.shard.token_store import TokenStore
from tests.corpora import (
    build_store,
    some_texts,
    source_of,
    write_arrow,
    write_jsonl,
    write_parquet,
    write_tree,
)
from tests.object_store import s3_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BUCKET = "corpora"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server of the S3 protocol in this process: `127.0.0.1:PORT`."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def options(endpoint: str) -> str:
    return f"?endpoint_override={endpoint}&scheme=http"


@pytest.fixture(scope="module")
def bucket(endpoint: str, options: str) -> fs.FileSystem:
    extra = f"{options}&allow_bucket_creation=true"
    system, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}/{extra}")
    system.create_dir(BUCKET)
    return system


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, bucket: fs.FileSystem) -> Path:
    """A corpus of every format, on disk; the same files are in the bucket."""
    root = tmp_path_factory.mktemp("corpus")
    write_jsonl(root / "in/a.jsonl", some_texts(60))
    write_jsonl(root / "in/b c [1].jsonl.gz", some_texts(20, seed=1))
    write_jsonl(root / "in/deep/er/d.jsonl.zst", some_texts(20, seed=2))
    write_parquet(root / "rows/a.parquet", some_texts(40, seed=3), rows_per_group=8)
    write_arrow(root / "arrow/a.arrow", some_texts(40, seed=4), rows_per_batch=8)
    write_tree(root / "tree", {"x.txt": "one", "sub/Makefile": "two", ".hidden/y": "no"})
    upload(root, bucket)
    return root


def upload(root: Path, bucket: fs.FileSystem) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            name = f"{BUCKET}/{path.relative_to(root).as_posix()}"
            with bucket.open_output_stream(name, compression=None) as stream:
                stream.write(path.read_bytes())


def remote_source(options: str, *paths: str, **settings: object) -> SourceConfig:
    urls = tuple(f"s3://{BUCKET}/{path}{options}" for path in paths)
    return SourceConfig.model_validate({"name": "corpus", "paths": urls, **settings})


PATHS = ("in", "rows", "arrow/*.arrow", "tree")


class TestObjectStorage:
    def test_the_store_is_the_one_of_the_local_files_to_the_byte(
        self, corpus: Path, options: str, tmp_path: Path
    ) -> None:
        local = build_store(source_of(*(corpus / path for path in PATHS)), tmp_path / "local")
        remote = build_store(remote_source(options, *PATHS), tmp_path / "remote")
        assert local.name == remote.name  # one key
        assert TokenStore(local).documents == 182
        for path in local.rglob("*"):
            if path.is_file():
                assert path.read_bytes() == (remote / path.relative_to(local)).read_bytes()

    def test_names_order_and_formats_are_those_of_local_files(
        self, corpus: Path, options: str
    ) -> None:
        for paths, settings in (
            (("in", "tree"), {}),
            (("in",), {"pattern": "*.gz"}),
            (("in/*.jsonl*",), {}),
            (("in/**/*.jsonl*",), {}),
            (("in/**/*.zst",), {}),
            (("*/a.*",), {"format": "jsonl"}),
            (("in/a.jsonl", "rows/a.parquet"), {}),
        ):
            local = source_of(*(corpus / path for path in paths), **settings)
            remote = remote_source(options, *paths, **settings)
            found = [[(file.name, file.bytes) for file in list_inputs(s)] for s in (local, remote)]
            assert found[0] == found[1]
            assert found[0]
            formats = [resolve_formats(s, list_inputs(s)) for s in (local, remote)]
            assert formats[0] == formats[1]

    @pytest.mark.parametrize(
        ("path", "message"),
        [("none.jsonl", "matches no file"), ("in/*.none", "matches no file"), ("in/", None)],
    )
    def test_what_matches_nothing_is_refused(
        self, corpus: Path, options: str, path: str, message: str | None
    ) -> None:
        if message is None:
            assert len(list_inputs(remote_source(options, path))) == 3
            return
        with pytest.raises(SourceError, match=message):
            list_inputs(remote_source(options, path))

    def test_the_endpoint_may_come_from_the_environment(
        self, corpus: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{endpoint}")
        storage._file_system.cache_clear()
        assert len(list_inputs(remote_source("", "in"))) == 3
        storage._file_system.cache_clear()

    def test_a_split_reads_its_part_of_the_file_and_no_more(
        self, bucket: fs.FileSystem, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        texts = [f"{number} " + "x" * 2000 for number in range(2000)]
        write_jsonl(tmp_path / "big/big.jsonl", texts)
        table = pq.read_table(write_parquet(tmp_path / "all.parquet", texts))
        noise = [os.urandom(2000) for _ in texts]
        table = table.append_column("noise", [noise])
        pq.write_table(
            table, tmp_path / "big/big.parquet", row_group_size=100, compression="none",
            use_dictionary=False, write_statistics=False,
        )  # fmt: skip
        write_arrow(tmp_path / "big/big.arrow", texts, rows_per_batch=100)
        upload(tmp_path, bucket)
        read = 0

        class Counting(io.RawIOBase):
            def __init__(self, path: str) -> None:
                system, inner = storage.locate(path)
                self.file = system.open_input_file(inner)

            def readable(self) -> bool:
                return True

            def seekable(self) -> bool:
                return True

            def size(self) -> int:
                return self.file.size()

            def read(self, size: int = -1) -> bytes:
                nonlocal read
                data = self.file.read(size)
                read += len(data)
                return data

            def seek(self, position: int, whence: int = 0) -> int:
                return self.file.seek(position, whence)

            def tell(self) -> int:
                return self.file.tell()

        for module in ("splits", "parquet", "arrow_ipc", "records.lines"):
            monkeypatch.setattr(f"pipeline.reading.{module}.open_random", Counting)
        for name in ("big.jsonl", "big.parquet", "big.arrow"):
            source = remote_source(options, f"big/{name}")
            read = 0
            splits = plan_splits(source, list_inputs(source), split_bytes=400_000)
            size = (tmp_path / "big" / name).stat().st_size
            assert len(splits) >= 10
            assert read < size / 20
            for split in (splits[0], splits[7], splits[-1]):
                read = 0
                batches = list(read_records(split, source))
                texts_read = sum(len(text) for batch in batches for text in batch.texts)
                assert texts_read <= read <= texts_read * 1.1 + 150_000, (name, split)

    def test_changed_content_under_the_same_url_is_noticed_and_the_rest_not_read_again(
        self, bucket: fs.FileSystem, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_tree(tmp_path / "again", {"a.txt": "one", "b.txt": "two"})
        upload(tmp_path, bucket)
        read: list[str] = []
        monkeypatch.setattr(
            "pipeline.reading.inputs.digest_file",
            lambda path: read.append(path) or digest_file(path),
        )
        source = remote_source(options, "again")
        cache = tmp_path / "cache.json"
        first = look_at(list_inputs(source), cache=cache).digests
        assert len(read) == 2
        assert look_at(list_inputs(source), cache=cache).digests == first
        assert len(read) == 2
        write_tree(tmp_path / "again", {"a.txt": "six"})  # of the same size, in the same second
        upload(tmp_path, bucket)
        second = look_at(list_inputs(source), cache=cache).digests
        assert (second[0] != first[0], second[1] == first[1]) == (True, True)

    def test_a_bucket_that_is_not_there_is_one_line(self, options: str) -> None:
        with pytest.raises(SourceError, match="matches no file"):
            list_inputs(SourceConfig(name="a", paths=(f"s3://nowhere/x{options}",)))


class TestOtherUrls:
    def test_http_is_read_through_fsspec(self, corpus: Path, endpoint: str, tmp_path: Path) -> None:
        pytest.importorskip("aiohttp")
        url = f"http://{endpoint}/{BUCKET}/in/a.jsonl"
        source = SourceConfig(name="corpus", paths=(url,))
        (file,) = list_inputs(source)
        local = source_of(corpus / "in/a.jsonl")
        assert (file.name, file.bytes) == ("a.jsonl", (corpus / "in/a.jsonl").stat().st_size)
        assert digest_file(file.path) == digest_file(str(corpus / "in/a.jsonl"))
        assert stamp(file.path)
        remote_store = build_store(source, tmp_path / "http")
        assert remote_store.name == build_store(local, tmp_path / "local").name

    def test_file_urls_are_local_paths(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"a b.txt": "x", "c/d.txt": "y"})
        files = list_inputs(SourceConfig(name="a", paths=(f"file://{tmp_path}/a%20b.txt",)))
        assert [file.path for file in files] == [str(tmp_path / "a b.txt")]
        files = list_inputs(SourceConfig(name="a", paths=(f"file://localhost{tmp_path}/**/*.txt",)))
        assert [file.name for file in files] == ["a b.txt", "c/d.txt"]

    def test_fsspec_has_what_pyarrow_lacks(self, tmp_path: Path) -> None:
        memory = pytest.importorskip("fsspec").filesystem("memory")
        memory.pipe({"/box/a.txt": b"one", "/box/sub/b.txt": b"two"})
        source = SourceConfig(name="a", paths=("memory://box",))
        assert [file.name for file in list_inputs(source)] == ["a.txt", "sub/b.txt"]
        assert TokenStore(build_store(source, tmp_path)).documents == 2

    def test_an_unknown_scheme_is_one_line(self) -> None:
        with pytest.raises(StorageError, match=r"zzz://a/b cannot be reached: .*zzz"):
            list_inputs(SourceConfig(name="a", paths=("zzz://a/b",)))


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://b/k/x.jsonl", ("s3://b", "k/x.jsonl", "")),
        ("s3://b", ("s3://b", "", "")),
        ("s3://b/a?.txt", ("s3://b", "a?.txt", "")),
        ("s3://b/a?.txt?region=x&scheme=http", ("s3://b", "a?.txt", "?region=x&scheme=http")),
    ],
)
def test_a_url_is_place_path_and_options(url: str, parts: tuple[str, str, str]) -> None:
    assert split_url(url) == parts


def test_options_stay_at_the_end_when_a_name_is_added() -> None:
    assert join_url("s3://b/k?region=x", "a/b.txt") == "s3://b/k/a/b.txt?region=x"
    assert join_url("s3://b", "a.txt") == "s3://b/a.txt"


def test_globs_of_urls_match_what_globs_of_paths_match(tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    names = ("a.txt", "b.md", "s/a.txt", "s/t/a.txt", "s/t/b.txt", "u/t/c.txt", "s/.h/a.txt")
    memory.pipe({f"/globs/{name}": b"x" for name in names})
    write_tree(tmp_path / "globs", dict.fromkeys(names, "x"))
    for pattern in ("*.txt", "**/*.txt", "*/t/*", "s/**/a.txt", "[su]/t/?.txt", "**", "s/*"):
        found = list_inputs(source_of(tmp_path / "globs" / pattern, format="text"))
        root, sizes = match_files(f"memory://globs/{pattern}")
        expected = sorted(Path(file.path).relative_to(tmp_path).as_posix() for file in found)
        base = root.removeprefix("memory://").rstrip("/")
        assert sorted(f"{base}/{name}" for name in sizes) == expected
    shutil.rmtree(tmp_path / "globs")
