"""`steelyard replan`: CP plans of other degrees for a set that is there."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs import show_cp
from jobs.commands.options import KV_EXCHANGE, AsJson, Directory, Quiet, print_json
from jobs.progress import Reporter

EXAMPLE = "steelyard replan out/demo --cp-size 8 --strategy mixed"


def replan(
    directory: Directory,
    cp_size: Annotated[
        list[int], typer.Option(min=2, max=65_536, help="CP degree to plan for; repeatable.")
    ],
    strategy: Annotated[
        str | None,
        typer.Option(
            help="adaptive, mixed, per_document, per_document_aligned, per_sequence or "
            "padded_head_tail; default, as of the next two: what the set was built with."
        ),
    ] = None,
    kv_exchange: Annotated[float | None, typer.Option(help=KV_EXCHANGE)] = None,
    pad_to: Annotated[
        int | None,
        typer.Option(help="What padded pieces are a multiple of, beside 2 x the degree."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """New CP plans beside those that are there; no token moves."""
    from jobs.replan import replan as run

    reporter = Reporter(quiet=quiet)
    plans = run(directory, cp_size, strategy, reporter, kv_exchange=kv_exchange, pad_to=pad_to)
    if as_json:
        print_json(plans)
    else:
        show_cp.degrees(plans)
