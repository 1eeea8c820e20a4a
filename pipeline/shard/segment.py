"""What a manifest says of a segment, and of each source's part in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.shard.fields import from_fields

EVERYTHING = 1 << 62
"""More tokens than any document has."""
_OPTIONAL = ("cut", "plan_key", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSource:
    """A source's part in a segment: how it was asked for, and what the stream took.

    Weight None stands for the tokens of its first pass. docs/FORMAT.md, section 6, has the counts.
    """

    source: int
    weight: float | None
    max_epochs: float
    min_tokens: int
    longer_than_context: str
    passes: int
    tokens: int
    unselected_documents: int
    unselected_pieces: int
    unselected_tokens: int
    too_short_documents: int
    too_short_tokens: int
    too_long_documents: int
    too_long_tokens: int
    truncated_documents: int
    truncated_tokens: int
    last_epoch: int | None = None
    """Of the last pass; None where it is `passes` - 1."""

    @property
    def final_epoch(self) -> int:
        return self.passes - 1 if self.last_epoch is None else self.last_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive steps made under one configuration; docs/FORMAT.md, section 6.

    The last three fields are absent from the manifest where they have their defaults.
    """

    first_step: int
    steps: int
    first_part: int
    parts: int
    num_micro_batches: int
    context_length: int
    max_tokens: int
    max_pieces: int
    intake_tokens: int
    max_displacement: int
    policy: str
    thresholds: tuple[int, ...]
    seed: int
    sources: tuple[SegmentSource, ...]
    stream_tokens: int
    target_tokens: int | None
    at_source_end: str
    cut: bool = False
    """A fork ended it before its stream did: its tail may be more than a step."""
    plan_key: str | None = None
    """What the plan of a later segment depends on; the first one's is in `fingerprints`."""
    config: Mapping[str, Any] | None = None
    """The resolved configuration of a later segment; the first one's is the manifest's."""

    def most_taken(self, source: int) -> int:
        """How many tokens of a source's document are taken at most; what follows is no label."""
        truncates = any(
            entry.source == source and entry.longer_than_context == "truncate"
            for entry in self.sources
        )
        return self.context_length if truncates else EVERYTHING

    def as_dict(self) -> dict[str, Any]:
        """The segment's entry in a manifest."""
        fields = asdict(self)
        entries = [
            {name: value for name, value in entry.items() if (name, value) != ("last_epoch", None)}
            for entry in fields["sources"]
        ]
        left_out = {name for name in _OPTIONAL if not fields[name]}
        return {name: value for name, value in fields.items() if name not in left_out} | {
            "sources": entries
        }

    @property
    def stop_step(self) -> int:
        return self.first_step + self.steps

    @property
    def stop_part(self) -> int:
        return self.first_part + self.parts

    @property
    def part_numbers(self) -> range:
        return range(self.first_part, self.stop_part)


def parse_segment(entry: dict[str, Any]) -> Segment:
    """A segment from its entry in a manifest.

    Raises:
        KeyError: a field is missing.
        ValueError: a field is of another type, or there are more parts than steps.
    """
    sources = tuple(from_fields(SegmentSource, source) for source in entry["sources"])
    thresholds = tuple(entry["thresholds"])
    segment = from_fields(Segment, {**entry, "sources": sources, "thresholds": thresholds})
    if not 0 <= segment.parts <= segment.steps:
        raise ValueError(
            f"a segment has {segment.parts} parts and {segment.steps} steps; each part has a step "
            "or more"
        )
    return segment
