"""Where the rows of a micro-batch are: arithmetic on the manifest and the parts' footers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.shard.parts import PartFiles
from pipeline.shard.row_groups import Row, Rows
from pipeline.shard.tables import FormatError, NotInSet

_SPARE_GROUPS = 2


class SetRows:
    """Rows of a set by folder, step and slot. Holds open files: not for several threads at once.

    Args:
        manifest: of the set, checked.

    Raises:
        FormatError: row_groups.parquet is damaged.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._parts = PartFiles(
            manifest.directory,
            str(manifest.digests.get("row_groups.parquet")),
            dtype=manifest.dtype,
            kept_groups=_groups_of_a_step(manifest),
        )
        self._place = lru_cache(maxsize=64)(self._find)

    def row(self, folder: str, step: int, slot: int) -> Row:
        """The row of a micro-batch in `folder`, whose parts have the plan's rows in its order.

        Raises:
            NotInSet: no such step or slot.
            FormatError: damaged bytes, or a row that stands in another's place.
        """
        path, place = self._row_of(folder, step, slot)
        row = self._parts.row(path, place)
        found = (row.integer("step"), row.integer("slot"))
        if found != (step, slot):
            raise FormatError(
                f"row {place} is step {found[0]}, slot {found[1]}, must be step {step}, "
                f"slot {slot}",
                path=self._manifest.directory / path,
            )
        return row

    def rows(self, folder: str, step: int, slots: Sequence[int]) -> Rows:
        """The rows of some micro-batches of a step, in the order asked for; errors as `row`."""
        places = [self._row_of(folder, step, slot) for slot in slots]
        rows = Rows([self._parts.row(path, place) for path, place in places])
        if np.any(rows.integers("step") != step) or np.any(rows.integers("slot") != slots):
            for slot in slots:
                self.row(folder, step, slot)  # names the one
        return rows

    def _row_of(self, folder: str, step: int, slot: int) -> tuple[str, int]:
        """The part that holds a micro-batch, and which of its rows it is."""
        num_micro_batches, part, first = self._place(step)
        if not 0 <= slot < num_micro_batches:
            raise NotInSet(f"slot {slot} is not in 0..{num_micro_batches - 1} of step {step}")
        return f"{folder}/{part}.parquet", (step - first) * num_micro_batches + slot

    def _find(self, step: int) -> tuple[int, str, int]:
        """A step's number of micro-batches, the name of its part, and that part's first step."""
        part = self._manifest.part_of(step)
        num_micro_batches = self._manifest.segment_of(step).num_micro_batches
        return num_micro_batches, schema.part_name(part), self._manifest.first_step_of(part)


def _groups_of_a_step(manifest: Manifest) -> int:
    """How many row groups to keep decoded, so that a step's rows never decode one twice.

    A step may begin inside a group; groups of the plan and of a CP plan are needed beside. Where a
    row is a group there is nothing to keep, and what is not kept stays in the processor's cache.
    """
    rows = manifest.rows_per_group
    slots = max((segment.num_micro_batches for segment in manifest.segments), default=1)
    return _SPARE_GROUPS + (0 if rows == 1 else -(-slots // rows) + 1)
