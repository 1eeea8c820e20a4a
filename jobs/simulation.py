"""`steelyard simulate`: lengths from where the user has them, through every policy."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from packer.context_parallel import DIAGNOSTIC, STRATEGIES, CPOptions
from packer.context_parallel.simulate import MicroBatches, compare_strategies
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.whole import Packing
from packer.schedule import Coupling, Schedule
from packer.simulate import simulate
from packer.throughput import FLAT, Throughput
from packer.window_lengths import fig3_stream_lengths
from packer.workload import LONGEST_PIECE, Workload
from pipeline.config import ConfigError
from pipeline.files.storage import is_url
from pipeline.files.url_path import as_path
from pipeline.planning.bounds import warn_of_one_rank
from pipeline.planning.workloads import workload_of_config, workload_of_profile
from pipeline.reading.megatron import check_index, open_index
from pipeline.reading.token_columns import holds_ids, list_lengths
from pipeline.shard.token_store import TokenStore

log = logging.getLogger(__name__)

_FIG3_TOKENS_PER_DOCUMENT = 1_500
"""A little below the distribution's mean, so that enough documents are drawn."""


_FIG3 = {"fig3": fig3_lengths, "fig3_stream": fig3_stream_lengths}
_OBJECTIVES = ("schedule", "max")
_MOST_DOCUMENTS = 100_000_000
_FIG7_CROSSOVER = 47_100
"""Measured for Llama-2-7B on 16 H100s (WLB-LLM, arXiv 2503.17924, Figure 7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """The command's options."""

    lengths: str
    policies: tuple[str, ...]
    num_micro_batches: int
    context_length: int
    max_tokens: int
    crossover: int | None
    model_config: Path | None = None
    profile: Path | None = None
    dp_size: int
    pp_size: int
    virtual_stages: int
    coupling: Coupling
    micro_batch_order: str
    steps: int
    seed: int
    max_pieces: int
    max_displacement: int
    mean_displacement: float
    token_band: float
    window_steps: int
    moves_per_piece: int
    thresholds: str
    objective: str
    global_batches: str = "1"
    longest_first: bool = False
    solver_seconds: float = 1.0
    solver_gap: float = 1e-3
    cp_sizes: tuple[int, ...] = ()
    cp_strategies: tuple[str, ...] = ()
    kv_exchange: float = 0.0
    cp_throughput: str = "default"


def simulate_lengths(request: SimulationRequest) -> list[dict[str, Any]]:
    """One dict a policy (`packer.simulate`), or with CP degrees one a policy, degree and strategy.

    The latter are those of `packer.context_parallel.simulate`, with `policy` and `global_batches`.

    Raises:
        ConfigError: unreadable lengths, model or profile, unknown policy, strategy or objective.
    """
    if "lookahead" in request.policies and request.objective == "schedule":
        warn_of_one_rank(request.dp_size, request.pp_size, "--dp and --pp", "--objective")
    workload = _workload(request)
    log.info("workload: %s", workload)
    cp_rows: list[dict[str, Any]] = []
    compare = _comparison(request, workload, cp_rows)
    lengths = load_lengths(request)
    _say_what_is_used(request, workload, lengths)
    try:
        schedule = Schedule(
            dp_size=request.dp_size,
            pp_size=request.pp_size,
            virtual_stages=request.virtual_stages,
            coupling=request.coupling,
        )
        rows = simulate(
            lengths,
            request.policies,
            _packing(request, schedule),
            workload=workload,
            schedule=schedule,
            micro_batch_order=request.micro_batch_order,
            global_batches=_numbers("--global-batches", request.global_batches, "steps"),
            steps=request.steps,
            look=compare,
        )
    except ValueError as error:  # bounds and lengths that make no sense together
        raise ConfigError(f"simulate: {error}") from error
    return cp_rows if request.cp_sizes else rows


def _say_what_is_used(request: SimulationRequest, workload: Workload, lengths: np.ndarray) -> None:
    """Lengths beyond the steps that were asked for, or beyond what a profile has measured."""
    step = request.num_micro_batches * request.context_length
    used = min(len(lengths), int(np.searchsorted(np.cumsum(lengths), request.steps * step)) + 1)
    if used < len(lengths) and request.lengths not in _FIG3:
        log.info("the first %d of %d documents are used; raise --steps", used, len(lengths))
    if workload.profile is not None:
        measured = workload.profile.attention.tokens[-1]
        longest = min(int(lengths[:used].max()), request.context_length)
        if longest > measured:
            log.warning(
                "the profile's longest piece has %d tokens, the longest here %d: its last two "
                "points are continued; measure with --max-tokens %d",
                measured,
                longest,
                longest,
            )


def _packing(request: SimulationRequest, schedule: Schedule) -> PackingConfig:
    """What the policies pack under."""
    if request.objective not in _OBJECTIVES:
        raise ValueError(
            f"objective {request.objective!r} is not known; use one of {list(_OBJECTIVES)}"
        )
    return PackingConfig(
        num_micro_batches=request.num_micro_batches,
        context_length=request.context_length,
        max_tokens=request.max_tokens,
        max_pieces=request.max_pieces,
        thresholds=_thresholds(request.thresholds),
        max_displacement=request.max_displacement,
        mean_displacement=request.mean_displacement,
        window_steps=request.window_steps,
        moves_per_piece=request.moves_per_piece,
        schedule=schedule if request.objective == "schedule" else None,
        token_band=request.token_band,
        longest_first=request.longest_first,
        solver_seconds=request.solver_seconds,
        solver_gap=request.solver_gap,
    )


def _comparison(
    request: SimulationRequest, workload: Workload, rows: list[dict[str, Any]]
) -> Callable[[dict[str, Any], Packing], None]:
    """What plans each policy's micro-batches over CP ranks; what it finds goes to `rows`."""
    try:
        options = CPOptions(
            throughput=_throughput(request.cp_throughput), kv_exchange=request.kv_exchange
        )
    except ValueError as error:
        raise ConfigError(f"simulate: {error}") from error
    known = (*STRATEGIES, *DIAGNOSTIC)
    for name in request.cp_strategies:
        if name not in known:
            raise ConfigError(f"--cp-strategies: no strategy {name!r}; known: {', '.join(known)}")

    def compare(row: dict[str, Any], packing: Packing) -> None:
        if not request.cp_sizes or packing.steps is None:
            return
        batches = MicroBatches(
            piece_tokens=packing.steps.pieces.tokens,
            row_offsets=packing.steps.row_offsets,
            max_tokens=request.max_tokens,
        )
        packed = {"policy": row["policy"], "global_batches": row["global_batches"]}
        for found in compare_strategies(
            batches,
            cp_sizes=request.cp_sizes,
            strategies=request.cp_strategies,
            workload=workload,
            options=options,
        ):
            rows.append(packed | found)

    return compare


def _throughput(name: str) -> Throughput | None:
    if name not in ("default", "flat"):
        raise ConfigError(f"--cp-throughput {name}: expected default or flat")
    return FLAT if name == "flat" else None


def _workload(request: SimulationRequest) -> Workload:
    given = [request.crossover, request.model_config, request.profile]
    if given.count(None) < 2:
        raise ConfigError("give at most one of --crossover, --model-config and --profile")
    if request.model_config is not None:
        return workload_of_config(request.model_config)
    if request.profile is not None:
        return workload_of_profile(request.profile)
    try:
        return Workload(crossover=request.crossover or _FIG7_CROSSOVER)
    except ValueError as error:
        raise ConfigError(f"--crossover: {error}") from error


def fig3_documents(steps: int, num_micro_batches: int, context_length: int) -> int:
    """How many documents to draw so that there are enough for the steps."""
    return steps * num_micro_batches * context_length // _FIG3_TOKENS_PER_DOCUMENT + 1


def load_lengths(request: SimulationRequest) -> np.ndarray:
    """Document lengths in tokens, int64 (documents,).

    Raises:
        ConfigError: not a file of lengths.
    """
    if request.lengths in _FIG3:
        count = fig3_documents(request.steps, request.num_micro_batches, request.context_length)
        if count > _MOST_DOCUMENTS:
            raise ConfigError(
                f"{request.steps} steps of {request.num_micro_batches} x {request.context_length} "
                f"tokens need {count} documents; at most {_MOST_DOCUMENTS} are drawn, lower --steps"
            )
        return _FIG3[request.lengths](count, request.seed)
    try:
        lengths = _read_lengths(request.lengths)
    except (OSError, ValueError, KeyError, EOFError, RecursionError) as error:
        raise ConfigError(f"--lengths {request.lengths}: {error}") from error
    flat = lengths.ndim == 1 and len(lengths) and lengths.dtype.kind in "iu"
    if not flat or lengths.min() < 1 or lengths.max() > LONGEST_PIECE:
        span = f", {lengths.min()} to {lengths.max()}" if flat else ""
        raise ConfigError(
            f"--lengths {request.lengths}: expected a flat list of integers, 1 to {LONGEST_PIECE}, "
            f"found {lengths.dtype} of shape {list(lengths.shape)}{span}"
        )
    return lengths.astype(np.int64)


def _read_lengths(name: str) -> np.ndarray:
    path, _, column = name.partition(":")
    if is_url(name) or Path(name).is_dir():
        store = TokenStore(as_path(name))
        store.check_tables()
        return store.lengths
    if name.endswith(".idx"):
        index = open_index(name)
        check_index(index)
        return _without_empty(name, index.document_lengths(0, index.documents))
    if path.endswith(".npy"):
        return np.load(path, allow_pickle=False)
    if path.endswith(".json"):
        return np.array(json.loads(Path(path).read_text()))
    if path.endswith(".parquet"):
        return _column_lengths(path, column)
    if path.endswith(".u32"):
        return np.fromfile(path, "<u4")
    raise ValueError(
        "expected fig3, fig3_stream, FILE.npy, FILE.json, FILE.parquet:COLUMN (of lengths, or of "
        "lists of token ids), a Megatron FILE.idx, a token store or its lengths.u32"
    )


def _column_lengths(path: str, column: str) -> np.ndarray:
    """A column of lengths, or how many ids each row of a column of token ids has."""
    with pq.ParquetFile(path) as file:
        if column not in file.schema_arrow.names:
            names = ", ".join(file.schema_arrow.names)
            raise ValueError(f"no column {column!r}; give {path}:COLUMN, one of {names}")
        kind = file.schema_arrow.field(column).type
        if not holds_ids(kind):
            return file.read([column]).column(column).to_numpy()
        batches = file.iter_batches(batch_size=1024, columns=[column], use_threads=False)
        lengths = [list_lengths(batch.column(0)) for batch in batches]
    return _without_empty(f"{path}:{column}", np.concatenate(lengths or [np.empty(0, np.int64)]))


def _without_empty(name: str, lengths: np.ndarray) -> np.ndarray:
    """The lengths of documents that a build would take: an empty one is rejected there."""
    kept = lengths[lengths > 0]
    if len(kept) < len(lengths):
        log.warning("%s: %d documents without tokens left out", name, len(lengths) - len(kept))
    return kept


def _thresholds(text: str) -> tuple[int, ...]:
    """Tokens; none where they are to be tuned."""
    if text == "tune":
        return ()
    return _numbers("--thresholds", text, "tokens", "or tune")


def _numbers(option: str, text: str, unit: str, *other: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (0,)
    if not all(1 <= number <= LONGEST_PIECE for number in numbers):
        expected = ", ".join([f"{unit} with commas, each 1 to {LONGEST_PIECE}", *other])
        raise ConfigError(f"{option} {text}: expected {expected}")
    return numbers
