"""The tables of the set of `tests.fixture_set`, from its micro-batches in order."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from pipeline.shard import schema
from tests.fixture_contents import (
    CROSSOVER,
    KV_EXCHANGE,
    LENGTHS,
    SCALE,
    N,
    Piece,
    document_tokens,
    piece_tokens,
)
from tests.fixture_files import Columns
from tests.fixture_stream import workload_of


def plan_columns(rows: list[list[Piece]], first_step: int) -> Columns:
    columns: Columns = {
        "step": [first_step + index // N for index in range(len(rows))],
        "slot": [index % N for index in range(len(rows))],
        "cu_seqlens": [np.cumsum([0, *map(piece_tokens, row)]).tolist() for row in rows],
    }
    for name in ("source", "epoch", "doc_id", "doc_start", "doc_stop", "position"):
        columns[name] = [[piece[name] for piece in row] for row in rows]
    columns["num_targets"] = [
        sum(piece_tokens(piece) - (piece["doc_stop"] == piece["taken"]) for piece in row)
        for row in rows
    ]
    columns["workload"] = [workload_of(row) for row in rows]
    return columns


def shard_columns(rows: list[list[Piece]], plan: Columns) -> Columns:
    tokens, last_labels = [], []
    for row in rows:
        ids, last = [], []
        for piece in row:
            document = document_tokens(piece["source"], piece["doc_id"], piece["taken"])
            ids += document[piece["doc_start"] : piece["doc_stop"]]
            last += [*document[piece["doc_stop"] : piece["doc_stop"] + 1], schema.NO_LABEL][:1]
        tokens.append(ids)
        last_labels.append(last)
    columns = {**copy.deepcopy(plan), "tokens": tokens, "last_labels": last_labels}
    return {name: columns[name] for name in schema.shard_schema("uint16").names}


def cp_columns(plan: Columns) -> Columns:
    """Head-tail over the whole sequence: rank 0 takes the first and last quarter."""
    columns: Columns = {name: [] for name in schema.CP_PLAN.names}
    columns["step"], columns["slot"] = list(plan["step"]), list(plan["slot"])
    for cu_seqlens in plan["cu_seqlens"]:
        total = cu_seqlens[-1]
        rank_of = [int(total // 4 <= i < total // 4 + total // 2) for i in range(total)]
        chunks = []
        for piece, (first, stop) in enumerate(itertools.pairwise(cu_seqlens)):
            for i in range(first, stop):
                if i > first and rank_of[i] == rank_of[i - 1]:
                    chunks[-1][3] += 1
                else:
                    chunks.append([rank_of[i], piece, i - first, i - first + 1])
        chunks.sort()
        for place, name in enumerate(("cp_rank", "piece", "start", "stop")):
            columns[name].append([chunk[place] for chunk in chunks])
        columns["strategy"].append("per_sequence")
        columns["predicted"].append(predicted_work(chunks))
        columns["considered"].append([])
    return columns


def predicted_work(chunks: Iterable[Sequence[int]]) -> list[int]:
    """Of both CP ranks, from (cp_rank, piece, start, stop); no piece is longer than a tile."""
    work = []
    for rank in range(2):
        mine = [(piece, start, stop) for of, piece, start, stop in chunks if of == rank]
        real = [(piece, start, stop) for piece, start, stop in mine if piece >= 0]
        reach = {piece: stop for piece, _, stop in real}
        received = sum(reach.values()) - sum(stop - start for _, start, stop in real)
        work.append(
            SCALE * sum(stop - start for _, start, stop in mine)
            + (2 * SCALE * 128 * 128 * len(real) + CROSSOVER // 2) // CROSSOVER
            + int(SCALE * KV_EXCHANGE) * received
        )
    return work


def steps_columns(rows: list[list[Piece]], numbers: tuple[int, int]) -> Columns:
    columns: Columns = {name: [] for name in schema.STEPS.names}
    parts = [part for part, steps in enumerate(numbers) for _ in range(steps)]
    for step, part in enumerate(parts):
        step_rows = rows[step * N : (step + 1) * N]
        pieces = [piece for row in step_rows for piece in row]
        work = [workload_of(row) for row in step_rows]
        targets = sum(piece_tokens(p) - (p["doc_stop"] == p["taken"]) for p in pieces)
        values = {
            "step": step,
            "segment": 0,
            "part": part,
            "tokens": sum(map(piece_tokens, pieces)),
            "targets": targets,
            "source_tokens": [
                sum(piece_tokens(piece) for piece in pieces if piece["source"] == source)
                for source in range(len(LENGTHS))
            ],
            "workload_max": max(work),
            "workload_total": sum(work),
        }
        values["cumulative_tokens"] = sum(columns["tokens"]) + values["tokens"]
        values["cumulative_targets"] = sum(columns["targets"]) + values["targets"]
        for name, value in values.items():
            columns[name].append(value)
    return columns
