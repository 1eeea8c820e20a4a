"""How the external sort is cut: groups of documents that are read together, and their run files.

Moving the tokens is a sort by plan position with bounded memory. A run group is a range of the
token stores' documents, about `run_tokens` long; scattering reads it once and writes one run file,
ordered by plan part. Assembling a plan part then reads one slice of every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from packer.plan import Pieces
from pipeline.files.atomic import atomic_path
from pipeline.shard.schema import part_name
from pipeline.shard.token_store import TokenStore


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunGroups:
    """Ranges of documents, counted over all sources in order.

    `source_base` (sources,) is the number of documents in earlier sources; group g starts at
    document `starts[g]` of that common count.
    """

    source_base: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, stores: Sequence[TokenStore], *, run_tokens: int) -> Self:
        """Cut the stores at part borders into groups of at most `run_tokens`, or of one part."""
        counts = np.array([store.documents for store in stores], np.int64)
        base = np.cumsum(counts) - counts
        starts: list[int] = []
        held = 0
        for store, first in zip(stores, base, strict=True):
            for first_doc_id, tokens in zip(
                store.parts.first_doc_id, store.parts.tokens, strict=True
            ):
                if not starts or held + int(tokens) > run_tokens:
                    starts.append(int(first + first_doc_id))
                    held = 0
                held += int(tokens)
        return cls(source_base=base, starts=np.array(starts or [0], np.int64))

    @property
    def count(self) -> int:
        return len(self.starts)

    def group_of(self, pieces: Pieces) -> np.ndarray:
        """The group of each piece's document, shape (pieces,)."""
        document = self.source_base[pieces.source] + pieces.doc_id
        return np.searchsorted(self.starts, document, side="right") - 1


_FIELDS = ("source", "doc_id", "doc_start", "doc_stop", "order")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InverseSlice:
    """The pieces of one plan part that one run group holds, in plan order.

    `order` is a piece's place in the plan part; the other fields are the piece's. All (pieces,).
    """

    source: np.ndarray
    doc_id: np.ndarray
    doc_start: np.ndarray
    doc_stop: np.ndarray
    order: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        return self.doc_stop - self.doc_start


def write_inverse(scratch: Path, part: int, pieces: Pieces, groups: RunGroups) -> None:
    """Write one plan part's pieces ordered by run group."""
    group = groups.group_of(pieces)
    order = np.argsort(group, kind="stable")
    columns = [getattr(pieces, name)[order] for name in _FIELDS[:-1]] + [order]
    counts = np.bincount(group, minlength=groups.count)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    for name, array in (("pieces", np.stack(columns)), ("offsets", offsets)):
        with atomic_path(_inverse_path(scratch, part, name)) as path, path.open("wb") as file:
            np.save(file, array.astype(np.int64))


def read_inverse(scratch: Path, part: int, group: int) -> InverseSlice:
    """The slice of one plan part that a run group holds."""
    offsets = np.load(_inverse_path(scratch, part, "offsets"), mmap_mode="r")
    columns = np.load(_inverse_path(scratch, part, "pieces"), mmap_mode="r")
    rows = slice(int(offsets[group]), int(offsets[group + 1]))
    return InverseSlice(**{name: np.array(columns[i, rows]) for i, name in enumerate(_FIELDS)})


def inverse_is_there(scratch: Path, part: int) -> bool:
    """Whether a plan part's inverse has been written."""
    return all(_inverse_path(scratch, part, name).exists() for name in ("pieces", "offsets"))


def _inverse_path(scratch: Path, part: int, name: str) -> Path:
    return scratch / "inverse" / f"{part_name(part)}.{name}.npy"


def run_path(scratch: Path, group: int, kind: str) -> Path:
    """A run's file: `tokens` (flat ids), `labels` (int64, a piece each), `offsets` (npy).

    `offsets` is (parts + 1, 2): where the tokens and labels of each of the job's parts start.
    """
    return scratch / "runs" / f"{part_name(group)}.{kind}"
