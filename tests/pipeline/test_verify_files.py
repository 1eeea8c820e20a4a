"""Digests, layouts and token stores: what verify says of damage, and of lies that are signed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.shard import schema
from pipeline.verify import verify
from tests import fixture_files
from tests.changes import CP, PARTS, PLAN, SHARD, Change, broken, offence
from tests.fixture_files import byte_ranges, write_indexes, write_table
from tests.fixture_set import SetData, make_set


# --- Law: every file is the one its digest names.
def all_files() -> list[str]:
    stores = [source["store"] for source in make_set().manifest["sources"]]
    names = ("source.json", "inputs.parquet", "parts.parquet", "lengths.u32", "rejects.parquet")
    endings = ("tokens", "index.parquet", "blocks.parquet")
    parts = [f"{stores[i]}/parts/0000{part}.{end}" for i, part in ((0, 0), (0, 1), (1, 0))
             for end in endings]  # fmt: skip
    tables = ("files.parquet", "row_groups.parquet", "steps.parquet", "tail.parquet")
    return [
        "manifest.json", *tables, *PARTS, *(f"{s}/{name}" for s in stores for name in names), *parts
    ]  # fmt: skip


@contextmanager
def flipped(path: Path, offset: int) -> Iterator[None]:
    """One bit of a file is another one, for a while."""
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[offset] ^= 16
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(intact)


def test_the_list_of_files_is_complete(directory: Path):
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*.*")}
    assert {name for name in found if (directory / name).is_file()} == {
        *all_files(),
        "manifest.sha256",
    }


@pytest.mark.parametrize("name", all_files())
def test_a_flipped_bit_in_any_file_is_found_and_the_file_named(name: str, directory: Path):
    path = directory / name
    with flipped(path, path.stat().st_size // 2):
        assert offence(directory).path == str(path)


@pytest.mark.parametrize("name", all_files())
def test_a_missing_file_is_named(name: str, directory: Path):
    path = directory / name
    path.rename(path.with_suffix(".away"))
    try:
        assert offence(directory).path == str(path)
    finally:
        path.with_suffix(".away").rename(path)


def test_a_flipped_bit_in_the_manifests_digest_is_found(directory: Path):
    with flipped(directory / "manifest.sha256", 3):
        assert "manifest.sha256 says" in str(offence(directory))


@pytest.mark.parametrize("name", PARTS)
def test_a_flipped_bit_in_a_part_is_placed_in_its_row_group(name: str, directory: Path):
    path = directory / name
    groups = []
    for group, _, offset, length in byte_ranges(path):
        for place in (offset, offset + length - 1):
            with flipped(path, place):
                error = offence(directory)
            assert (error.path, error.row_group) == (str(path), group)
            assert f"{name}, {'footer' if group < 0 else f'row group {group}'}: " in str(error)
        groups.append(group)
    assert groups[-1] == -1
    assert len(groups) > 2


def test_a_flipped_bit_before_the_first_row_group_is_found(directory: Path):
    with flipped(directory / PLAN, 3):
        error = offence(directory)
    assert (error.path, error.row_group) == (str(directory / PLAN), None)


def test_a_flipped_bit_in_tokens_is_placed_in_its_block(directory: Path):
    path = directory / make_set().manifest["sources"][1]["store"] / "parts/00000.tokens"
    assert path.stat().st_size > 65_536
    with flipped(path, 65_536):
        assert "block 1 (bytes from 65536) is damaged" in str(offence(directory))


def test_a_part_that_nobody_lists_is_found(tmp_path: Path):
    make_set().write(tmp_path)
    (tmp_path / "plan/00002.parquet").write_bytes((tmp_path / PLAN).read_bytes())
    assert "plan/00002.parquet: is not listed" in str(offence(tmp_path))


def test_a_listed_part_of_which_the_manifest_does_not_tell_is_found(tmp_path: Path):
    error = broken(lambda data: data.manifest.update(cp={}), tmp_path)
    assert "lists cp=2/00000.parquet, of which manifest.json does not tell" in str(error)


def test_a_workload_model_that_cannot_be_computed_again_is_refused(tmp_path: Path):
    error = broken(lambda data: data.manifest["workload"].update(model="moe"), tmp_path)
    assert "workload.model is 'moe'" in str(error)


def test_a_truncated_part_is_found(tmp_path: Path):
    path = make_set().write(tmp_path) / SHARD
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{SHARD}: has" in str(offence(tmp_path))


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("row_groups", "xxh3_128", "0" * 32, "row group 0: row_groups.parquet has another digest"),
        ("row_groups", "offset", 5, "places its row groups elsewhere"),
        ("row_groups", "first_step", 1, "has first step 1, it is 0"),
        ("row_groups", "path", CP, "in the order of files.parquet"),
        ("files", "content_sha256", "0" * 64, "content digest is not"),
        ("files", "bytes", 5, "files.parquet says 5"),
        ("files", "sha256", "0" * 64, "its bytes are not those of SHA-256 0000"),
        ("files", "path", "plan/x.parquet", "does not list plan/00000.parquet"),
        ("files", "path", SHARD, "lists a file twice"),
    ],
)
def test_indexes_that_lie_of_intact_files_are_found(
    table: str, column: str, value: Any, message: str, tmp_path: Path
):
    data = make_set()
    data.write(tmp_path)
    layout = {"files": schema.FILES, "row_groups": schema.ROW_GROUPS}[table]
    columns = pq.read_table(tmp_path / f"{table}.parquet").to_pydict()
    columns[column][0] = value
    write_table(tmp_path / f"{table}.parquet", columns, layout)
    data.write_manifest(tmp_path)
    assert message in str(offence(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_group_size": 5}, "row groups have"),
        ({"row_group_size": 4, "compression": "snappy"}, "SNAPPY"),
        ({"row_group_size": 4, "compression": "none"}, "UNCOMPRESSED"),
    ],
)
def test_a_shard_of_another_layout_is_found(options: dict[str, Any], message: str, tmp_path: Path):
    data = make_set()
    data.write(tmp_path)
    table = pq.read_table(tmp_path / SHARD)
    layout = {"compression": "zstd", "use_dictionary": False} | options
    pq.write_table(table, tmp_path / SHARD, **layout)
    write_indexes(tmp_path, PARTS)
    data.write_manifest(tmp_path)
    error = offence(tmp_path)
    assert SHARD in str(error)
    assert message in str(error)


@pytest.mark.parametrize("path", [PLAN, SHARD, CP])
def test_a_column_of_another_type_is_found(path: str, tmp_path: Path):
    data = make_set()
    data.write(tmp_path)
    table = pq.read_table(tmp_path / path)
    wider = table.set_column(1, "slot", table.column("slot").cast("int64"))
    pq.write_table(wider, tmp_path / path, row_group_size=4, use_dictionary=False)
    write_indexes(tmp_path, PARTS)
    data.write_manifest(tmp_path)
    error = offence(tmp_path)
    assert path in str(error)
    assert "column 'slot' is int64, must be int32" in str(error)


def test_a_null_in_a_part_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fixture_files, "content_digest", lambda path: "0" * 64)
    data = make_set()
    data.plan[0]["source"][0] = None
    assert f"{PLAN}: has no content digest" in str(offence(data.write(tmp_path)))


def test_a_null_in_the_tail_is_found(tmp_path: Path):
    def change(data: SetData) -> None:
        data.tail["epoch"][0] = None

    assert "tail.parquet: holds a null" in str(broken(change, tmp_path))


# --- Law: the token stores are whole, and those that the manifest tells of.
def store(change: Callable[[Any], Any]) -> Change:
    return lambda data: change(data.stores[0]) and None


def with_metadata(change: Callable[[Any], Any] = lambda store: None) -> Change:
    """`books` keeps the columns id and url, and has a note; then the change."""

    def prepare(data: SetData) -> None:
        books = data.stores[0]
        books.source |= {"keep_columns": ["id", "url"], "notes": {"duplicate_id": 1}}
        books.index[0]["metadata"] = ['{"id":1,"url":null}', None, '{"id":3,"url":"x"}']
        books.index[1]["metadata"] = [None, None]
        books.notes = {"path": ["a"], "record": [0], "reason": ["duplicate_id"], "detail": [""]}
        change(books)

    return prepare


def test_a_store_with_metadata_and_notes_passes(tmp_path: Path):
    data = make_set()
    with_metadata()(data)
    plain = make_set().write(tmp_path / "plain")
    report = verify(data.write(tmp_path / "kept"))
    assert report.files == verify(plain).files + 1


def set_ends(data: SetData, name: str, token_id: int, ends: list[str | None]) -> None:
    """Let the tokenizer add an id, and the sources bring their tokens with these `ends`."""
    data.manifest["tokenizer"][name] = token_id
    for source, given in zip(data.stores, ends, strict=True):
        source.source["tokenizer"][name] = token_id
        if given:
            source.source["ends"] = given


def empty_first(data: Any) -> None:
    """Give the tokens of a store's first document to its second."""
    tokens, data.lengths[0] = data.lengths[0], 0
    data.lengths[1] += tokens
    length, offset = data.index[0]["length"], data.index[0]["offset"]
    length[:2], offset[1] = data.lengths[:2], 0


STORE_LAWS: dict[str, tuple[Change, str, str]] = {
    "tokens are the shards'": (
        lambda data: data.stores[0].parts[0].__setitem__(0, 999), SHARD, "its document has"),
    "lengths add up": (store(lambda s: s.lengths.__setitem__(0, 41)), "lengths.u32", "documents"),
    "lengths are the index's": (
        store(lambda s: (s.lengths.__setitem__(0, 39), s.lengths.__setitem__(1, 10))),
        "00000.index.parquet", "not those of lengths.u32"),
    "the index lies end to end": (
        store(lambda s: s.index[0]["offset"].__setitem__(1, 41)),
        "00000.index.parquet", "do not lie end to end"),
    "the index knows its inputs": (
        store(lambda s: s.index[1]["file"].__setitem__(0, 1)),
        "00001.index.parquet", "inputs.parquet lacks"),
    "parts are numbered": (
        store(lambda s: s.parts_table["part"].__setitem__(1, 2)), "parts.parquet", "numbered"),
    "documents of parts lie end to end": (
        store(lambda s: s.parts_table["first_doc_id"].__setitem__(1, 2)),
        "parts.parquet", "end to end"),
    "parts add up": (
        store(lambda s: s.parts_table["tokens"].__setitem__(1, 36)), "parts.parquet", "add up"),
    "token files have their size": (
        store(lambda s: s.parts[1].pop()), "00001.tokens", "bytes, must have"),
    "rejects are counted": (
        lambda data: data.stores[1].rejects["reason"].__setitem__(0, "short"),
        "rejects.parquet", "{'short': 1}"),
    "metadata is an object of the kept columns": (
        with_metadata(lambda s: s.index[0]["metadata"].__setitem__(2, '{"id":3}')),
        "00000.index.parquet", "row 2: metadata is"),
    "metadata is JSON": (
        with_metadata(lambda s: s.index[1]["metadata"].__setitem__(0, "{")),
        "00001.index.parquet", "row 0: metadata is"),
    "kept columns have their column": (
        with_metadata(lambda s: s.index[1].pop("metadata")), "00001.index.parquet", "columns are"),
    "metadata is announced": (
        with_metadata(lambda s: s.source.pop("keep_columns")), "index.parquet", "columns are"),
    "notes are counted": (
        with_metadata(lambda s: s.notes["reason"].__setitem__(0, "other")),
        "notes.parquet", "{'other': 1}"),
    "the manifest has its documents": (
        lambda data: data.manifest["sources"][0].update(documents=6), "source.json", "manifest"),
    "the manifest has its tokenizer": (
        lambda data: data.manifest.update(tokenizer={"name": "other"}), "source.json", "tokenizer"),
    "the manifest has its name": (
        lambda data: data.manifest["sources"][0].update(name="b"), "source.json", "'b'"),
    "its format is known": (
        store(lambda s: s.source.update(version=2)), "source.json", "steelyard-store 1"),
    "its digests are there": (
        lambda data: data.stores[0].source.pop("rejected"), "source.json", "KeyError"),
    "ids are in the vocabulary": (
        store(lambda s: s.parts[1].__setitem__(3, 50_000)),
        "00001.tokens", "token 3 is 50000, but the vocabulary has 50000 ids"),
    "documents have tokens": (
        store(lambda s: empty_first(s)), "00000.tokens",
        "document 0 of the part has no tokens"),
    "documents have their BOS": (
        lambda data: set_ends(data, "bos_id", 1, [None, None]),
        "store/books-6e317bcd6839e887/parts/00000.tokens",
        "document 1 of the part does not begin with bos_id 1"),
    "documents have their EOS": (
        lambda data: set_ends(data, "eos_id", 0, ["as_given", "add"]),
        "store/web-4b5e57f6eb2f42b9/parts/00000.tokens",
        "document 0 of the part does not end with eos_id 0"),
    "ends are known": (
        store(lambda s: s.source.update(ends="cut")), "source.json", "has ends 'cut'"),
    "ids fit the shards": (
        store(lambda s: s.source.update(dtype="uint32")), "source.json", "uint32"),
}  # fmt: skip


@pytest.mark.parametrize("law", STORE_LAWS)
def test_a_token_store_at_odds_with_itself_or_the_set_is_found(law: str, tmp_path: Path):
    change, path, message = STORE_LAWS[law]
    error = broken(change, tmp_path)
    assert path in error.path
    assert message in str(error)


def test_ends_as_given_promise_nothing(tmp_path: Path):
    data = make_set()
    set_ends(data, "eos_id", 0, ["as_given", "as_given"])
    verify(data.write(tmp_path))
