"""Step table and totals of the manifest, computed again from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import read_table
from pipeline.verify.plan_rows import PlanPart
from pipeline.verify.result import VerifyError
from pipeline.verify.selection import REASONS, StreamCounts


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

    def check(self, plan: PlanPart, *, segment: int, part: int) -> None:
        """Check the steps of a part, the next one.

        Raises:
            VerifyError: the first value that is not what the rows give.
        """
        slots = plan.segment.num_micro_batches
        steps = plan.num_rows // slots
        tokens = plan.row_sums(plan.piece_tokens).reshape(steps, slots).sum(axis=1)
        targets = plan.num_targets.reshape(steps, slots).sum(axis=1)
        workload = plan.workload.reshape(steps, slots)
        expected = {
            "segment": np.full(steps, segment),
            "part": np.full(steps, part),
            "tokens": tokens,
            "targets": targets,
            "workload_max": workload.max(axis=1),
            "workload_total": workload.sum(axis=1),
            "cumulative_tokens": self.tokens + np.cumsum(tokens),
            "cumulative_targets": self.targets + np.cumsum(targets),
            "source_tokens": self._source_tokens(plan, steps),
        }
        table = self._table.slice(self.steps, steps)
        for name, values in expected.items():
            column = table.column(name).combine_chunks()
            found = (column.flatten() if values.ndim > 1 else column).to_numpy().reshape(-1)
            self._require(name, found.reshape(values.shape), values)
        self.steps += steps
        self.tokens += int(tokens.sum())
        self.targets += int(targets.sum())

    def _source_tokens(self, plan: PlanPart, steps: int) -> np.ndarray:
        """Tokens of each step by source, (steps, sources)."""
        step = plan.step[plan.piece_row] - self.steps
        sums = np.zeros(steps * self._num_sources, np.int64)
        np.add.at(sums, step * self._num_sources + plan.source, plan.piece_tokens)
        return sums.reshape(steps, self._num_sources)

    def _require(self, name: str, found: np.ndarray, expected: np.ndarray) -> None:
        if found.shape != expected.shape:
            raise VerifyError(
                f"ends before step {self.steps + len(expected) - 1} of the plan", path=self._path
            )
        wrong = np.argwhere(found != expected)
        if len(wrong):
            place = tuple(wrong[0])
            raise VerifyError(
                f"step {self.steps + place[0]}: {name!r} is {found[place]}, the plan's rows give "
                f"{expected[place]}",
                path=self._path,
            )


def check_totals(
    manifest: Manifest, steps: StepTable, tail: list[int], streams: Sequence[StreamCounts]
) -> None:
    """The manifest's totals are what the sources, the rows and the tail give.

    Args:
        manifest: of the set.
        steps: after its last part.
        tail: number of pieces and of tokens in tail.parquet.
        streams: of each segment.

    Raises:
        VerifyError: the first total that is another one.
    """
    rejected: Counter[str] = Counter()
    for source in manifest.sources:
        rejected.update({reason: n for reason, n in source.rejected.items() if n})
    expected = {
        "documents": sum(source.documents for source in manifest.sources),
        "tokens": sum(source.tokens for source in manifest.sources),
        "stream_documents": sum(stream.documents for stream in streams),
        "stream_tokens": sum(stream.tokens for stream in streams),
        "stream_pieces": sum(stream.pieces for stream in streams),
        **_not_in_epoch_0(manifest),
        "cut_documents": sum(stream.cut_documents for stream in streams),
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
