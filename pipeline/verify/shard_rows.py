"""Shards: the plan's rows, with the tokens that the token stores hold at those places."""

from __future__ import annotations

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.verify.part import PartTable, spans
from pipeline.verify.plan_rows import PlanPart
from pipeline.verify.result import VerifyError
from pipeline.verify.stores import RawStore

_PLAIN = ("step", "slot", "num_targets", "workload")
_LISTS = ("cu_seqlens", "source", "epoch", "doc_id", "doc_start")


def check_shard_part(manifest: Manifest, stores: list[RawStore], part: int, plan: PlanPart) -> None:
    """Check a shard against its part of the plan, and its tokens against the stores.

    Raises:
        VerifyError: the first row that says something else.
    """
    shard = PartTable(manifest.shard_path(part), schema.shard_schema(manifest.dtype))
    _check_layout(shard, manifest.rows_per_group)
    check_same_rows(shard, plan.table, _PLAIN)
    for name in _LISTS:
        _check_same_lists(shard, plan.table, name)
    token_counts = plan.row_sums(plan.piece_tokens)
    shard.require(
        np.diff(shard.offsets("tokens")) == token_counts,
        lambda row: f"'tokens' must hold the {token_counts[row]} tokens of its pieces",
    )
    shard.require(
        np.diff(shard.offsets("last_labels")) == np.diff(plan.offsets),
        lambda _: "'last_labels' must have one entry a piece",
    )
    for index in np.unique(plan.source):
        _check_tokens(shard, plan, stores[index], np.flatnonzero(plan.source == index))


def check_same_rows(table: PartTable, plan: PartTable, names: tuple[str, ...]) -> None:
    """The plan's rows in its order: equal in these plain columns.

    Raises:
        VerifyError: the first row that differs.
    """
    if table.num_rows != plan.num_rows:
        raise VerifyError(
            f"has {table.num_rows} rows, the plan's part {plan.num_rows}", path=table.path
        )
    for name in names:
        found, planned = table.plain(name), plan.plain(name)
        table.require(
            found == planned,
            lambda row, name=name, found=found, planned=planned: (
                f"{name!r} is {found[row]}, the plan says {planned[row]}"
            ),
        )


def _check_same_lists(shard: PartTable, plan: PartTable, name: str) -> None:
    offsets = shard.offsets(name)
    shard.require(
        np.diff(offsets) == np.diff(plan.offsets(name)),
        lambda _: f"{name!r} has another length than in the plan",
    )
    found, planned = shard.values(name), plan.values(name)
    shard.require_each(
        found == planned,
        offsets,
        lambda i: f"{name!r} is {found[i]}, the plan says {planned[i]}",
    )


def _check_layout(shard: PartTable, rows_per_group: int) -> None:
    """Row groups of `rows_per_group` rows, zstd, no dictionary."""
    rows = np.diff(shard.first_rows)
    if np.any(rows[:-1] != rows_per_group) or not 0 < rows[-1] <= rows_per_group:
        raise VerifyError(
            f"row groups have {rows.tolist()} rows, must have {rows_per_group}, the last one at "
            "most as many",
            path=shard.path,
        )
    for group in range(shard.metadata.num_row_groups):
        columns = shard.metadata.row_group(group)
        for column in map(columns.column, range(columns.num_columns)):
            if column.compression != "ZSTD" or column.has_dictionary_page:
                raise VerifyError(
                    f"column {column.path_in_schema} is {column.compression}"
                    f"{' with a dictionary' if column.has_dictionary_page else ''}; shards are "
                    "zstd without a dictionary",
                    path=shard.path,
                    row_group=group,
                )


def _check_tokens(shard: PartTable, plan: PlanPart, store: RawStore, pieces: np.ndarray) -> None:
    """Tokens and last labels of the pieces of one source."""
    doc_id, stop = plan.doc_id[pieces], plan.doc_stop[pieces]
    goes_on = ~plan.is_end[pieces]
    truth = np.full(len(pieces), schema.NO_LABEL, np.int64)
    truth[goes_on] = store.gather(doc_id[goes_on], stop[goes_on], stop[goes_on] + 1)
    labels = shard.values("last_labels")
    good = np.ones(len(labels), np.bool_)
    good[pieces] = labels[pieces] == truth
    shard.require_each(
        good,
        plan.offsets,
        lambda i: (
            f"last label is {labels[i]}, must be {truth[np.searchsorted(pieces, i)]}, what follows "
            "in what is taken of the document"
        ),
    )
    tokens = shard.values("tokens")
    before = np.cumsum(plan.piece_tokens) - plan.piece_tokens
    place = spans(before[pieces], plan.piece_tokens[pieces])
    truth = store.gather(doc_id, plan.doc_start[pieces], stop)
    wrong = np.flatnonzero(tokens[place] != truth)
    if len(wrong):
        at = int(place[wrong[0]])
        row = int(np.searchsorted(shard.offsets("tokens"), at, side="right")) - 1
        shard.fail(
            row,
            f"token {at - shard.offsets('tokens')[row]} is {tokens[at]}, its document has "
            f"{truth[wrong[0]]} there",
        )
