"""What a set's stream took of each source, and how well the mixture held along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packer.mixture import WEIGHT_SUM
from packer.stream import Stream
from pipeline.shard import schema
from pipeline.shard.manifest import Segment, Source
from pipeline.shard.tables import read_table


def measure_sources(
    root: Path, segment: Segment, sources: Sequence[Source], stream: Stream
) -> list[dict[str, Any]]:
    """The mixture of a segment, a dict a source, in JSON types.

    Args:
        root: the set's directory.
        segment: of the set.
        sources: of the set.
        stream: the segment's, replayed for the deviations.

    Returns:
        The fields of `SegmentSource`, and `name`; `asked_share` and `share` of the stream's tokens;
        `behind_tokens` and `ahead_tokens`, the furthest that the source ever was from its quota;
        `share_cv`, the coefficient of variation over steps of its share of a step's tokens;
        `epochs`, how often chain and stream went through what a fresh pass takes of it.
    """
    run = stream.chunks()
    for _ in run:
        pass
    selection = run.selection()
    steps = read_table(root / "steps.parquet", schema.STEPS)
    variation = _share_cv(steps.slice(segment.first_step, segment.steps))
    before = _by_source(steps)[: segment.first_step].sum(axis=0)
    return [
        {
            "name": sources[entry.source].name,
            **asdict(entry) | {"last_epoch": entry.final_epoch},
            "asked_share": int(stream.weights[index]) / WEIGHT_SUM,
            "share": entry.tokens / segment.stream_tokens,
            "behind_tokens": int(selection.behind_tokens[index]),
            "ahead_tokens": int(selection.ahead_tokens[index]),
            "share_cv": float(variation[entry.source]),
            "epochs": (int(before[entry.source]) + entry.tokens) / stream.sources[index].tokens,
        }
        for index, entry in enumerate(segment.sources)
    ]


def _by_source(steps: pa.Table) -> np.ndarray:
    """Tokens of each source in each step, (steps, sources)."""
    column = steps.column("source_tokens").combine_chunks()
    return column.flatten().to_numpy().reshape(steps.num_rows, -1)


def _share_cv(steps: pa.Table) -> np.ndarray:
    """Standard deviation over mean of each source's share of a step, (sources,)."""
    by_source = _by_source(steps)
    shares = by_source / by_source.sum(axis=1, keepdims=True)  # (steps, sources)
    mean = shares.mean(axis=0)
    return np.divide(shares.std(axis=0), mean, out=np.zeros_like(mean), where=mean > 0)
