"""A sample of a set too large to read: all tables and sizes, and everything of a few parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.shard.manifest import Manifest
from pipeline.verify.files import check_files
from pipeline.verify.parts import SetPart, check_part, without_steps
from pipeline.verify.policies import check_policies
from pipeline.verify.result import InOrder, Progress
from pipeline.verify.run import check_tail, opened, silent
from pipeline.verify.sample import Sample
from pipeline.verify.stores import check_stores, store_parts
from pipeline.verify.totals import StepTable, check_totals
from pipeline.verify.workloads import check_model

WHOLE = (
    "manifest.json and the tables: files, row groups, steps, tail, by their digests",
    "every file is there; parts of the set, and the stores' tokens, have the size on record",
    "every token store's tables, lengths, indexes and block digests",
    "the step table by itself, the tail, and the totals that follow from tables",
)
"""What a sampled verification checks of the whole set."""
SAMPLED = (
    "digests and row groups of the plan, the shard and the CP plans of a part",
    "the laws of its rows: order, bounds, workloads, targets, step totals, CP chunks",
    "its tokens and labels against the token stores",
    "tokens of a store's part: digests, vocabulary, ends of documents",
)
"""What it checks of the parts of its sample."""
NOT_CHECKED = (
    "conservation: that every stream token is in exactly one piece of a row, or in the tail",
    "that pieces of an epoch are disjoint, and whole documents",
    "the mixture along the stream, and where the stream ends",
    "what of the sources is cut, truncated, left out or not selected, and totals of pieces",
    "the content of all other parts",
)
"""What it says nothing of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledParts:
    """The parts of one kind that were read, and how many there are.

    Args:
        kind: "segment K" for the plan, the shards and the CP plans, "store NAME" for its tokens.
        parts: numbers, ascending.
        of: how many parts there are.
    """

    kind: str
    parts: tuple[int, ...]
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport:
    """What was checked of a sample, and found right; it does not say that every law holds.

    Args:
        share: of the parts that was asked for.
        seed: of the sample.
        sampled: which parts were read.
        files: files of the set and of its token stores, whose sizes were checked.
        all_bytes: their bytes.
        bytes: the bytes of those that were read.
        row_groups: of the parts that were read.
        rows: micro-batches of these parts.
        tokens: their tokens, each compared with its token store.
        chance: of a single flipped bit, wherever it is, to be found: `bytes` of `all_bytes`, and
            more where a shard that was read shows a flip in a store's part that was not.
        whole: what was checked of all of the set, here and below a sentence each.
        in_sample: what was checked of the parts that were read.
        not_checked: what was not checked.
    """

    share: float
    seed: int
    sampled: tuple[SampledParts, ...]
    files: int
    all_bytes: int
    bytes: int
    row_groups: int
    rows: int
    tokens: int
    chance: float
    whole: tuple[str, ...] = WHOLE
    in_sample: tuple[str, ...] = SAMPLED
    not_checked: tuple[str, ...] = NOT_CHECKED


def verify_sample(
    directory: str | Path,
    sample: Sample,
    *,
    progress: Progress | None = None,
    scratch: Path | None = None,
    in_order: InOrder = map,
) -> SampleReport:
    """Check what can be checked without reading all of a set; the arguments are `verify`'s.

    Args:
        directory: what `steelyard build` wrote.
        sample: which parts are read; at least one of each segment and of each store.
        progress: called with a stage's name, how much of it is done, and how much there is.
        scratch: an existing directory for temporary files, 8 bytes a document.
        in_order: maps files, parts of stores and parts of the set.

    Raises:
        VerifyError: the first offence.
    """
    with opened(directory, scratch) as (manifest, temporary):
        return _verify_sample(manifest, sample, temporary, progress or silent, in_order)


def _verify_sample(
    manifest: Manifest, sample: Sample, scratch: Path, progress: Progress, in_order: InOrder
) -> SampleReport:
    check_model(manifest)
    check_policies(manifest)
    chosen = _choose(manifest, sample)
    numbers = sorted(number for parts in chosen for number in parts)
    files = check_files(manifest, progress, in_order, frozenset(numbers))
    stores, of_stores = check_stores(manifest, scratch, progress, in_order, sample)
    steps, light = StepTable(manifest), without_steps(manifest)
    steps.check_alone(manifest)
    rows = tokens = done = 0
    for segment, parts in enumerate(chosen):
        units = [
            SetPart(
                manifest=light,
                stores=stores,
                part=part,
                first_step=manifest.first_step_of(part),
                records=None,
            )
            for part in parts
        ]
        for unit, sums in zip(units, in_order(check_part, units), strict=True):
            progress("parts", done, len(numbers))
            steps.go_to(unit.first_step)
            steps.check(sums, segment=segment, part=unit.part)
            rows += len(sums.tokens) * manifest.segments[segment].num_micro_batches
            tokens += int(sums.tokens.sum())
            done += 1
    progress("parts", len(numbers), len(numbers))
    tails = [check_tail(manifest, number, stores, None) for number in range(len(chosen))]
    steps.go_to(manifest.num_steps)
    check_totals(manifest, steps, [sum(tail[i] for tail in tails) for i in range(2)], None)
    read, all_bytes = files.bytes + of_stores.bytes, files.all_bytes + of_stores.all_bytes
    return SampleReport(
        share=sample.share,
        seed=sample.seed,
        sampled=(*_of_segments(manifest, chosen), *_of_stores(manifest, of_stores.parts, sample)),
        files=files.files + of_stores.files,
        all_bytes=all_bytes,
        bytes=read,
        row_groups=files.row_groups,
        rows=rows,
        tokens=tokens,
        chance=read / all_bytes,
    )


def _choose(manifest: Manifest, sample: Sample) -> list[list[int]]:
    """The numbers of the parts that are read of each segment."""
    return [
        [segment.first_part + place for place in sample.of(f"segment {number}", segment.parts)]
        for number, segment in enumerate(manifest.segments)
    ]


def _of_segments(manifest: Manifest, chosen: list[list[int]]) -> list[SampledParts]:
    return [
        SampledParts(kind=f"segment {number}", parts=tuple(parts), of=segment.parts)
        for number, (segment, parts) in enumerate(zip(manifest.segments, chosen, strict=True))
    ]


def _of_stores(manifest: Manifest, counts: list[int], sample: Sample) -> list[SampledParts]:
    return [
        SampledParts(
            kind=f"store {source.name}", parts=store_parts(sample, source.name, count), of=count
        )
        for source, count in zip(manifest.sources, counts, strict=True)
    ]
