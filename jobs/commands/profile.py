"""`steelyard profile`: what a layer takes on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs import show
from jobs.commands.options import AsJson, Quiet, print_json
from jobs.progress import Reporter

EXAMPLE = "steelyard profile --model-config config.json --out profile.json"


def profile(
    model_config: Annotated[Path, typer.Option(help="The model's config.json.")],
    out: Annotated[Path, typer.Option(help="The profile to write.")] = Path("profile.json"),
    device: Annotated[str, typer.Option(help="cuda, cuda:N, cpu or auto.")] = "cuda",
    dtype: Annotated[
        str, typer.Option(help="auto (bfloat16 on CUDA), bfloat16, float16, float32 or float64.")
    ] = "auto",
    backend: Annotated[
        str, typer.Option(help="Of attention: auto, torch, flash_attn or reference.")
    ] = "auto",
    tp_size: Annotated[int, typer.Option(min=1, help="Ranks that share a layer.")] = 1,
    max_tokens: Annotated[
        int,
        typer.Option(min=0, help="Longest piece; 0 for 131072 on CUDA, 1024 on the CPU."),
    ] = 0,
    repeats: Annotated[int, typer.Option(min=3, help="Runs of a call; their median counts.")] = 7,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """What a model's layer takes on this device, for workload.profile."""
    from jobs.profiling import ProfileRequest, read_config, write_profile

    request = ProfileRequest(
        model=str(model_config),
        config=read_config(model_config),
        device=device,
        dtype=dtype,
        backend=backend,
        tp_size=tp_size,
        max_tokens=max_tokens,
        repeats=repeats,
    )
    document = write_profile(request, out, Reporter(quiet=quiet))
    if as_json:
        print_json(document)
    else:
        show.profile(document)
