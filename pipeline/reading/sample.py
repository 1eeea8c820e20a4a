"""A little text of a source, from all over it."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.reading.listing import InputFile
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig

_PLACES = 8


def sample_texts(
    source: SourceConfig, inputs: Sequence[InputFile], *, split_bytes: int, max_characters: int
) -> list[str]:
    """The beginnings of up to eight splits, spread evenly; the same ones each time.

    Args:
        source: how its files are read.
        inputs: its files.
        split_bytes: what the splits are planned with.
        max_characters: most characters in all; a document that goes beyond it is cut short.

    Raises:
        SourceError: a file that cannot be read.
    """
    splits = plan_splits(source, inputs, split_bytes=split_bytes)
    places = min(_PLACES, len(splits))
    texts: list[str] = []
    for place in range(places):
        left = max_characters // places
        split = splits[place * len(splits) // places]
        batches = read_records(split, source)
        for text in (text for batch in batches for text in batch.texts):
            texts.append(text[:left])
            left -= len(texts[-1])
            if left <= 0:
                break
    return texts
