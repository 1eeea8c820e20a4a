"""Balance on the paper's document lengths: policies side by side, several seeds.

`run` looks at the heaviest micro-batch (objective "max"), `run_schedule` at the time of steps on a
cluster (objective "schedule"). Two processes share the seeds; nothing here is timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from statistics import mean
from typing import Any

from jobs.simulation import fig3_documents
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.schedule import Schedule
from packer.simulate import simulate
from packer.workload import Workload

CONTEXT_LENGTH = 131_072
CROSSOVER = 47_100
SEEDS = range(5)
FEW_SEEDS = range(2)
"""Of steps of 256 micro-batches, which take a minute of search for every 15."""
STEPS = 420
PP_SIZE = 4
ALL = ("concat", "reorder", "wlb", "lookahead")
_MEASURES = (
    "excess",
    "imbalance_degree_mean",
    "displacement_mean",
    "tokens_per_step_cv",
    "lockstep_time",
    "schedule_time",
    "outside_bands",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of a table before policies and seeds."""

    num_micro_batches: int
    dp_size: int
    factor: float
    """S_max over S."""
    objective: str
    variants: tuple[tuple[float, float], ...]
    """Displacement budget and token band of `lookahead`, one after another."""
    seeds: range = SEEDS
    policies: tuple[str, ...] = ALL


MAX_SETTINGS = tuple(
    Setting(
        num_micro_batches=num,
        dp_size=max(1, num // 4),
        factor=factor,
        objective="max",
        variants=((0.5, 0.0), (0.5, 0.02)),
    )
    for num, factor in product((4, 16), (1.0, 1.25, 1.5))
)
SCHEDULE_SETTINGS = tuple(
    Setting(
        num_micro_batches=num,
        dp_size=dp_size,
        factor=1.25,
        objective="schedule",
        variants=((0.5, 0.0), (0.25, 0.0), (0.5, 0.02))[: 1 if num > 64 else 3],
        seeds=FEW_SEEDS if num > 64 else SEEDS,
    )
    for num, dp_size in ((16, 4), (64, 8), (256, 32))
)


def run() -> list[dict[str, Any]]:
    """A row a setting, policy and variant, means over the seeds: objective "max"."""
    return _rows(MAX_SETTINGS)


def run_schedule() -> list[dict[str, Any]]:
    """Likewise, objective "schedule": dp ranks of a pipeline of PP_SIZE stages."""
    return _rows(SCHEDULE_SETTINGS)


def _rows(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    of_all = [[(setting, seed) for seed in setting.seeds] for setting in reversed(settings)]
    runs = [run for of_setting in of_all for run in of_setting]  # the long ones first
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        by_run = dict(zip(runs, pool.map(_measured, *zip(*runs, strict=True)), strict=True))
    rows = []
    for setting in settings:
        of_seeds = [by_run[setting, seed] for seed in setting.seeds]
        rows += [_mean(figures) for figures in zip(*of_seeds, strict=True)]
    return rows


def _mean(figures: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(figures)
    row = {name: value for name, value in rows[0].items() if name not in _MEASURES}
    for measure in _MEASURES:
        row[measure] = mean(figures[measure] for figures in rows)
    row["displacement_max"] = max(figures["displacement_max"] for figures in rows)
    row["steps"] = min(figures["steps"] for figures in rows)
    row["schedule_times"] = [figures["schedule_time"] for figures in rows]
    return row


def _measured(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """One seed's rows of a setting."""
    num = setting.num_micro_batches
    lengths = fig3_lengths(fig3_documents(STEPS, num, CONTEXT_LENGTH), seed)
    schedule = Schedule(dp_size=setting.dp_size, pp_size=PP_SIZE)
    thresholds: tuple[int, ...] = ()
    rows = []
    others = [policy for policy in setting.policies if policy != "lookahead"]
    for policies, (budget, band) in [
        (others, (0.5, 0.0)),
        *((["lookahead"], variant) for variant in setting.variants),
    ]:
        for figures in simulate(
            lengths,
            policies,
            PackingConfig(
                num_micro_batches=num,
                context_length=CONTEXT_LENGTH,
                max_tokens=int(setting.factor * CONTEXT_LENGTH),
                schedule=schedule if setting.objective == "schedule" else None,
                mean_displacement=budget,
                token_band=band,
                thresholds=thresholds,
            ),
            workload=Workload(crossover=CROSSOVER),
            schedule=schedule,
            steps=STEPS,
        ):
            row: dict[str, Any] = {
                "num_micro_batches": num,
                "max_tokens_over_context": setting.factor,
                "dp_size": setting.dp_size,
                "policy": figures["policy"],
                "budget": budget if figures["policy"] in ("wlb", "lookahead") else None,
                "token_band": band,
            }
            row |= {name: figures[name] for name in (*_MEASURES, "displacement_max", "steps")}
            rows.append(row)
            if figures["policy"] == "wlb":
                thresholds = tuple(figures["thresholds"])
    return rows
