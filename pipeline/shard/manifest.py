"""What a finished directory says about itself: manifest.json, and the step table beside it.

Loading checks the chain of digests from `manifest.sha256` down to `steps.parquet`, so what the
manifest's helpers answer can be trusted; the parts themselves are checked as they are read.
docs/FORMAT.md, sections 5 and 6, is the contract.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa

from packer.orders import ORDERS
from pipeline.files.url_path import as_path, below
from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.fields import from_fields
from pipeline.shard.segment import Segment, SegmentSource, parse_segment
from pipeline.shard.superseded import is_superseded, read_set_table
from pipeline.shard.tables import FormatError, NotInSet, read_bytes

__all__ = [
    "FormatError",
    "Manifest",
    "Segment",
    "SegmentSource",
    "Source",
    "WorkloadModel",
    "load_manifest",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One corpus of the chain; `store` is relative to the directory, or absolute."""

    name: str
    store: str
    store_sha256: str
    documents: int
    tokens: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadModel:
    """What a piece costs, by a formula or table that `model` names; docs/FORMAT.md, section 6."""

    model: str
    scale: int
    constant: int
    parameters: Mapping[str, Any]
    """The model's other fields, JSON as they stand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest:
    """manifest.json as it stands, and which part holds which step.

    The fields named after a mapping (`tokenizer`, `totals`, `balance`, `cp`, `config`,
    `fingerprints`, `digests`) are the JSON objects, unread.
    """

    directory: Path
    version: int
    dtype: str
    tokenizer: Mapping[str, Any]
    sources: tuple[Source, ...]
    workload: WorkloadModel
    micro_batch_order: str
    rows_per_group: int
    segments: tuple[Segment, ...]
    totals: Mapping[str, Any]
    balance: Mapping[str, Any]
    cp: Mapping[str, Any]
    config: Mapping[str, Any]
    fingerprints: Mapping[str, Any]
    digests: Mapping[str, str]
    step_part: np.ndarray
    """Part of each step, int32, shape (steps,)."""
    step_targets: np.ndarray
    """Tokens with a label of each step, int64, shape (steps,)."""

    @property
    def num_steps(self) -> int:
        return sum(segment.steps for segment in self.segments)

    @property
    def num_parts(self) -> int:
        return sum(segment.parts for segment in self.segments)

    @property
    def cp_sizes(self) -> tuple[int, ...]:
        """CP degrees that have a plan, ascending; 1 needs none."""
        return tuple(sorted(int(degree) for degree in self.cp))

    def pad_multiple(self, cp_size: int) -> int:
        """What the plan of a CP degree pads pieces to; 1 where it pads nothing."""
        return int(self.cp.get(str(cp_size), {}).get("pad_multiple", 1))

    def segment_of(self, step: int) -> Segment:
        """The segment that holds a step.

        Raises:
            NotInSet: no such step.
        """
        self._check_step(step)
        firsts = [segment.first_step for segment in self.segments]
        return self.segments[bisect_right(firsts, step) - 1]

    def part_of(self, step: int) -> int:
        """The part that holds a step.

        Raises:
            NotInSet: no such step.
        """
        self._check_step(step)
        return int(self.step_part[step])

    def first_step_of(self, part: int) -> int:
        """The first step of a part, found by bisection."""
        return int(np.searchsorted(self.step_part, part))

    def plan_path(self, part: int) -> Path:
        return self.directory / "plan" / f"{schema.part_name(part)}.parquet"

    def shard_path(self, part: int) -> Path:
        return self.directory / "shards" / f"{schema.part_name(part)}.parquet"

    def cp_path(self, part: int, cp_size: int) -> Path:
        return self.directory / f"cp={cp_size}" / f"{schema.part_name(part)}.parquet"

    def store_path(self, source: int) -> Path:
        """The token store of a source, by its index."""
        return below(self.directory, self.sources[source].store)

    def _check_step(self, step: int) -> None:
        if not 0 <= step < self.num_steps:
            raise NotInSet(f"step {step} is not in 0..{self.num_steps - 1} of {self.directory}")


def load_manifest(directory: str | Path) -> Manifest:
    """Read and check manifest.json, and the step table it vouches for.

    Args:
        directory: a path or a URL, or what `as_path` makes of it.

    Raises:
        FormatError: a file is missing, its digest differs, or it is of another format or version.
    """
    directory = as_path(directory) if isinstance(directory, str) else directory
    path = directory / "manifest.json"
    if not _exists(path):
        raise no_set(directory)
    data = read_bytes(path)
    stated = read_bytes(directory / "manifest.sha256").decode("ascii", "replace")
    agrees = stated in (sha256_bytes(data), f"{sha256_bytes(data)}\n")
    if not agrees and not is_superseded(directory, data):
        raise FormatError(
            f"its SHA-256 is {sha256_bytes(data)}, manifest.sha256 says {stated.strip()!r}; "
            "one of the two is damaged",
            path=path,
        )
    document = _parse(data, path)
    files = read_set_table(
        directory, "files.parquet", schema.FILES, document["digests"]["files.parquet"]
    )
    listed = dict(zip(files["path"].to_pylist(), files["sha256"].to_pylist(), strict=True))
    if "steps.parquet" not in listed:
        raise FormatError("does not list steps.parquet", path=directory / "files.parquet")
    steps = read_set_table(directory, "steps.parquet", schema.STEPS, listed["steps.parquet"])
    try:
        manifest = _manifest(directory, document, steps)
        _check(manifest, steps, path)
    except FormatError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        raise FormatError(f"a field is missing or malformed: {reason}", path=path) from error
    return manifest


def no_set(directory: Path) -> FormatError:
    """What to say of a directory that holds no set."""
    return FormatError(
        "is missing: there is no finished set here; make one with: steelyard build "
        f"--config FILE --out {quote(str(directory))}",
        path=directory / "manifest.json",
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # an object store that cannot be reached
        raise FormatError(f"cannot be read: {error}", path=path) from error


def _parse(data: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise FormatError(f"is not JSON: {error}", path=path) from error
    if not isinstance(document, dict) or document.get("format") != schema.FORMAT:
        raise FormatError(f"is not a {schema.FORMAT} manifest", path=path)
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise FormatError(f"version is {version!r}, must be a positive integer", path=path)
    if version > schema.VERSION:
        raise FormatError(
            f"format version {version} is newer than {schema.VERSION}, the newest that this "
            "program reads; use a newer steelyard",
            path=path,
        )
    needed = {"digests": ("files.parquet", "row_groups.parquet"), "tokenizer": ("name",)}
    for field, names in needed.items():
        held = document.get(field)
        if not isinstance(held, dict):
            raise FormatError(f"holds no {field}", path=path)
        for name in names:
            if not isinstance(held.get(name), str):
                raise FormatError(f"{field} does not hold {name}", path=path)
    return document


def _manifest(directory: Path, document: dict[str, Any], steps: pa.Table) -> Manifest:
    made = {
        "directory": directory,
        "sources": tuple(from_fields(Source, entry) for entry in document["sources"]),
        "workload": _workload(document["workload"]),
        "segments": tuple(parse_segment(entry) for entry in document["segments"]),
        "step_part": _column(steps, "part"),
        "step_targets": _column(steps, "targets"),
    }
    return from_fields(Manifest, document | made)


def _workload(entry: dict[str, Any]) -> WorkloadModel:
    rest = {name: entry[name] for name in entry if name not in ("model", "scale", "constant")}
    return from_fields(WorkloadModel, {**entry, "parameters": rest})


def _column(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).combine_chunks().to_numpy(zero_copy_only=False)


def _check_degrees(cp: Mapping[str, Any], path: Path) -> None:
    """`cp` is an object of objects, by degrees as they are written in the names of folders."""
    for degree, entry in cp.items():
        is_number = degree.isascii() and degree.isdigit() and degree == str(int(degree))
        if not is_number or int(degree) < 2:
            raise FormatError(f"cp has {degree!r}; it must have degrees, 2 and more", path=path)
        if not isinstance(entry, dict):
            raise FormatError(f"cp.{degree} is not an object", path=path)
        if not isinstance(entry.get("strategy"), str):
            raise FormatError(
                f"cp.{degree}: a field is missing or malformed: strategy must be a string",
                path=path,
            )


def _check(manifest: Manifest, steps: pa.Table, path: Path) -> None:
    if manifest.dtype not in schema.TOKEN_TYPES:
        raise FormatError(
            f"dtype is {manifest.dtype!r}, must be one of {[*schema.TOKEN_TYPES]}", path=path
        )
    if manifest.micro_batch_order not in ORDERS:
        raise FormatError(
            f"micro_batch_order {manifest.micro_batch_order!r} is not known; this "
            f"program knows {list(ORDERS)}",
            path=path,
        )
    _check_degrees(manifest.cp, path)
    positive: list[tuple[object, str]] = [
        (manifest.workload, "scale"),
        (manifest, "rows_per_group"),
    ]
    for segment in manifest.segments:
        for name in ("num_micro_batches", "context_length", "max_tokens", "intake_tokens"):
            positive.append((segment, name))
        positive += [(entry, "min_tokens") for entry in segment.sources]
    for owner, name in positive:
        value = getattr(owner, name)
        if not isinstance(value, int) or value < 1:
            raise FormatError(f"{name} is {value!r}, must be a positive integer", path=path)
    step = part = 0
    for number, segment in enumerate(manifest.segments):
        if (segment.first_step, segment.first_part) != (step, part):
            raise FormatError(
                f"segment {number} starts at step {segment.first_step} and part "
                f"{segment.first_part}, must start at {step} and {part}",
                path=path,
            )
        step, part = segment.stop_step, segment.stop_part
    if steps.num_rows != step or not np.array_equal(_column(steps, "step"), np.arange(step)):
        raise FormatError(
            f"its rows must be the steps 0..{step - 1} of the manifest, ascending",
            path=manifest.directory / "steps.parquet",
        )
