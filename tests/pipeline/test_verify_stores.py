"""Every law of token stores, broken on purpose in a set whose digests are right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.verify import verify
from tests.changes import SHARD, Change, broken
from tests.fixture_set import SetData, make_set


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
        books.notes = {
            "path": ["a.jsonl"],
            "record": [0],
            "reason": ["duplicate_id"],
            "detail": [""],
        }
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
