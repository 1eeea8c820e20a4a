"""One micro-batch's CP plan laid open: which pieces are cut, what each rank has to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jobs import show_cp
from pipeline.inspect import inspect
from pipeline.shard.tables import FormatError
from tests.changes import padded
from tests.fixture_contents import KV_EXCHANGE
from tests.fixture_set import make_set


def test_a_plan_is_laid_open(tmp_path: Path) -> None:
    data = make_set()
    figures = inspect(data.write(tmp_path), step=1, slot=1)["cp"]["2"]
    row = 3
    lengths = np.diff(data.plan[0]["cu_seqlens"][row]).tolist()
    assert [piece["tokens"] for piece in figures["pieces"]] == lengths
    assert (figures["strategy"], figures["considered"]) == ("per_sequence", {})
    columns = [data.cp[0][name][row] for name in ("cp_rank", "piece", "start", "stop")]
    chunks = list(zip(*columns, strict=True))
    for number, piece in enumerate(figures["pieces"]):
        assert piece["ranks"] == sorted({rank for rank, of, _, _ in chunks if of == number})
    for rank in figures["ranks"]:
        mine = [chunk for chunk in chunks if chunk[0] == rank["cp_rank"]]
        assert [tuple(chunk.values()) for chunk in rank["chunks"]] == [c[1:] for c in mine]
        assert rank["linear"] == rank["tokens"] == sum(stop - start for *_, start, stop in mine)
        assert rank["predicted"] == data.cp[0]["predicted"][row][rank["cp_rank"]] / 256
        parts = rank["linear"] + rank["attention"] + rank["exchange"]
        assert parts == rank["predicted"]
        assert rank["area_share"] == len(mine) / len(chunks)  # every chunk is one tile
        assert rank["pads"] == 0
    assert sum(rank["of_mean"] for rank in figures["ranks"]) == pytest.approx(2)
    assert sum(rank["exchange"] for rank in figures["ranks"]) % KV_EXCHANGE == 0


def test_pads_are_told_from_tokens(tmp_path: Path) -> None:
    data = make_set()
    padded(12)(data)
    ranks = inspect(data.write(tmp_path), step=0)["cp"]["2"]["ranks"]
    assert [(rank["tokens"], rank["pads"]) for rank in ranks] == [(12, 6), (12, 2)]


def test_a_degree_that_is_described_badly_is_named(tmp_path: Path) -> None:
    data = make_set()
    data.manifest["cp"]["2"]["throughput"] = "profile"
    with pytest.raises(FormatError, match=r"cp\.2: throughput is .profile., but"):
        inspect(data.write(tmp_path), step=0)


def test_candidates_that_the_plan_did_not_consider_are_named(tmp_path: Path) -> None:
    data = make_set()
    data.manifest["cp"]["2"]["candidates"] = ["mixed"]
    with pytest.raises(FormatError, match=r"cp\.2 has 1 candidates, its plan considers 0"):
        inspect(data.write(tmp_path), step=0)


def test_a_table_stays_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    rank = {"cp_rank": 0, "tokens": 8, "area_share": 0.5, "linear": 8.0, "attention": 1.0}
    rank |= {"exchange": 0.0, "predicted": 9.0, "of_mean": 1.0}
    chunks = [{"piece": piece, "start": 0, "stop": 1} for piece in range(7)]
    chunks[1] = {"piece": -1, "start": 3, "stop": 4}
    pieces = [{"tokens": 5, "ranks": [3]}, {"tokens": 5, "ranks": [0, 1, 2]}]
    pieces += [{"tokens": 5, "ranks": [0, 2]}, {"tokens": 50, "ranks": [*range(0, 24, 2)]}]
    figures = {"strategy": "mixed", "considered": {"mixed": 9.0, "per_sequence": 12.0}}
    figures |= {"pieces": pieces, "ranks": [rank | {"chunks": chunks}]}
    show_cp.micro_batch("4", figures)
    shown = capsys.readouterr().out
    assert "cp 4: mixed; slowest rank under mixed 9, per_sequence 12" in shown
    where = show_cp.where_pieces_are({"4": figures})["cp 4"]
    assert where == ["3", "0 to 2", "0, 2", "0, 2, 4, 6, 8, 10, 12, 14, +4"]
    for words in ("0: 0-1", "pad: 3-4", "+3"):
        assert words in shown
