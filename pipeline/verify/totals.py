"""Step table and totals of the manifest, computed again from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import read_table
from pipeline.verify.plan_rows import PlanPart
from pipeline.verify.result import VerifyError
from pipeline.verify.selection import REASONS, StreamCounts


@dataclass(frozen=True, slots=True)
class StepSums:
    """What the rows of a plan part give for its steps: int64, (steps,) or (steps, sources)."""

    tokens: np.ndarray
    targets: np.ndarray
    workload_max: np.ndarray
    workload_total: np.ndarray
    source_tokens: np.ndarray


def step_sums(plan: PlanPart, num_sources: int) -> StepSums:
    """Sum a part of the plan by step."""
    slots = plan.segment.num_micro_batches
    steps = plan.num_rows // slots
    workload = plan.workload.reshape(steps, slots)
    of_sources = np.zeros(steps * num_sources, np.int64)
    place = plan.piece_row // slots * num_sources + plan.source
    np.add.at(of_sources, place, plan.piece_tokens)
    return StepSums(
        tokens=plan.row_sums(plan.piece_tokens).reshape(steps, slots).sum(axis=1),
        targets=plan.num_targets.reshape(steps, slots).sum(axis=1),
        workload_max=workload.max(axis=1),
        workload_total=workload.sum(axis=1),
        source_tokens=of_sources.reshape(steps, num_sources),
    )


class StepTable:
    """steps.parquet, held against the plan part by part.

    Args:
        manifest: of the set; steps.parquet was checked when it was loaded.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._path = manifest.directory / "steps.parquet"
        self._table = read_table(self._path, schema.STEPS)
        self._num_sources = len(manifest.sources)
        chunks = self._table.column("source_tokens").chunks
        if any(np.any(np.diff(chunk.offsets) != self._num_sources) for chunk in chunks):
            raise VerifyError(
                f"'source_tokens' must have {self._num_sources} entries, one a source",
                path=self._path,
            )
        self.steps = 0
        self.tokens = 0
        self.targets = 0

    def check(self, sums: StepSums, *, segment: int, part: int) -> None:
        """Check the steps of a part, the next one.

        Raises:
            VerifyError: the first value that is not what the rows give.
        """
        steps = len(sums.tokens)
        expected = {
            "segment": np.full(steps, segment),
            "part": np.full(steps, part),
            "tokens": sums.tokens,
            "targets": sums.targets,
            "workload_max": sums.workload_max,
            "workload_total": sums.workload_total,
            "cumulative_tokens": self.tokens + np.cumsum(sums.tokens),
            "cumulative_targets": self.targets + np.cumsum(sums.targets),
            "source_tokens": sums.source_tokens,
        }
        table = self._table.slice(self.steps, steps)
        for name, values in expected.items():
            column = table.column(name).combine_chunks()
            found = (column.flatten() if values.ndim > 1 else column).to_numpy().reshape(-1)
            self._require(name, found.reshape(values.shape), values)
        self.steps += steps
        self.tokens += int(sums.tokens.sum())
        self.targets += int(sums.targets.sum())

    def check_alone(self, manifest: Manifest) -> None:
        """Check what the table says without the rows: parts in their segments, and running sums.

        Raises:
            VerifyError: the first value that cannot be.
        """
        segments, parts = [], []
        for number, entry in enumerate(manifest.segments):
            segments.append(np.full(entry.steps, number))
            found = self._column("part")[entry.first_step : entry.stop_step]
            reached = np.maximum.accumulate(found)
            begins = np.diff(reached, prepend=reached[:1]) > 0
            parts.append(entry.first_part + np.cumsum(begins))
        tokens, targets = self._column("tokens"), self._column("targets")
        of_sources = self._table.column("source_tokens").combine_chunks().flatten().to_numpy()
        expected = {
            "segment": np.concatenate(segments),
            "part": np.concatenate(parts),
            "tokens": of_sources.reshape(-1, self._num_sources).sum(axis=1),
            "cumulative_tokens": np.cumsum(tokens),
            "cumulative_targets": np.cumsum(targets),
        }
        for name, values in expected.items():
            self._require(name, self._column(name), values, by="the table's other values give")
        for number, entry in enumerate(manifest.segments):
            if entry.steps and parts[number][-1] != entry.stop_part - 1:
                raise VerifyError(
                    f"segment {number} ends in part {parts[number][-1]}, manifest.json says "
                    f"{entry.stop_part - 1}",
                    path=self._path,
                )
        self.go_to(self._table.num_rows)

    def go_to(self, step: int) -> None:
        """Stand before a step, as if what the table says of those before it had been found so."""
        self.steps = step
        self.tokens = int(self._column("tokens")[:step].sum())
        self.targets = int(self._column("targets")[:step].sum())

    def _column(self, name: str) -> np.ndarray:
        return self._table.column(name).combine_chunks().to_numpy().astype(np.int64)

    def _require(
        self,
        name: str,
        found: np.ndarray,
        expected: np.ndarray,
        by: str = "the plan's rows give",
    ) -> None:
        if found.shape != expected.shape:
            raise VerifyError(
                f"ends before step {self.steps + len(expected) - 1} of the plan", path=self._path
            )
        wrong = np.argwhere(found != expected)
        if len(wrong):
            place = tuple(wrong[0])
            raise VerifyError(
                f"step {self.steps + place[0]}: {name!r} is {found[place]}, {by} {expected[place]}",
                path=self._path,
            )


def check_totals(
    manifest: Manifest,
    steps: StepTable,
    tail: list[int],
    streams: Sequence[StreamCounts] | None,
) -> None:
    """The manifest's totals are what the sources, the rows and the tail give.

    Args:
        manifest: of the set.
        steps: after its last part.
        tail: number of pieces and of tokens in tail.parquet.
        streams: of each segment; None where pieces were not counted, so that totals of them are
            not checked.

    Raises:
        VerifyError: the first total that is another one.
    """
    rejected: Counter[str] = Counter()
    for source in manifest.sources:
        rejected.update({reason: n for reason, n in source.rejected.items() if n})
    expected = {
        "documents": sum(source.documents for source in manifest.sources),
        "tokens": sum(source.tokens for source in manifest.sources),
        **_of_streams(streams),
        **_not_in_epoch_0(manifest),
        "steps": steps.steps,
        "placed_tokens": steps.tokens,
        "targets": steps.targets,
        "tail_pieces": tail[0],
        "tail_tokens": tail[1],
        "rejected": dict(rejected),
    }
    path = manifest.directory / "manifest.json"
    for name, value in expected.items():
        found = manifest.totals.get(name)
        if found != value:
            raise VerifyError(f"totals.{name} is {found}, the files give {value}", path=path)


def _of_streams(streams: Sequence[StreamCounts] | None) -> dict[str, int]:
    if streams is None:
        return {}
    return {
        "stream_documents": sum(stream.documents for stream in streams),
        "stream_tokens": sum(stream.tokens for stream in streams),
        "stream_pieces": sum(stream.pieces for stream in streams),
        "cut_documents": sum(stream.cut_documents for stream in streams),
    }


def _not_in_epoch_0(manifest: Manifest) -> dict[str, int]:
    """Documents and tokens in no piece of epoch 0, by reason; segments' figures were checked.

    Of several segments that have a source the last one says it.
    """
    last = {entry.source: entry for segment in manifest.segments for entry in segment.sources}
    first = [entry for entry in last.values() if entry.final_epoch == 0]
    names = [f"{reason}_{unit}" for reason in REASONS for unit in ("documents", "tokens")]
    return {
        "unselected_documents": sum(entry.unselected_documents for entry in first),
        "unselected_tokens": sum(entry.unselected_tokens for entry in first),
        **{name: sum(getattr(entry, name) for entry in last.values()) for name in names},
    }
