"""Reading ahead: the same tensors and the same run, and no thread that is left behind."""

from __future__ import annotations

import itertools
import shutil
import threading
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from pipeline.shard.reader import open_shards
from pipeline.shard.tables import FormatError
from tests.trainer import rank_jobs
from tests.trainer.ranks import run_ranks
from tests.trainer.small_sets import settings
from trainer.batches import Batch, BatchSource, Exchange

STEPS = 3


def source(shards: Path, prefetch: int, cp_size: int = 1, cp_rank: int = 0) -> BatchSource:
    return BatchSource(
        reader=open_shards(shards),
        dp_rank=0,
        dp_size=2,
        cp_rank=cp_rank,
        cp_size=cp_size,
        tp_size=2,
        device=torch.device("cpu"),
        prefetch=prefetch,
    )


def same(one: Batch | Exchange, other: Batch | Exchange) -> bool:
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Exchange):
            assert same(a, b)
        else:
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name
    return True


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize(("cp_size", "cp_rank"), [(1, 0), (2, 0), (2, 1)])
def test_what_is_read_ahead_is_what_is_read(cp_size: int, cp_rank: int, small_set: Path) -> None:
    plain = source(small_set, 0, cp_size, cp_rank)
    expected = list(plain.batches(1, STEPS))
    assert not threads()
    for prefetch in (1, 2, 50):
        found = list(source(small_set, prefetch, cp_size, cp_rank).batches(1, STEPS))
        assert all(same(*pair) for pair in zip(found, expected, strict=True))
        assert not threads()
    rows = itertools.chain.from_iterable(plain.rows(step) for step in range(1, STEPS))
    assert [len(batch.tokens) for batch in expected] == list(rows)


def test_predicted_is_the_plans_work_of_the_rank(small_set: Path) -> None:
    reader = open_shards(small_set)
    for batch in source(small_set, 2).batches(0, 1):
        assert batch.predicted == reader.micro_batch(0, batch.slot).workload / 256
    for rank in (0, 1):
        for batch in source(small_set, 2, 2, rank).batches(0, 1):
            assert batch.predicted == reader.chunks(0, batch.slot, 2).predicted[rank] / 256


@pytest.mark.parametrize("prefetch", [0, 1, 8])
def test_damage_comes_out_where_it_is_needed_and_ends_the_thread(
    prefetch: int, small_set: Path, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    shutil.copytree(small_set, root)
    shard = root / "shards" / "00000.parquet"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    batches = source(root, prefetch).batches(0, STEPS)
    with pytest.raises(FormatError, match="row group 0"):
        next(batches)
    assert not threads()


def test_what_is_closed_leaves_no_thread(small_set: Path) -> None:
    batches = source(small_set, 1).batches(0, STEPS)
    next(batches)
    assert len(threads()) == 1
    batches.close()
    assert not threads()


def test_a_run_is_the_same_to_the_last_digit_however_far_it_reads_ahead(
    small_set: Path, small_model: Path
) -> None:
    mesh = {"cp_size": 2, "pp_size": 2}
    runs = []
    for prefetch in (0, 3):
        tables = settings(small_model, mesh=mesh, run={"steps": STEPS, "prefetch": prefetch})
        records, _ = run_ranks(4, rank_jobs.train_on, tables, str(small_set), 4)[0]
        runs.append([(r["step"], r["loss"], r["grad_norm"], r["tokens"]) for r in records])
    assert len(runs[0]) == STEPS
    assert runs[0] == runs[1]


def test_a_run_that_stops_early_leaves_no_thread(small_set: Path, small_model: Path) -> None:
    tables = settings(small_model, run={"prefetch": 1})
    before, after = run_ranks(1, rank_jobs.stopped_early, tables, str(small_set))[0]
    assert "prefetch" in before
    assert "prefetch" not in after
