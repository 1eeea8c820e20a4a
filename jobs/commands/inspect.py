"""`steelyard inspect`: one micro-batch, or one document."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jobs import show, show_cp
from jobs.commands.options import AsJson, Directory, print_json

EXAMPLE = "steelyard inspect out/demo --step 3 --slot 0 --text 200"


def inspect(
    directory: Directory,
    step: Annotated[int | None, typer.Option(min=0, help="Which step.")] = None,
    slot: Annotated[int, typer.Option(min=0, help="Which of its micro-batches.")] = 0,
    source: Annotated[str | None, typer.Option(help="Or a document: its source's name,")] = None,
    doc_id: Annotated[int | None, typer.Option(min=0, help="and its number there.")] = None,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Where the document runs; reads the whole plan.")
    ] = False,
    text: Annotated[int, typer.Option(min=0, help="Decode so many characters a piece.")] = 0,
    as_json: AsJson = False,
) -> None:
    """One micro-batch: its pieces, and every CP rank's share. Or one document: its origin."""
    from pipeline.config import ConfigError
    from pipeline.inspect import inspect as run
    from pipeline.inspect import inspect_document

    if step is not None and source is None and doc_id is None:
        figures, table = run(directory, step=step, slot=slot, text=text), _show_micro_batch
    elif step is None and source is not None and doc_id is not None:
        figures = inspect_document(
            directory, source=source, doc_id=doc_id, text=text, pieces=pieces
        )
        table = show.document
    else:
        raise ConfigError("give --step (and --slot) for a micro-batch, or --source and --doc-id")
    if as_json:
        print_json(figures)
    else:
        table(figures)


def _show_micro_batch(figures: dict[str, Any]) -> None:
    show.micro_batch(figures, show_cp.where_pieces_are(figures["cp"]))
    for degree, plan in figures["cp"].items():
        show_cp.micro_batch(degree, plan)
