"""`steelyard simulate`: policies or CP strategies on lengths, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs import show, show_cp
from jobs.commands.options import KV_EXCHANGE, LOCKSTEP, AsJson, coupling_of, print_json

EXAMPLE = (
    "steelyard simulate --lengths fig3 --num-micro-batches 16 "
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
            "lists of token ids), a Megatron .idx, or a token store's directory or URL; in the "
            "order they stand there."
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
    lockstep: Annotated[bool, typer.Option("--lockstep/--no-lockstep", help=LOCKSTEP)] = False,
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
    kv_exchange: Annotated[float, typer.Option(help=KV_EXCHANGE)] = 0.0,
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
        coupling=coupling_of(lockstep),
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
        print_json(rows)
    elif cp_size:
        show_cp.strategies(rows)
    else:
        show.policies(rows)
