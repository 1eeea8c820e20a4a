"""Law 2: a piece knows itself alone. Labels, positions, keys and attention cross its ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.shard import rank_views
from pipeline.shard import reader as reader_module
from pipeline.shard.exchange import RankExchange
from pipeline.shard.micro_batch import PackedTokens, RankMicroBatch
from pipeline.shard.rank_chunks import RankChunks
from pipeline.shard.reader import Reader, open_shards
from tests.fixture_contents import SLOTS, STEPS
from tests.fixture_set import make_set
from tests.laws.lies import Rows, check_is_found, set_of_rows
from tests.laws.noticed import noticed
from tests.micro_batches import chunks_of_owners
from tests.pipeline import test_micro_batch, test_reader, test_sharded_attention
from tests.trainer import test_attention
from trainer import attention
from trainer.attention import attention_backend
from trainer.attention_kernels import reference
from trainer.errors import TrainerError


def join(rows: Rows) -> None:
    """Let a piece go on over the piece behind it, as if both were of one document."""
    row = next(row for row in rows if len(row) > 1 and row[0]["doc_stop"] == row[0]["taken"])
    second = row.pop(1)
    row[0]["doc_stop"] += second["doc_stop"] - second["doc_start"]


def test_two_documents_as_one_piece_are_found(tmp_path: Path) -> None:
    check_is_found(set_of_rows(join), "it reaches over its document", tmp_path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set().write(tmp_path_factory.mktemp("set"))


@pytest.fixture
def reader(directory: Path) -> Reader:
    return open_shards(directory)


def labels_of_ranks(reader: Reader, cp_size: int) -> int:
    """Every rank's labels, token by token, are those of the whole micro-batch; how many."""
    count = 0
    for step in range(STEPS):
        whole = {slot: reader.micro_batch(step, slot) for slot in range(SLOTS)}
        for rank in range(cp_size):
            views = reader.micro_batches(step, dp_rank=0, dp_size=1, cp_rank=rank, cp_size=cp_size)
            for view in views:
                mine = view.query_index
                np.testing.assert_array_equal(view.labels, whole[view.slot].labels[mine])
                np.testing.assert_array_equal(
                    view.position_ids, whole[view.slot].position_ids[mine]
                )
                count += len(mine)
    return count


@pytest.mark.parametrize("cp_size", [1, 2])
def test_a_label_from_the_next_piece_or_chunk_is_noticed(
    reader: Reader, cp_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = reader_module.fill_packed
    assert labels_of_ranks(reader, cp_size) == 241

    def crossing(
        chunks: RankChunks, out: np.ndarray, tokens: Sequence[np.ndarray], labels: np.ndarray
    ) -> np.ndarray:
        fill(chunks, out, tokens, labels)
        return np.append(out[1:], -100)[chunks.length.cumsum() - 1]

    monkeypatch.setattr(reader_module, "fill_packed", crossing)
    with noticed():
        labels_of_ranks(reader, cp_size)


def test_a_label_hidden_where_a_chunk_ends_inside_its_piece_is_noticed(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = reader_module.fill_packed

    def hiding(
        chunks: RankChunks, out: np.ndarray, tokens: Sequence[np.ndarray], labels: np.ndarray
    ) -> np.ndarray:
        found = fill(chunks, out, tokens, labels)
        goes_on = chunks.start + chunks.length < chunks.piece_length
        return np.where(goes_on, -100, found)

    monkeypatch.setattr(reader_module, "fill_packed", hiding)
    assert labels_of_ranks(reader, 1) == 241  # where no piece is cut nothing is wrong
    with noticed():
        labels_of_ranks(reader, 2)
    with noticed():
        test_reader.test_ranks_together_run_every_token_once(reader, 1, 2)


def test_labels_of_whole_micro_batches_that_cross_pieces_are_noticed(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_reader.test_every_label_is_the_documents_next_token(reader, make_set())

    def labels(batch: PackedTokens) -> np.ndarray:
        return np.append(batch.tokens[1:].astype(np.int64), -100)

    monkeypatch.setattr(PackedTokens, "labels", property(labels))
    with noticed():
        test_reader.test_every_label_is_the_documents_next_token(reader, make_set())


def test_positions_that_run_on_over_pieces_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def position_ids(batch: PackedTokens) -> np.ndarray:
        return np.arange(len(batch.tokens))

    monkeypatch.setattr(PackedTokens, "position_ids", property(position_ids))
    with noticed():
        test_micro_batch.test_positions_restart_in_every_piece()


LENGTHS = (7, 1, 12, 3)
DEALT = chunks_of_owners(LENGTHS, [i // 2 % 2 for i in range(sum(LENGTHS))])
"""Two tokens a rank by turns."""


def test_keys_of_another_piece_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    view_of = rank_views.rank_view

    def shifted(*arguments: Any) -> RankMicroBatch:
        view = view_of(*arguments)
        return replace(view, key_starts=np.maximum(view.key_starts - 1, 0))

    test_sharded_attention.check(LENGTHS, DEALT, 2)
    monkeypatch.setattr(test_sharded_attention, "rank_view", shifted)
    with noticed():
        test_sharded_attention.check(LENGTHS, DEALT, 2)


def test_exchanged_keys_of_another_piece_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange_of = test_sharded_attention.rank_exchange

    def shifted(*arguments: Any) -> RankExchange:
        found = exchange_of(*arguments)
        return replace(found, buffer_index=np.maximum(found.buffer_index - 1, 0))

    monkeypatch.setattr(test_sharded_attention, "rank_exchange", shifted)
    with noticed():
        test_sharded_attention.check(LENGTHS, DEALT, 2)


def crossing_attention(
    q: Tensor, k: Tensor, v: Tensor, borders_q: Tensor, borders_k: Tensor, most_q: int, most_k: int
) -> Tensor:
    """The last two segments as one."""
    joined = [torch.cat([borders[:-2], borders[-1:]]) for borders in (borders_q, borders_k)]
    return reference(q, k, v, *joined, most_q + len(q), most_k + len(k))


def test_attention_across_pieces_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    test_attention.test_another_segments_values_change_no_bit()
    monkeypatch.setattr(test_attention, "reference", crossing_attention)
    with noticed():
        test_attention.test_another_segments_values_change_no_bit()


def test_a_kernel_that_attends_across_pieces_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(attention.BACKENDS, "wrong", lambda device, dtype: crossing_attention)
    with pytest.raises(TrainerError, match="does not keep to causal segments"):
        attention_backend("wrong", device="cpu", dtype=torch.float64)
