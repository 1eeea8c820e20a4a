"""Law 1: every token is in one place. Pieces go missing, come twice, or change, all signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.reading.records.outcome import Problem
from pipeline.reading.records.read import RecordBatch
from pipeline.stores import tokenize
from pipeline.verify import verify
from tests.fixture_contents import LENGTHS, S_MAX, N, Piece, piece_tokens
from tests.laws.lies import Rows, check_is_found, set_of_rows, set_of_stream
from tests.laws.noticed import noticed
from tests.pipeline import test_tokenize


def lose(rows: Rows) -> None:
    next(row for row in rows if len(row) > 1).pop()


def double(rows: Rows) -> None:
    """Put a piece into a second micro-batch of its step too."""
    for first in range(0, len(rows), N):
        for one, other in ((0, 1), (1, 0)):
            target = rows[first + other]
            room = S_MAX - sum(map(piece_tokens, target))
            for piece in rows[first + one]:
                if piece_tokens(piece) <= room:
                    return target.append(dict(piece))
    raise AssertionError("no piece fits twice; choose another seed")


def shorten(rows: Rows) -> None:
    """Lose the last token of a document that is one piece."""
    piece = next(p for row in rows for p in row if p["doc_stop"] == p["taken"] > 1)
    piece["doc_stop"] -= 1


def take_twice(rows: Rows) -> None:
    """Put the tokens of one piece in the place of another's that has as many, in the same pass."""
    pieces = [piece for row in rows for piece in row]
    for one in pieces:
        for other in pieces:
            same = all(one[name] == other[name] for name in ("source", "epoch"))
            if same and one is not other and piece_tokens(one) == piece_tokens(other):
                names = ("doc_id", "doc_start", "doc_stop", "taken")
                return one.update({name: other[name] for name in names})
    raise AssertionError("no two pieces of one length")


def swap_passes(rows: Rows) -> None:
    """A document runs twice in the first pass, and not in the second."""
    second = next(p for row in rows for p in row if p["source"] == 0 and p["epoch"] == 1)
    second["epoch"] = 0


LIES = {
    "a piece is lost": (lose, "they leave a gap"),
    "a piece is there twice": (double, "they overlap"),
    "a token at a document's end is lost": (shorten, "they leave a gap"),
    "a piece has another's tokens": (take_twice, "shares tokens with piece"),
    "a document runs twice in a pass": (swap_passes, "shares tokens with piece"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_signed_lie_about_pieces_is_found(lie: str, tmp_path: Path) -> None:
    change, message = LIES[lie]
    check_is_found(set_of_rows(change), message, tmp_path)


def test_a_set_that_does_not_lie_is_believed(tmp_path: Path) -> None:
    verify(set_of_rows(lambda rows: None).write(tmp_path / "rows"))
    verify(set_of_stream(lambda stream: None).write(tmp_path / "stream"))


def test_a_document_left_out_of_a_pass_that_was_not_the_last_is_found(tmp_path: Path) -> None:
    def change(stream: list[Piece]) -> None:
        of_length_4 = LENGTHS["books"].index(4)
        lost = [p for p in stream if (p["source"], p["doc_id"], p["epoch"]) == (0, of_length_4, 0)]
        stream.remove(*lost)
        short = next(p for p in stream if (p["source"], p["epoch"]) == (0, 1))
        stream.insert(stream.index(short), {**lost[0], "epoch": 1})

    error = check_is_found(set_of_stream(change), "", tmp_path)
    assert "document 4 of source 'books'" in str(error)


def test_tokens_that_encoding_loses_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = tokenize._encode

    def forgetful(batch: Any, encoder: Any, identity: Any) -> Any:
        """Lose a token of the first document, and count well what is left."""
        found = encode(batch, encoder, identity)
        lengths = found.lengths.copy()
        lengths[0] -= 1
        return tokenize._Documents(
            ids=np.delete(found.ids, 0),
            lengths=lengths,
            file=found.file,
            record=found.record,
            text_bytes=found.text_bytes,
            rejects=found.rejects,
            records=found.records,
        )

    documents = test_tokenize.TestDocuments()
    check = documents.test_a_document_is_what_the_engine_makes_of_its_text_with_eos_behind
    check(tmp_path / "right")
    monkeypatch.setattr(tokenize, "_encode", forgetful)
    with noticed():
        check(tmp_path / "wrong")


def test_records_that_are_refused_and_not_counted_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = test_tokenize.TestSplits().test_a_receipt_goes_through_json_unchanged
    check(tmp_path / "right")
    monkeypatch.setattr(RecordBatch, "refuse", lambda batch, file, record, problem: None)
    with noticed():
        check(tmp_path / "wrong")


def test_rejects_that_name_another_record_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = test_tokenize.TestDocuments().test_a_document_without_a_token_is_refused
    with monkeypatch.context() as patch:
        check(tmp_path / "right", patch)
    refuse = RecordBatch.refuse

    def beside(batch: RecordBatch, file: int, record: int, problem: Problem) -> None:
        refuse(batch, file, record + 1, problem)

    monkeypatch.setattr(RecordBatch, "refuse", beside)
    with noticed():
        check(tmp_path / "wrong", monkeypatch)
