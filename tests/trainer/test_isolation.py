"""Pieces do not see one another, and a rank without tokens does not stop the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.shard.reader import open_shards
from tests import fixture_set
from tests.trainer import rank_jobs, small_sets
from tests.trainer.ranks import run_ranks
from tests.trainer.small_sets import SIZES, settings
from tests.trainer.test_equality import STEPS, assert_equal, frozen, joined


@pytest.mark.parametrize("cp_size", [1, 2])
def test_other_tokens_in_one_piece_leave_all_other_pieces_bit_equal(
    cp_size: int, small_set: Path, small_model: Path
) -> None:
    slot = small_sets.NUM_MICRO_BATCHES - 1  # the lightest, of most pieces
    lengths = np.diff(open_shards(small_set).micro_batch(0, slot).cu_seqlens)
    assert len(lengths) > 2
    changed = int(np.argmax(lengths[:-1]))  # others stand behind it
    tables = settings(small_model, mesh={"cp_size": cp_size})
    arguments = (tables, str(small_set), cp_size, slot, changed)
    seen: list[int] = []
    for piece, before, after in run_ranks(cp_size, rank_jobs.piece_outputs, *arguments):
        np.testing.assert_array_equal(before[piece != changed], after[piece != changed])
        different = (before[piece == changed] != after[piece == changed]).any(axis=1)
        assert different.all()
        seen += piece.tolist()
    assert np.bincount(seen).tolist() == lengths.tolist()


def test_a_cp_rank_without_tokens_takes_part_in_everything(
    tmp_path: Path, small_model: Path
) -> None:
    data = fixture_set.make_set()
    for table in data.shards:
        table["tokens"] = [[t % SIZES.vocabulary for t in row] for row in table["tokens"]]
        table["last_labels"] = [
            [t % SIZES.vocabulary if t >= 0 else t for t in row] for row in table["last_labels"]
        ]
    data.manifest["tokenizer"]["vocab_size"] = SIZES.vocabulary
    for plan, table in zip(data.plan, data.cp, strict=True):
        for row in range(0, len(plan["cu_seqlens"]), 2):  # every other one whole on rank 1
            lengths = np.diff(plan["cu_seqlens"][row]).tolist()
            table["cp_rank"][row], table["start"][row] = [1] * len(lengths), [0] * len(lengths)
            table["piece"][row], table["stop"][row] = list(range(len(lengths))), lengths
    root = data.write(tmp_path / "set")
    tokens = open_shards(root).shapes(0, dp_rank=0, dp_size=1, cp_size=2)
    assert (tokens == 0).any()
    meshes = ({"cp_size": 2}, {"cp_size": 2, "pp_size": 2}, {"cp_size": 2, "tp_size": 2})
    weights = small_sets.first_weights()
    expected = []
    for step in STEPS:
        loss = small_sets.reference_step(root, step, weights)
        expected.append({"loss": loss, "gradients": {n: w.grad for n, w in weights.items()}})
    for world_size, group in ((2, meshes[:1]), (4, meshes[1:])):
        runs = [(frozen(small_model, mesh), str(root)) for mesh in group]
        for records in joined(run_ranks(world_size, rank_jobs.train, runs, world_size, STEPS)):
            for found, wanted in zip(records, expected, strict=True):
                assert_equal(found, wanted)
