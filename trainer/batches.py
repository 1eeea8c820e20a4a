"""A rank's micro-batches of a step as tensors on its device, padded for tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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
        reader: of the set.
        dp_rank: of the rank; all its tp and pp ranks read the same.
        dp_size: data-parallel ranks.
        cp_rank: of the rank.
        cp_size: context-parallel ranks.
        tp_size: tensor-parallel ranks.
        device: where the tensors go.
    """

    reader: Reader
    dp_rank: int
    dp_size: int
    cp_rank: int
    cp_size: int
    tp_size: int
    device: torch.device

    def rows(self, step: int) -> list[int]:
        """Padded rows of each micro-batch, from the plan alone, in the order of `batches`."""
        tokens = self.reader.shapes(
            step, dp_rank=self.dp_rank, dp_size=self.dp_size, cp_size=self.cp_size
        )
        return [padded_rows(n, self.tp_size) for n in tokens[:, self.cp_rank].tolist()]

    def batches(self, step: int) -> list[Batch]:
        """The rank's micro-batches in the order in which it runs them.

        Raises:
            NotInSet: the step or the mesh is none of the set's.
            FormatError: damaged bytes.
        """
        reader, cp = self.reader, {"cp_rank": self.cp_rank, "cp_size": self.cp_size}
        scale = reader.manifest.workload.scale
        batches: list[Batch] = []
        for view in reader.micro_batches(step, dp_rank=self.dp_rank, dp_size=self.dp_size, **cp):
            exchange = reader.exchange(step, view.slot, **cp)
            if self.cp_size == 1:
                predicted = view.workload
            else:
                predicted = int(
                    reader.chunks(step, view.slot, self.cp_size).predicted[self.cp_rank]
                )
            pads = padded_rows(len(view.tokens), self.tp_size) - len(view.tokens)
            batches.append(
                Batch(
                    slot=view.slot,
                    num_tokens=len(view.tokens),
                    tokens=self._on_device(np.pad(view.tokens, (0, pads))),
                    labels=self._on_device(
                        np.pad(view.labels, (0, pads), constant_values=NO_LABEL)
                    ),
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
                    predicted=predicted / scale,
                )
            )
        return batches

    def _on_device(self, array: np.ndarray) -> Tensor:
        """Copied without waiting; nothing is ever computed from these on the device's clock."""
        tensor = torch.tensor(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)
