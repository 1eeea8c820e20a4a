"""`steelyard`: every command a function; results on stdout, progress on stderr.

Exit 0 is success, 1 a set that does not hold what it promises, 2 the user's mistake in one line.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from jobs import show, show_cp
from jobs.progress import Reporter

if TYPE_CHECKING:
    from packer.schedule import Coupling

app = typer.Typer(
    rich_markup_mode=None,  # its tables cut off names of options at 80 columns
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Workload-balanced micro-batches for long-context LLM training, planned offline.",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The set's directory.")]
_LOCKSTEP = "Data-parallel ranks wait for each other at every micro-batch."
_KV_EXCHANGE = (
    "Exposed time of a key-value token that a CP rank receives, in linear-token equivalents."
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command(epilog="Example: steelyard build --config jobs/configs/demo.toml --out out/demo")
def build(
    config: Annotated[Path, typer.Option(help="The run's TOML file.")],
    out: Annotated[Path, typer.Option(help="The set's directory.")] = Path("out"),
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting, such as mixture.seed=7."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Stop after the plan and show it.")] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Corpora in, balanced shards out. Run again after an interruption, it resumes."""
    from jobs.build import build as run
    from pipeline.config_file import load_config

    reporter = Reporter(quiet=quiet)
    result = run(load_config(config, tuple(override or ())), out, reporter, dry_run=dry_run)
    if as_json:
        _print_json(
            {
                "totals": result.plan["totals"],
                "segment": result.plan["segment"],
                "balance": result.balance,
            }
        )
        return
    show.plan(result.plan, result.balance)
    if result.finished:
        reporter.line(f"finished: {out}; next: steelyard verify {out} && steelyard report {out}")


@app.command(epilog="Example: steelyard replan out/demo --cp-size 8 --strategy mixed")
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
    kv_exchange: Annotated[float | None, typer.Option(help=_KV_EXCHANGE)] = None,
    pad_to: Annotated[
        int | None,
        typer.Option(help="What padded pieces are a multiple of, beside 2 x the degree."),
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """New CP plans beside those that are there; no token moves."""
    from jobs.replan import replan as run

    reporter = Reporter(quiet=quiet)
    run(directory, cp_size, strategy, reporter, kv_exchange=kv_exchange, pad_to=pad_to)


@app.command(epilog="Example: steelyard verify out/demo")
def verify(
    directory: Directory,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Read everything again, re-check every law; exit 1 with the first offence found."""
    from pipeline.config import ConfigError
    from pipeline.verify import verify as run

    if not any((directory / name).exists() for name in ("manifest.json", "files.parquet")):
        raise ConfigError(f"{directory} holds no finished set; make one with steelyard build")
    report = run(directory, progress=show.progress_lines(Reporter(quiet=quiet)))
    if as_json:
        _print_json(show.as_dict(report))
    else:
        show.verified(directory, report)


@app.command(epilog="Example: steelyard report out/demo --dp-size 8 --pp-size 4")
def report(
    directory: Directory,
    dp_size: Annotated[int | None, typer.Option(min=1, help="Data-parallel ranks.")] = None,
    pp_size: Annotated[int | None, typer.Option(min=1, max=1024, help="Pipeline ranks.")] = None,
    virtual_stages: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Model chunks of a pipeline rank.")
    ] = None,
    lockstep: Annotated[
        bool | None, typer.Option("--lockstep/--no-lockstep", help=_LOCKSTEP)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a set is worth, beside what other policies make of the same stream."""
    from pipeline.report import report as run

    figures = run(
        directory,
        dp_size=dp_size,
        pp_size=pp_size,
        virtual_stages=virtual_stages,
        coupling=None if lockstep is None else _coupling(lockstep),
    )
    if as_json:
        _print_json(figures)
    else:
        show.report(directory, figures)
        if figures["cp"]:
            show_cp.degrees(figures["cp"])


@app.command(epilog="Example: steelyard inspect out/demo --step 3 --slot 0 --text 200")
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
        _print_json(figures)
    else:
        table(figures)


@app.command(
    epilog="Example: steelyard simulate --lengths fig3 --num-micro-batches 16 "
    "--context-length 131072 --dp 4 --pp 4 --policies reorder,wlb,lookahead"
)
def simulate(
    num_micro_batches: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="N, micro-batches of a step.")
    ],
    context_length: Annotated[int, typer.Option(min=1, max=1 << 26, help="S, in tokens.")],
    lengths: Annotated[
        str,
        typer.Option(
            help="fig3 (the paper's), fig3_stream (the same as parts of windows), a .npy or "
            ".json of lengths, FILE.parquet:COLUMN (lengths or "
            "lists of token ids), a Megatron .idx, or a token store's directory; in the order they "
            "stand there."
        ),
    ] = "fig3",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 26, help="S_max; default 1.25 S.")
    ] = None,
    crossover: Annotated[
        int | None, typer.Option(min=1, help="L*, in tokens; default 47100, Llama-2-7B measured.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="In its place: a model's config.json.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="In its place: a file of times.")] = None,
    policies: Annotated[
        str,
        typer.Option(
            help="Comma-separated: concat, reorder, wlb, lookahead, fixed_greedy; to compare with: "
            "wlb_printed, fixed_solver, ffd, bfd, karmarkar_karp."
        ),
    ] = "concat,reorder,wlb,lookahead",
    dp_size: Annotated[
        int, typer.Option("--dp-size", "--dp", min=1, help="Data-parallel ranks.")
    ] = 1,
    pp_size: Annotated[
        int, typer.Option("--pp-size", "--pp", min=1, max=1024, help="Pipeline ranks.")
    ] = 1,
    virtual_stages: Annotated[
        int, typer.Option(min=1, max=1024, help="Model chunks of a pipeline rank; 1F1B has one.")
    ] = 1,
    lockstep: Annotated[bool, typer.Option("--lockstep/--no-lockstep", help=_LOCKSTEP)] = False,
    micro_batch_order: Annotated[
        str, typer.Option(help="Rule by which ranks run them, or auto for each policy's best.")
    ] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="About so many steps.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Of the fig3 lengths.")] = 0,
    max_pieces: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Bound on pieces; 0 for none.")
    ] = 0,
    mean_displacement: Annotated[
        float, typer.Option(min=1e-6, max=1e6, help="Budget of tuning and of lookahead, in steps.")
    ] = 0.5,
    max_displacement: Annotated[
        int, typer.Option(min=1, max=2**31 - 1, help="Bound of every piece, in steps.")
    ] = 16,
    token_band: Annotated[
        float,
        typer.Option(
            min=0, max=0.99, help="Share by which lookahead's steps may differ in tokens; 0: any."
        ),
    ] = 0.0,
    thresholds: Annotated[
        str, typer.Option(help="Of wlb, comma-separated tokens, or tune.")
    ] = "tune",
    window_steps: Annotated[
        int, typer.Option(min=1, max=4096, help="Steps that lookahead plans as a whole.")
    ] = 64,
    moves_per_piece: Annotated[
        int,
        typer.Option(min=0, max=20_000, help="Effort of lookahead: moves a long piece; 0 for 800."),
    ] = 0,
    objective: Annotated[
        str,
        typer.Option(help="What lookahead minimises: schedule (time at dp, pp) or max (excess)."),
    ] = "schedule",
    global_batches: Annotated[
        str,
        typer.Option(
            help="Steps that fixed_*, ffd, bfd deal out together; comma-separated, a row each."
        ),
    ] = "1",
    longest_first: Annotated[
        bool, typer.Option("--longest-first", help="fixed_greedy sorts short documents as well.")
    ] = False,
    solver_seconds: Annotated[
        float, typer.Option(min=1e-3, max=86_400, help="Time of fixed_solver for a window.")
    ] = 1.0,
    solver_gap: Annotated[
        float, typer.Option(min=0, max=0.99, help="Relative gap at which fixed_solver stops.")
    ] = 1e-3,
    cp_size: Annotated[
        list[int] | None,
        typer.Option(
            min=2, max=65_536, help="Compare CP plans of this degree instead; repeatable."
        ),
    ] = None,
    cp_strategies: Annotated[
        str,
        typer.Option(
            help="Comma-separated: per_sequence, per_document, mixed, adaptive; also "
            "per_document_aligned, padded_head_tail and, to compare with, whole_document."
        ),
    ] = "per_sequence,per_document,mixed,adaptive",
    kv_exchange: Annotated[float, typer.Option(help=_KV_EXCHANGE)] = 0.0,
    cp_throughput: Annotated[
        str,
        typer.Option(
            help="Of attention by a chunk's shape: default (the profile's, else published) or flat."
        ),
    ] = "default",
    as_json: AsJson = False,
) -> None:
    """Packing policies, or CP strategies, side by side on given lengths; nothing is written."""
    from jobs.simulation import SimulationRequest, simulate_lengths

    request = SimulationRequest(
        lengths=lengths,
        policies=tuple(policies.split(",")),
        num_micro_batches=num_micro_batches,
        context_length=context_length,
        max_tokens=max_tokens or context_length * 5 // 4,
        crossover=crossover,
        model_config=model_config,
        profile=profile,
        dp_size=dp_size,
        pp_size=pp_size,
        virtual_stages=virtual_stages,
        coupling=_coupling(lockstep),
        micro_batch_order=micro_batch_order,
        steps=steps,
        seed=seed,
        max_pieces=max_pieces,
        max_displacement=max_displacement,
        mean_displacement=mean_displacement,
        token_band=token_band,
        window_steps=window_steps,
        moves_per_piece=moves_per_piece,
        thresholds=thresholds,
        objective=objective,
        global_batches=global_batches,
        longest_first=longest_first,
        solver_seconds=solver_seconds,
        solver_gap=solver_gap,
        cp_sizes=tuple(dict.fromkeys(cp_size or ())),
        cp_strategies=tuple(dict.fromkeys(cp_strategies.split(","))),
        kv_exchange=kv_exchange,
        cp_throughput=cp_throughput,
    )
    rows = simulate_lengths(request)
    if as_json:
        _print_json(rows)
    elif cp_size:
        show_cp.strategies(rows)
    else:
        show.policies(rows)


def _show_micro_batch(figures: dict[str, Any]) -> None:
    show.micro_batch(figures, show_cp.where_pieces_are(figures["cp"]))
    for degree, plan in figures["cp"].items():
        show_cp.micro_batch(degree, plan)


@app.command(epilog="Example: steelyard profile --model-config config.json --out profile.json")
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
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
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
    write_profile(request, out, Reporter(quiet=quiet))


@app.command(
    epilog="Example: steelyard train --shards out/train-shards --config jobs/configs/train.toml "
    "--set mesh.cp_size=1 --set mesh.pp_size=1 (more ranks: torchrun --nproc-per-node 4 -m trainer)"
)
def train(
    shards: Annotated[Path, typer.Option(metavar="DIR", help="The set's directory.")],
    config: Annotated[Path, typer.Option(metavar="FILE", help="The run's TOML file.")],
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as run.steps=9."),
    ] = None,
) -> None:
    """Train a model on a set; one process a rank, started by torchrun."""
    from trainer.launch import launch

    raise typer.Exit(launch(shards, config, tuple(override or ())))


def _coupling(lockstep: bool) -> Coupling:
    return "lockstep" if lockstep else "gradient_sync"


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


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
        sys.stderr.write(f"steelyard: {error}\n")
        raise SystemExit(status) from None


def exit_status(error: Exception) -> int | None:
    """1 for a set that breaks a law, 2 for the user's mistake, None for a bug of ours."""
    from jobs.build import OtherConfiguration
    from packer.packing.packer import PackingError
    from pipeline.config import ConfigError
    from pipeline.lock import Busy
    from pipeline.planning.plan import PlanError
    from pipeline.reading.listing import SourceError
    from pipeline.shard.tables import FormatError, NotInSet
    from pipeline.shard.token_store import StoreError
    from pipeline.stores.rejects import RejectsError
    from pipeline.tokenizer.identity import TokenizerError
    from pipeline.verify import VerifyError
    from trainer.errors import TrainerError

    if isinstance(error, VerifyError):
        return 1
    mistakes = (
        Busy,
        ConfigError,
        FormatError,
        NotInSet,
        OSError,
        OtherConfiguration,
        PackingError,
        PlanError,
        RejectsError,
        SourceError,
        StoreError,
        TokenizerError,
        TrainerError,
    )
    return 2 if isinstance(error, mistakes) else None
