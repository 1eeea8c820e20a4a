"""A rank's micro-batches of a step as tensors on its device, padded for tensor parallelism."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.shard.micro_batch import RankMicroBatch
from pipeline.shard.prefetch import ahead
from pipeline.shard.rank_reader import Reader
from pipeline.shard.schema import NO_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Keys to send and get, as `pipeline.shard.exchange.RankExchange` has them."""

    send_index: Tensor
    send_counts: list[int]
    receive_counts: list[int]
    buffer_index: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one rank computes of one micro-batch.

    `tokens`, `labels` and `position_ids` are int64, (rows,): the rank's tokens, then pads without
    a label. Attention sees the first `num_tokens` of them.
    """

    slot: int
    num_tokens: int
    tokens: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    exchange: Exchange
    pairs: int
    """Queries times the keys that they see."""
    predicted: float
    """This rank's work as the plan has it, in linear-token equivalents."""


def padded_rows(num_tokens: int, tp_size: int) -> int:
    """Rows that tp ranks share evenly; at least one each, so that none falls out of a collective.

    Example:
        >>> [padded_rows(tokens, 4) for tokens in (0, 4, 5)]
        [4, 4, 8]
    """
    return max(-(-num_tokens // tp_size), 1) * tp_size


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSource:
    """Reads for one rank of the mesh.

    Args:
        reader: of the set, for one thread.
        dp_rank: of the rank; all its tp and pp ranks read the same.
        dp_size: data-parallel ranks.
        cp_rank: of the rank.
        cp_size: context-parallel ranks.
        tp_size: tensor-parallel ranks.
        device: where the tensors go.
        prefetch: micro-batches that are read ahead; 0 for none, and no thread.
    """

    reader: Reader
    dp_rank: int
    dp_size: int
    cp_rank: int
    cp_size: int
    tp_size: int
    device: torch.device
    prefetch: int

    def rows(self, step: int) -> list[int]:
        """Padded rows of each micro-batch, from the plan alone, in the order of `batches`."""
        tokens = self.reader.shapes(
            step, dp_rank=self.dp_rank, dp_size=self.dp_size, cp_size=self.cp_size
        )
        return [padded_rows(n, self.tp_size) for n in tokens[:, self.cp_rank].tolist()]

    def batches(self, first_step: int, stop_step: int) -> Generator[Batch, None, None]:
        """All that the rank runs in these steps, one after the other, in its order.

        A thread reads ahead, with a reader of its own: it starts with the first micro-batch and
        ends with the last one, or when this is closed.

        Raises:
            NotInSet: a step or the mesh is none of the set's.
            FormatError: damaged bytes; in place of the micro-batch that needs them.
        """
        if not self.prefetch:
            yield from self._read(self.reader, first_step, stop_step)
        else:
            read = self._read(self.reader.another(), first_step, stop_step)
            yield from ahead(read, self.prefetch)

    def _read(
        self, reader: Reader, first_step: int, stop_step: int
    ) -> Generator[Batch, None, None]:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a thread's own
        for step in range(first_step, stop_step):
            for view in reader.micro_batches(
                step,
                dp_rank=self.dp_rank,
                dp_size=self.dp_size,
                cp_rank=self.cp_rank,
                cp_size=self.cp_size,
            ):
                yield self._batch(reader, view)

    def _batch(self, reader: Reader, view: RankMicroBatch) -> Batch:
        step, slot, cp_rank, cp_size = view.step, view.slot, self.cp_rank, self.cp_size
        exchange = reader.exchange(step, slot, cp_rank=cp_rank, cp_size=cp_size)
        predicted = view.workload
        if cp_size > 1:
            predicted = int(reader.chunks(step, slot, cp_size).predicted[cp_rank])
        pads = padded_rows(len(view.tokens), self.tp_size) - len(view.tokens)
        return Batch(
            slot=slot,
            num_tokens=len(view.tokens),
            tokens=self._on_device(np.pad(view.tokens, (0, pads))),
            labels=self._on_device(np.pad(view.labels, (0, pads), constant_values=NO_LABEL)),
            position_ids=self._on_device(np.pad(view.position_ids, (0, pads))),
            cu_seqlens_q=self._on_device(view.cu_seqlens_q),
            cu_seqlens_k=self._on_device(view.cu_seqlens_k),
            max_seqlen_q=view.max_seqlen_q,
            max_seqlen_k=view.max_seqlen_k,
            exchange=Exchange(
                send_index=self._on_device(exchange.send_index),
                send_counts=exchange.send_counts.tolist(),
                receive_counts=exchange.receive_counts.tolist(),
                buffer_index=self._on_device(exchange.buffer_index),
            ),
            pairs=int((view.position_ids + 1).sum()),
            predicted=predicted / reader.manifest.workload.scale,
        )

    def _on_device(self, array: np.ndarray) -> Tensor:
        """Copied without waiting, on the device's default stream, where the model computes."""
        tensor = torch.tensor(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)
