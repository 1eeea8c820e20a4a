"""One micro-batch's CP plan, laid open: which pieces are cut, and what each rank has to do."""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.context_parallel import CPPlan
from packer.context_parallel.work import RankWork, rank_work
from packer.workload import SCALE
from pipeline.built import workload_of
from pipeline.planning.cp_options import options_of
from pipeline.shard.manifest import Manifest
from pipeline.shard.micro_batch import Chunks
from pipeline.shard.tables import FormatError


def cp_figures(
    manifest: Manifest, chunks: Chunks, piece_tokens: np.ndarray, cp_size: int
) -> dict[str, Any]:
    """A micro-batch's plan of one degree, in JSON types.

    Args:
        manifest: of the set.
        chunks: the row.
        piece_tokens: of the micro-batch, (pieces,).
        cp_size: the degree.

    Returns:
        `strategy`; `considered`, the slowest rank's work under each candidate, in linear-token
        equivalents as all work here; `pieces`, a dict each: `tokens`, `ranks` that hold some of
        it; `ranks`, a dict each: `cp_rank`, `tokens` (pads among them), `pads`, `area_share` of
        all attention tiles, `linear`, `attention` and `exchange` work and their sum `predicted`,
        `of_mean`, that over the ranks' mean, `chunks` (`piece`, -1 for pads, `start`, `stop`).

    Raises:
        FormatError: the degree is described badly.
    """
    entry = manifest.cp[str(cp_size)]
    plan = _plan(chunks, cp_size)
    workload, offsets = workload_of(manifest), np.array([0, len(piece_tokens)])
    try:
        work = rank_work(plan, piece_tokens, offsets, workload, options_of(entry, workload))
    except ValueError as error:
        path = manifest.directory / "manifest.json"
        raise FormatError(f"cp.{cp_size}: {error}", path=path) from error
    names = entry.get("candidates", ())
    return {
        "strategy": chunks.strategy,
        "considered": {
            name: int(value) / SCALE for name, value in zip(names, chunks.considered, strict=True)
        },
        "pieces": [
            {
                "tokens": int(tokens),
                "ranks": np.unique(plan.cp_rank[plan.piece == piece]).tolist(),
            }
            for piece, tokens in enumerate(piece_tokens)
        ],
        "ranks": [_rank(plan, work, rank) for rank in range(cp_size)],
    }


def _rank(plan: CPPlan, work: RankWork, rank: int) -> dict[str, Any]:
    mine = np.flatnonzero(plan.cp_rank == rank)
    is_pad = mine[plan.piece[mine] < 0]
    total = work.total[0]
    return {
        "cp_rank": rank,
        "tokens": int(work.tokens[0, rank]),
        "pads": int((plan.stop[is_pad] - plan.start[is_pad]).sum()),
        "area_share": float(work.area[0, rank] / max(int(work.area[0].sum()), 1)),
        "linear": float(work.linear[0, rank] / SCALE),
        "attention": float(work.attention[0, rank] / SCALE),
        "exchange": float(work.exchange[0, rank] / SCALE),
        "predicted": float(total[rank] / SCALE),
        "of_mean": float(total[rank] / total.mean()),
        "chunks": [
            {"piece": int(plan.piece[i]), "start": int(plan.start[i]), "stop": int(plan.stop[i])}
            for i in mine
        ],
    }


def _plan(chunks: Chunks, cp_size: int) -> CPPlan:
    """The row as a plan of one micro-batch."""
    return CPPlan(
        cp_size=cp_size,
        strategy=(chunks.strategy,),
        row_offsets=np.array([0, len(chunks.start)], np.int64),
        cp_rank=chunks.cp_rank.astype(np.int32),
        piece=chunks.piece.astype(np.int32),
        start=chunks.start.astype(np.int64),
        stop=chunks.stop.astype(np.int64),
        predicted=chunks.predicted.astype(np.int64).reshape(1, cp_size),
        considered=chunks.considered.astype(np.int64).reshape(1, -1),
    )
