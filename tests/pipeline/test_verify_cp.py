"""Every law of CP plans' chunks, broken on purpose; plans of every strategy pass."""

from pathlib import Path

import numpy as np
import pytest

from packer.context_parallel import STRATEGIES, CPOptions, plan_context_parallel
from packer.workload import Workload
from pipeline.planning.cp_options import describe_options
from pipeline.verify import verify
from tests.changes import CP, Change, add, check_is_found, put, put_chunks, segment
from tests.fixture_contents import CROSSOVER
from tests.fixture_set import make_set

# --- Law: CP plans tile every micro-batch. Row 0 is one piece of 16 tokens.
CP_LAWS: dict[str, tuple[Change, str]] = {
    "rows are the plan's": (add("cp", "slot", 0), "'slot' is 1, the plan says 0"),
    "every rank has a prediction": (put("cp", "predicted", 0, [1]), "must have 2 entries"),
    "lists are of one length": (put("cp", "stop", 0, [8]), "different lengths"),
    "ranks exist": (put_chunks(0, (0, 0, 0, 8), (2, 0, 8, 16)), "cp_rank 2 is not in 0..1"),
    "pieces exist": (put_chunks(0, (0, 0, 0, 8), (1, 1, 8, 16)), "piece 1 is not in 0..0"),
    "there is no padding": (put_chunks(0, (0, -1, 0, 8), (1, 0, 0, 16)), "has a place only where"),
    "chunks are not empty": (
        put_chunks(0, (0, 0, 0, 8), (1, 0, 8, 8), (1, 0, 9, 16)),
        "not a non-empty part",
    ),
    "chunks lie in their piece": (
        put_chunks(0, (0, 0, 0, 8), (1, 0, 8, 17)),
        "not a non-empty part",
    ),
    "ranks ascend": (put_chunks(0, (1, 0, 0, 8), (0, 0, 8, 16)), "must ascend"),
    "starts ascend": (put_chunks(0, (0, 0, 12, 16), (0, 0, 0, 4), (1, 0, 4, 12)), "must ascend"),
    "chunks that touch are one": (
        put_chunks(0, (0, 0, 0, 4), (0, 0, 4, 8), (1, 0, 8, 16)),
        "must be one",
    ),
    "no token is doubled": (put_chunks(0, (0, 0, 0, 9), (1, 0, 8, 16)), "tiling breaks"),
    "no token is left out": (put_chunks(0, (0, 0, 0, 7), (1, 0, 8, 16)), "tiling breaks"),
    "no first token is left out": (put_chunks(0, (0, 0, 1, 8), (1, 0, 8, 16)), "tiling breaks"),
    "no last token is left out": (put_chunks(0, (0, 0, 0, 8), (1, 0, 8, 15)), "in no chunk"),
    "no piece is left out": (
        put_chunks(3, (0, 0, 0, 8), (0, 1, 0, 1), (1, 1, 1, 8), (1, 2, 0, 1)),
        "those from 0 are in no chunk",
    ),
    "shares are even": (put_chunks(0, (0, 0, 0, 7), (1, 0, 7, 16)), "ranks hold [7, 9] tokens"),
    "no rank is left out": (put_chunks(0, (0, 0, 0, 16)), "ranks hold [16, 0] tokens"),
    "predictions are those of the chunks": (add("cp", "predicted", 3, 1), "; its chunks make ["),
    "predictions move with the chunks": (
        put_chunks(0, (0, 0, 0, 8), (1, 0, 8, 16)),
        "; its chunks make [",
    ),
    "the exchange has its price": (
        lambda data: data.manifest["cp"]["2"].update(kv_exchange=0.5),
        "; its chunks make [",
    ),
    "the strategy is the degree's": (
        put("cp", "strategy", 2, "mixed"),
        "strategy is 'mixed', the manifest says 'per_sequence'",
    ),
    "nothing is considered without a choice": (
        put("cp", "considered", 1, [5]),
        "'considered' must have 0 entries",
    ),
}


@pytest.mark.parametrize("law", CP_LAWS)
def test_a_broken_law_of_cp_plans_is_found(law: str, tmp_path: Path):
    change, message = CP_LAWS[law]
    check_is_found(change, f"{CP}, row group 0: row", message, tmp_path)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plans_of_every_strategy_pass(strategy: str, tmp_path: Path):
    data = make_set()
    segment(max_tokens=1_000)(data)
    workload, options = Workload(crossover=CROSSOVER), CPOptions(kv_exchange=0.5)
    data.manifest["cp"]["2"] = describe_options(strategy, options, workload, 2)
    for plan, columns in zip(data.plan, data.cp, strict=True):
        for row, cu_seqlens in enumerate(plan["cu_seqlens"]):
            lengths = np.diff(cu_seqlens)
            planned = plan_context_parallel(
                lengths,
                np.array([0, len(lengths)]),
                cp_size=2,
                strategy=strategy,
                workload=workload,
                options=options,
            )
            for name in ("cp_rank", "piece", "start", "stop"):
                columns[name][row] = getattr(planned, name).tolist()
            for name in ("predicted", "considered"):
                columns[name][row] = getattr(planned, name)[0].tolist()
            columns["strategy"][row] = planned.strategy[0]
    assert verify(data.write(tmp_path)).rows == 16


def test_ranks_may_differ_by_one_token():
    data = make_set()
    counts = []
    for cu_seqlens, rank, start, stop in zip(
        data.plan[0]["cu_seqlens"], *(data.cp[0][name] for name in ("cp_rank", "start", "stop")),
        strict=True,
    ):  # fmt: skip
        first = sum(b - a for r, a, b in zip(rank, start, stop, strict=True) if r == 0)
        counts.append(abs(cu_seqlens[-1] - 2 * first))
    assert set(counts) == {0, 1}
