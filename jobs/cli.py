"""`steelyard`: its commands, and what becomes of errors.

Results go to stdout, progress to stderr. Exit 0 is success, 1 a set that does not hold what it
promises, 2 the user's mistake in one line.
"""

from __future__ import annotations

import logging
import sys

import typer
from rich.console import Console
from rich.logging import RichHandler

from jobs.commands import (
    build,
    extend,
    fork,
    inspect,
    profile,
    replan,
    report,
    simulate,
    train,
    verify,
)

app = typer.Typer(
    rich_markup_mode=None,  # its tables cut off names of options at 80 columns
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Workload-balanced micro-batches for long-context LLM training, planned offline.",
)
for function, example in (
    (build.build, build.EXAMPLE),
    (extend.extend, extend.EXAMPLE),
    (fork.fork, fork.EXAMPLE),
    (replan.replan, replan.EXAMPLE),
    (verify.verify, verify.EXAMPLE),
    (report.report, report.EXAMPLE),
    (inspect.inspect, inspect.EXAMPLE),
    (simulate.simulate, simulate.EXAMPLE),
    (profile.profile, profile.EXAMPLE),
    (train.train, train.EXAMPLE),
):
    app.command(epilog=f"Example: {example}")(function)


def main() -> None:
    """Entry point of the console script."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False, show_time=False)],
    )
    try:
        app(prog_name="steelyard")
    except Exception as error:
        status = exit_status(error)
        if status is None:
            raise
        sys.stderr.write(f"steelyard: {_line_of(error)}\n")
        raise SystemExit(status) from None


def _line_of(error: Exception) -> str:
    """What is said of an error that is no bug."""
    if not isinstance(error, MemoryError):
        return str(error)
    lines = str(error).splitlines() or [type(error).__name__]
    return f"out of memory: {lines[0]}; free memory on this machine, or run it on one that has more"


def exit_status(error: Exception) -> int | None:
    """1 for a set that breaks a law, 2 for the user's mistake, None for a bug of ours."""
    from jobs.build import OtherConfiguration
    from jobs.faults import ClusterError, OutOfMemory
    from packer.packing.packer import PackingError
    from pipeline.config import ConfigError
    from pipeline.planning.plan import PlanError
    from pipeline.reading.listing import SourceError
    from pipeline.shard.tables import FormatError, NotInSet
    from pipeline.shard.token_store import StoreError
    from pipeline.state.lock import Busy
    from pipeline.stores.rejects import RejectsError
    from pipeline.tokenizer.identity import TokenizerError
    from pipeline.verify import VerifyError
    from trainer.errors import TrainerError

    if isinstance(error, VerifyError):
        return 1
    mistakes = (
        Busy,
        ClusterError,
        ConfigError,
        FormatError,
        NotInSet,
        MemoryError,
        OSError,
        OtherConfiguration,
        OutOfMemory,
        PackingError,
        PlanError,
        RejectsError,
        SourceError,
        StoreError,
        TokenizerError,
        TrainerError,
    )
    return 2 if isinstance(error, mistakes) else None
