"""A build that compiles next to nothing: policy `concat`, no CP plans, one pipeline stage."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import RunConfig
from tests.jobs.small_run import small_config


def quick_config(directory: Path) -> RunConfig:
    """`small_config` with several parts, runs and splits, as fast as can be."""
    config = small_config(directory)
    return config.model_copy(
        update={
            "packing": config.packing.model_copy(update={"policy": "concat"}),
            "context_parallel": config.context_parallel.model_copy(update={"sizes": ()}),
            "parallel": config.parallel.model_copy(update={"pp_size": 1}),
        }
    )
