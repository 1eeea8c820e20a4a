"""`steelyard simulate`: lengths from files, models and profiles, policies and CP strategies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jobs.command_line import run

MODEL = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 5,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "num_local_experts": 1,
    "num_experts_per_tok": 1,
}
PROFILE = {
    "format": "steelyard-profile",
    "version": 1,
    "linear": {"tokens": [10, 100], "time": [10, 100]},
    "attention": {"tokens": [10, 100], "time": [1.25, 125]},
}


def test_simulate_takes_a_model_or_a_profile_in_the_place_of_a_crossover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    (tmp_path / "lengths.json").write_text(json.dumps([7, 80, 3, 120, 55, 9] * 200))
    arguments = ["simulate", "--num-micro-batches", "4", "--context-length", "100"]
    arguments += ["--policies", "reorder", "--lengths", str(tmp_path / "lengths.json"), "--json"]
    totals = {}
    for option, value in (
        ("--crossover", "80"),  # 2 x 16 + 2 x 16 + 3 x 5 + 1 = 80
        ("--model-config", str(tmp_path / "model.json")),
        ("--profile", str(tmp_path / "profile.json")),
    ):
        assert run(*arguments, option, value) == 0
        (row,) = json.loads(capsys.readouterr().out)
        totals[option] = row["total_workload"]
    assert totals["--model-config"] == totals["--crossover"]
    assert totals["--profile"] == pytest.approx(totals["--crossover"], rel=1e-3)
    assert run(*arguments, "--crossover", "80", "--profile", "x") == 2
    assert "at most one of --crossover, --model-config and --profile" in capsys.readouterr().err
    assert run(*arguments, "--profile", str(tmp_path / "model.json")) == 2
    assert 'model.json: not a profile: "format" must be' in capsys.readouterr().err


def test_simulate_reads_lengths_from_where_they_are(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lengths.json").write_text(json.dumps([7, 80, 3, 120, 55, 9] * 200))
    shape = ["--num-micro-batches", "4", "--context-length", "100", "--crossover", "50"]
    store = next((built / "store").iterdir())
    for lengths in (str(tmp_path / "lengths.json"), str(store / "lengths.u32")):
        arguments = ["simulate", "--lengths", lengths, *shape, "--policies", "concat,reorder"]
        assert run(*arguments, "--json") == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["policy"] for row in rows] == ["concat", "reorder"]
        assert rows[0]["displacement_max"] == 0
        assert all(row["documents_per_s"] > 0 for row in rows)
    fixed = [*arguments[:-1], "concat,fixed_greedy", "--global-batches", "1,2"]
    assert run(*fixed, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["global_batches"] for row in rows] == [None, 1, 2]
    assert run(*fixed) == 0
    assert "fixed_greedy (2)" in capsys.readouterr().out
    arguments += ["--dp", "1", "--pp", "4", "--virtual-stages", "2", "--lockstep", "--json"]
    times = {}
    for order in ("identity", "light_first_1", "auto"):
        assert run(*arguments, "--micro-batch-order", order) == 0
        row = json.loads(capsys.readouterr().out)[1]
        assert (row["virtual_stages"], row["coupling"]) == (2, "lockstep")
        times[order] = row["schedule_time"]
    assert times["auto"] <= min(times.values()) < times["identity"]
    assert run("simulate", "--lengths", str(tmp_path / "x.csv"), *shape) == 2
    assert "expected fig3, fig3_stream, FILE.npy" in capsys.readouterr().err


def test_simulate_compares_strategies_on_each_policys_micro_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lengths.json").write_text(json.dumps([700, 80, 3, 1200, 55, 9] * 40))
    arguments = ["simulate", "--lengths", str(tmp_path / "lengths.json"), "--crossover", "500"]
    arguments += ["--num-micro-batches", "4", "--context-length", "2000"]
    arguments += ["--policies", "concat,ffd", "--global-batches", "1,2", "--cp-size", "2"]
    arguments += ["--cp-size", "4", "--cp-strategies", "per_document,adaptive,padded_head_tail"]
    assert run(*arguments, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    strategies = ["per_document", "adaptive", "padded_head_tail"]
    assert [
        (row["policy"], row["global_batches"], row["cp_size"], row["strategy"]) for row in rows
    ] == [
        (policy, batches, cp_size, strategy)
        for policy, batches in (("concat", None), ("ffd", 1), ("ffd", 2))
        for cp_size in (2, 4)
        for strategy in strategies
    ]
    for documents, adaptive, padded in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert adaptive["predicted_time"] <= documents["predicted_time"]
        assert sum(adaptive["chosen"].values()) == adaptive["micro_batches"]
        assert documents["chosen"] is None
        assert documents["cp_tokens"] < padded["cp_tokens"]
        assert documents["over_max_tokens"] == 0
        assert documents["plans_per_s"] > 0
    measures = ["cp_attention_mean", "cp_attention", "tile_waste", "kv_cut", "kv_needed"]
    assert all(row[name] >= 0 for row in rows for name in measures)
    times = {"": [row["predicted_time"] for row in rows]}
    for option, value in (("--kv-exchange", "8"), ("--cp-throughput", "flat")):
        assert run(*arguments, option, value, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        times[option] = [row["predicted_time"] for row in found]
    for option in ("--kv-exchange", ""):
        less = "" if option else "--cp-throughput"  # short chunks run below the best speed
        assert all(a > b for a, b in zip(times[option], times[less], strict=True))
    assert run(*arguments) == 0
    shown = capsys.readouterr().out
    for words in ("ffd (2), cp 4: ", "adaptive chose", "attention: slowest rank's attention tiles"):
        assert words in shown
