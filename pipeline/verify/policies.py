"""What a segment asks of its sources is something that can be asked."""

from __future__ import annotations

from math import inf

from pipeline.shard.manifest import Manifest, SegmentSource
from pipeline.verify.result import VerifyError

_POLICIES = ("cut", "truncate", "drop", "error")
_MOST_EPOCHS = 2**31 - 1
"""Of a source, as docs/FORMAT.md, section 8, has it."""


def check_policies(manifest: Manifest) -> None:
    """Every segment names each source once, with weights and policies that this program knows.

    Raises:
        VerifyError: the first that is another.
    """
    path = manifest.directory / "manifest.json"
    for number, segment in enumerate(manifest.segments):
        places = [entry.source for entry in segment.sources]
        if len(set(places)) != len(places) or not set(places) <= set(range(len(manifest.sources))):
            raise VerifyError(f"segments.{number}.sources are {places}", path=path)
        if segment.at_source_end not in ("stop", "drop"):
            raise VerifyError(
                f"segments.{number}.at_source_end is {segment.at_source_end!r}", path=path
            )
        for place, entry in enumerate(segment.sources):
            offence = _offence(entry)
            if offence is not None:
                raise VerifyError(f"segments.{number}.sources.{place}.{offence}", path=path)


def _offence(entry: SegmentSource) -> str | None:
    if entry.longer_than_context not in _POLICIES:
        return (
            f"longer_than_context is {entry.longer_than_context!r}, must be one of "
            f"{', '.join(_POLICIES)}"
        )
    if not 0 < entry.max_epochs <= _MOST_EPOCHS:
        return f"max_epochs is {entry.max_epochs}, must be above 0 and at most {_MOST_EPOCHS}"
    if entry.weight is not None and not 0 < entry.weight < inf:
        return f"weight is {entry.weight}, must be null, or above 0 and finite"
    return None
