"""Where documents come from, broken on purpose in a set whose digests are right: verify speaks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.verify import verify
from tests.changes import Change, both, broken
from tests.fixture_contents import REFUSED
from tests.fixture_set import SetData, make_set

BOOKS, WEB = 0, 1


def put(table: str, column: str, values: list[Any], source: int = BOOKS) -> Change:
    """Set a column of a store's `parts_table`, `inputs`, `rejects` or `notes`."""

    def change(data: SetData) -> None:
        getattr(data.stores[source], table)[column] = values

    return change


def index(part: int, column: str, values: list[Any], source: int = BOOKS) -> Change:
    return lambda data: data.stores[source].index[part].__setitem__(column, values)


def two_files(data: SetData) -> None:
    """`books` has a second input."""
    data.stores[BOOKS].inputs = {
        "path": ["a.jsonl", "b.jsonl"], "bytes": [1, 1], "xxh3_128": ["0" * 32] * 2
    }  # fmt: skip


def refused(*records: int, path: str = "a.jsonl") -> Change:
    """`web` refused these records."""

    def change(data: SetData) -> None:
        web, count = data.stores[WEB], len(records)
        web.rejects = {
            "path": [path] * count, "record": list(records), "reason": ["empty"] * count,
            "detail": [""] * count,
        }  # fmt: skip
        web.source["rejected"] = {"empty": count}
        data.manifest["sources"][WEB]["rejected"] = {"empty": count}

    return change


def noted(record: int) -> Change:
    """`books` has a note of a record."""

    def change(data: SetData) -> None:
        books = data.stores[BOOKS]
        books.source |= {"notes": {"duplicate_id": 1}}
        books.notes = {
            "path": ["a.jsonl"], "record": [record], "reason": ["duplicate_id"], "detail": [""]
        }  # fmt: skip

    return change


def of_format(name: str) -> Change:
    """The configuration says of both sources that they are of a format."""
    sources = [{"name": source, "format": name} for source in ("books", "web")]
    return lambda data: data.manifest.update(config={"sources": sources})


PARTS, INDEX, REJECTS = "parts.parquet", "index.parquet", "rejects.parquet"
NOT_ENDED = "its records of file 0 end before 3, the next part begins with 4"
LAWS: dict[str, tuple[Change, str, str]] = {
    "inputs stand once": (
        both(two_files, put("inputs", "path", ["a.jsonl"] * 2)), "inputs.parquet", "a path twice"),
    "a part's file is an input": (
        put("parts_table", "file", [0, 1]), PARTS, "part 1: file is none of inputs.parquet"),
    "a part begins with a record": (
        put("parts_table", "first_record", [0, -1]), PARTS, "part 1: first_record is no number"),
    "the first part begins a file": (
        put("parts_table", "first_record", [1, 3]), PARTS, "part 0: first_record must be 0"),
    "a part of another file begins it": (
        both(two_files, put("parts_table", "file", [0, 1])), PARTS,
        "part 1: first_record must be 0, no earlier part has its file"),
    "parts ascend by file": (
        both(two_files, put("parts_table", "file", [1, 0]),
             put("parts_table", "first_record", [0, 0])),
        PARTS, "part 1: it begins before the part before it"),
    "a part begins behind the records of the one before": (
        put("parts_table", "first_record", [0, 2]), "00000." + INDEX,
        "row 2: record 2 of file 0 is not before record 2 of file 0, with which the next part"),
    "documents ascend by record": (
        index(0, "record", [0, 2, 1]), "00000." + INDEX, "row 2: record 1 of file 0 does not come"),
    "no record is two documents": (
        index(1, "record", [1, 1]), "00001." + INDEX, "row 1: record 4 of file 0 does not come"),
    "documents ascend by file": (
        both(two_files, index(1, "file", [1, 0])), "00001." + INDEX, "row 1: record 4 of file 0"),
    "documents are not of files before their part's": (
        both(two_files, put("parts_table", "file", [0, 1]),
             put("parts_table", "first_record", [0, 0]), index(1, "record", [9, 9]),
             index(1, "file", [0, 1])),
        "00001." + INDEX, "row 0: record 9 of file 0 is before the part's first file, 1"),
    "records have numbers": (index(0, "record", [-1, 1, 2]), INDEX, "a record whose number cannot"),
    "every document has a record": (index(0, "record", [0, None, 2]), INDEX, "holds a null"),
    "rejects are of inputs": (
        refused(REFUSED, path="b.jsonl"), REJECTS, "row 0: its path is none of inputs.parquet"),
    "rejects have numbers": (refused(-1), REJECTS, "row 0: its record is no number"),
    "rejects ascend": (
        refused(11, REFUSED), REJECTS, "row 1: it must stand behind the row before it"),
    "a record is refused once": (
        refused(REFUSED, REFUSED), REJECTS, "row 1: it must stand behind the row before it"),
    "rejects are of parts": (
        both(two_files, put("parts_table", "file", [1, 1]), index(0, "file", [1] * 3),
             index(1, "file", [1] * 2), noted(0)),
        "notes.parquet", "row 0: it is before the first part"),
    "no document is refused": (
        refused(REFUSED + 1), INDEX, "row 3: record 4 of file 0 is a document, and refused in"),
    "notes are of documents": (
        noted(7), "00001." + INDEX, "has no document of record 7 of file 0, of which notes"),
    "no row of Parquet is left out": (
        both(of_format("parquet"), refused(11)), INDEX, "record 3 of file 0 is neither a document"),
    "a part of Parquet begins where the one before ends": (
        both(of_format("parquet"), put("parts_table", "first_record", [0, 4])),
        "00000." + INDEX, NOT_ENDED),
    "so it does where the name says Parquet": (
        both(of_format("auto"), put("inputs", "path", ["a.parquet"]),
             put("parts_table", "first_record", [0, 4])),
        "00000." + INDEX, NOT_ENDED),
    "a part of Parquet is of one file": (
        both(of_format("parquet"), two_files, index(1, "file", [0, 1]),
             index(1, "record", [0, 4])),
        "00001." + INDEX, "row 1: record 4 of file 1 is not in the part's file, 0"),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_a_document_that_is_from_nowhere_is_found(law: str, tmp_path: Path) -> None:
    change, path, message = LAWS[law]
    error = broken(change, tmp_path)
    assert path in error.path
    assert message in str(error)


@pytest.mark.parametrize(
    "change",
    [
        of_format("parquet"),
        both(of_format("auto"), refused(11)),  # line 3 is blank
        both(of_format("jsonl"), put("parts_table", "first_record", [0, 4])),
        both(refused(REFUSED, 11), noted(4)),
        both(two_files, index(1, "file", [0, 1]), index(1, "record", [0, 0])),  # text files
        lambda data: data.manifest.update(config={"sources": [3, {"name": []}]}),
    ],
)
def test_blank_lines_and_files_of_text_are_no_offence(
    change: Callable[[SetData], None], tmp_path: Path
) -> None:
    data = make_set()
    change(data)
    count = len(data.stores[WEB].rejects["record"])
    data.manifest["totals"]["rejected"] = {"empty": count}
    assert verify(data.write(tmp_path)).rows == 16
