"""A part exists when the ledger says so, whatever a crash left of the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.state.ledger import Ledger, write_note


def test_receipts_come_back_under_their_key_only(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.record("key", "part-0", {"bytes": 3})
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.receipt("key", "part-0") == {"bytes": 3}
        assert ledger.receipt("other key", "part-0") is None
        assert ledger.receipt("key", "part-1") is None


@pytest.mark.parametrize("torn", range(1, 60, 7))
def test_a_torn_last_line_is_as_if_it_had_not_been_written(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "ledger"
    with Ledger(path) as ledger:
        ledger.record("key", "0", {"n": 0})
        ledger.record("key", "1", {"n": 1})
    path.write_bytes(path.read_bytes()[:-torn])
    with Ledger(path) as ledger:
        assert ledger.receipt("key", "0") == {"n": 0}
        assert ledger.receipt("key", "1") is None
        ledger.record("key", "2", {"n": 2})
    with Ledger(path) as ledger:
        assert ledger.receipt("key", "2") == {"n": 2}


def test_nothing_after_a_damaged_line_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path) as ledger:
        for unit in "012":
            ledger.record("key", unit, {})
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"1"', b'"7"')
    path.write_bytes(b"".join(lines))
    with Ledger(path) as ledger:
        assert ledger.receipt("key", "0") == {}
        assert ledger.receipt("key", "7") is None
        assert ledger.receipt("key", "2") is None


def test_another_configuration_takes_a_unit_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path) as ledger:
        ledger.record("A", "0", {"by": "A"})
        ledger.record("A", "1", {"by": "A"})
        ledger.forget(["0"])  # B is about to write the file of unit 0
    with Ledger(path) as ledger:
        assert ledger.receipt("A", "0") is None
        assert ledger.receipt("A", "1") == {"by": "A"}
        ledger.record("B", "0", {"by": "B"})
        assert ledger.receipt("A", "0") is None
        assert ledger.receipt("B", "0") == {"by": "B"}


def test_the_last_receipt_of_a_unit_counts(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.record("key", "0", {"try": 1})
        ledger.record("key", "0", {"try": 2})
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.receipt("key", "0") == {"try": 2}
        ledger.remove()
    assert not (tmp_path / "ledger").exists()


def test_a_worker_s_note_counts_under_its_key_until_the_unit_is_begun_again(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.noted("key", "shard/0") is None
        write_note(ledger.note_path("shard/0"), "key", "shard/0", {"bytes": 3})
        assert ledger.noted("key", "shard/0") == {"bytes": 3}
        assert ledger.noted("other key", "shard/0") is None
        assert ledger.receipt("key", "shard/0") is None
        ledger.forget(["shard/0"])
        assert ledger.noted("key", "shard/0") is None
        write_note(ledger.note_path("shard/0"), "key", "shard/0", {})
        path = ledger.note_path("shard/0")
        path.write_bytes(path.read_bytes().replace(b"shard", b"shord"))
        assert ledger.noted("key", "shard/0") is None
        ledger.remove()
    assert list(tmp_path.iterdir()) == []
