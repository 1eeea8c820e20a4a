"""The command line: results on stdout, one line for a mistake, exit status 0, 1 or 2."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli import app, exit_status
from packer.orders import run_order
from pipeline.config import ConfigError
from pipeline.verify import VerifyError
from tests.bad_corpus import EXPECTED, FOLDERS, TRUNCATED, write_bad_corpus
from tests.jobs.command_line import run, to_toml
from tests.jobs.small_run import small_config

COMMANDS = (
    "build", "extend", "fork", "replan", "verify", "report", "inspect", "simulate", "profile",
    "train",
)  # fmt: skip
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cli")
    fields = small_config(directory / "corpus").model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    fields["context_parallel"]["strategy"] = "adaptive"
    path = directory / "run.toml"
    path.write_text(to_toml(fields))
    return path


@pytest.fixture(scope="module")
def built(config_file: Path) -> Path:
    out = config_file.parent / "out"
    assert run("build", "--config", str(config_file), "--out", str(out), "--quiet") == 0
    return out


def test_build_verify_report_inspect(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", str(built), "--quiet") == 0
    assert "every law holds" in capsys.readouterr().out
    assert run("report", str(built), "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    required = (
        "documents tokens rejected tail_tokens steps num_micro_batches imbalance_degree "
        "imbalance_degree_mean displacement_mean displacement_max tokens_per_step_cv "
        "max_tokens_seen lockstep_time cp_attention cp_tokens"
    )
    assert set(required.split()) <= set(figures)
    assert set(figures["baselines"]) == {"concat", "reorder"}
    assert figures["baselines"]["concat"]["displacement_max"] == 0
    assert [source["name"] for source in figures["sources"]] == ["lines", "mixed"]
    assert run("report", str(built)) == 0
    shown = capsys.readouterr().out
    for words in ("this set", "mixture", "set aside", "1.00 of 1", "dp 2, pp 2\n", "4, adaptive"):
        assert words in shown
    for row in figures["cp"].values():
        assert sum(row["chosen"].values()) == 4 * figures["steps"]
    options = ("--dp-size", "1", "--pp-size", "2", "--virtual-stages", "2", "--lockstep")
    assert run("report", str(built), *options) == 0
    assert "dp 1, pp 2 x 2, lockstep" in capsys.readouterr().out
    assert run("inspect", str(built), "--step", "2", "--slot", "1", "--text", "20", "--json") == 0
    batch = json.loads(capsys.readouterr().out)
    assert sum(piece["tokens"] for piece in batch["pieces"]) == batch["tokens"]
    plan = batch["cp"]["4"]
    assert sum(rank["tokens"] for rank in plan["ranks"]) == batch["tokens"]
    assert [piece["tokens"] for piece in plan["pieces"]] == [
        piece["tokens"] for piece in batch["pieces"]
    ]
    slowest = max(rank["predicted"] for rank in plan["ranks"])
    assert plan["considered"][plan["strategy"]] == min(plan["considered"].values()) == slowest
    assert all(piece["text"] for piece in batch["pieces"])
    turns = {place["dp_size"]: place["turn"] for place in batch["runs_as"]}
    four, two = (run_order(figures["micro_batch_order"], num) for num in (4, 2))
    assert turns == {1: four.index(1), 2: two.index(0), 4: 0}
    assert run("inspect", str(built), "--step", "2") == 0
    shown = capsys.readouterr().out
    for words in (f"turn {four.index(0)} of rank 0 at dp 1", "slowest rank under", "cp 4: mixed"):
        assert words in shown


def test_a_document_is_found_again_in_its_file_and_in_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(tmp_path / "corpus").model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    config["sources"][0] |= {"keep_columns": ["id", "absent"], "max_epochs": 2}
    path, out = tmp_path / "run.toml", str(tmp_path / "out")
    path.write_text(to_toml(config))
    assert run("build", "--config", str(path), "--out", out, "--quiet") == 0
    assert run("verify", out, "--quiet") == 0
    capsys.readouterr()
    document = ("inspect", out, "--source", "lines", "--doc-id", "402", "--text", "9")
    assert run(*document, "--pieces", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["record"]) == ("second.jsonl.gz", 2)
    assert found["metadata"] == {"absent": None, "id": 2}
    spans = [(piece["epoch"], piece["doc_start"], piece["doc_stop"]) for piece in found["pieces"]]
    assert {epoch for epoch, _, _ in spans} == {0, 1}
    assert sum(stop - start for _, start, stop in spans) == 2 * found["tokens"]
    placed = [piece for piece in found["pieces"] if piece["step"] is not None]
    step, slot = placed[0]["step"], placed[0]["slot"]
    assert run("inspect", out, "--step", str(step), "--slot", str(slot), "--json") == 0
    batch = json.loads(capsys.readouterr().out)
    assert 402 in {piece["doc_id"] for piece in batch["pieces"] if piece["source"] == "lines"}
    assert run(*document, "--pieces") == 0
    assert "record 2 of second.jsonl.gz" in capsys.readouterr().out
    assert run("inspect", out, "--source", "lines") == 2
    assert run("inspect", out, "--source", "line", "--doc-id", "0") == 2
    assert "source 'line' is not in this set; it has: lines, mixed" in capsys.readouterr().err
    assert run("inspect", out, "--source", "lines", "--doc-id", "500") == 2
    assert "no document 500; the store has 500" in capsys.readouterr().err


def test_results_are_on_stdout_and_progress_on_stderr(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run("build", "--config", str(config_file), "--out", out, "--dry-run", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["totals"]["steps"] > 0
    for words in ("tokenizer", "tokenize lines: 500 documents", "plan"):
        assert words in captured.err


def test_the_bad_corpus_builds_and_every_reject_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(tmp_path / "corpus").model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    bad = write_bad_corpus(tmp_path / "bad")
    paths = [str(bad / folder) for folder in FOLDERS]
    config["sources"] = [{"name": "bad", "paths": paths}]
    config["packing"]["policy"] = "concat"  # its documents are long
    path, out = tmp_path / "run.toml", str(tmp_path / "out")
    path.write_text(to_toml(config))
    assert run("build", "--config", str(path), "--out", out) == 0
    expected = Counter({"truncated": len(TRUNCATED)})
    for _, rejected in EXPECTED.values():
        expected.update(rejected)
    words = ", ".join(f"{count} {reason}" for reason, count in sorted(expected.items()))
    assert f"rejected {words}; see " in capsys.readouterr().err
    assert run("report", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rejected"] == expected
    assert run("verify", out, "--quiet") == 0
    config["rejects"] = {"stop_on": ["utf16"]}
    path.write_text(to_toml(config))
    assert run("build", "--config", str(path), "--out", str(tmp_path / "other")) == 2
    error = capsys.readouterr().err
    assert "utf16.jsonl, record 0: utf16 (starts with a UTF-16 byte-order mark" in error
    assert "Traceback" not in error


def test_replan_from_the_command_line(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run("build", "--config", str(config_file), "--out", out, "--quiet") == 0
    made = ("--cp-size", "3", "--cp-size", "4", "--strategy", "per_sequence")
    capsys.readouterr()
    assert run("replan", out, *made) == 0
    closing = "CP degrees 2 (adaptive), 3 (per_sequence), 4 (per_sequence); replaced: 4\n"
    said = capsys.readouterr()
    assert said.err.endswith(closing)
    first_column = [line.split("│")[1].strip() for line in said.out.splitlines() if "│" in line]
    assert list(filter(None, first_column)) == ["2, adaptive", "3, per_sequence", "4, per_sequence"]
    assert run("replan", out, "--cp-size", "3", "--json", "--quiet") == 0
    plans = json.loads(capsys.readouterr().out)
    assert {degree: plan["strategy"] for degree, plan in plans.items()} == {
        "2": "adaptive", "3": "adaptive", "4": "per_sequence"
    }  # fmt: skip
    assert run("verify", out, "--json", "--quiet") == 0
    padded = ("--strategy", "padded_head_tail", "--kv-exchange", "0.5")
    assert run("replan", out, "--cp-size", "2", "--cp-size", "4", *padded, "--quiet") == 2
    error = capsys.readouterr().err
    assert "micro-batches exceed max_tokens 640 once their pieces are padded to multiples" in error
    assert run("verify", out, "--quiet") == 0
    assert run("replan", out, "--cp-size", "3", "--strategy", "diagonal") == 2
    assert "no strategy 'diagonal'; known: per_sequence, per_document" in capsys.readouterr().err
    assert run("replan", out, "--cp-size", "3", "--strategy", "whole_document") == 2
    assert "whole_document is a diagnostic, whose ranks hold unequal" in capsys.readouterr().err
    assert run("replan", out, "--cp-size", "3", "--pad-to", "8") == 2
    assert 'pad_to is 8, but strategy "adaptive" pads nothing' in capsys.readouterr().err
    assert run("replan", out, "--cp-size", "3", "--kv-exchange", "99") == 2
    assert (
        "replan: kv_exchange: Input should be less than or equal to 64" in capsys.readouterr().err
    )


def test_a_set_is_extended_and_forked_from_the_command_line(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, other = str(tmp_path / "out"), str(tmp_path / "other")
    given = ("--config", str(config_file), "--set", "mixture.target_tokens=40000")
    assert run("build", *given, "--out", out, "--quiet") == 0
    fields = small_config(config_file.parent / "corpus").model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"tokenizer", "workload"}
    )
    del fields["context_parallel"], fields["shards"]["split_bytes"]  # the chain has them
    following = tmp_path / "next.toml"
    following.write_text(to_toml(fields))
    more = ("--config", str(following), "--set", "packing.policy=reorder")
    capsys.readouterr()
    assert run("extend", out, *more, "--dry-run", "--json", "--quiet") == 0
    planned = json.loads(capsys.readouterr().out)
    assert run("extend", out, *more, "--set", "packing.context_length=300") == 2
    assert "leave it out, or set it to 600" in capsys.readouterr().err
    assert run("extend", out, *more) == 0
    said = capsys.readouterr()
    assert said.err.endswith(f"extended: {out}; next: steelyard verify {out}\n")
    assert "reorder" in said.out
    assert run("report", out) == 0
    shown = capsys.readouterr().out
    first = planned["segment"]["first_step"]
    assert f"segment 0: steps 0 to {first - 1}\n" in shown
    assert f"segment 1: steps {first} to " in shown
    assert "the chain of 2 segments" in shown
    assert run("fork", out, "--from-step", str(first - 1), "--out", other, "--quiet") == 0
    assert run("verify", other, "--quiet") == 0
    assert run("report", other) == 0
    assert run("fork", out, "--from-step", "0", "--out", other, "--quiet") == 2
    assert "fork: step 0 is not in 1.." in capsys.readouterr().err


def test_a_damaged_set_is_status_1_and_names_the_file(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("build", "--config", str(config_file), "--out", str(out), "--quiet") == 0
    shard = out / "shards" / "00001.parquet"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    capsys.readouterr()
    assert run("verify", str(out), "--quiet") == 1
    error = capsys.readouterr().err
    assert "shards/00001.parquet" in error
    assert "row group 0" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "--config", "nowhere.toml"], "nowhere.toml: No such file"),
        (["verify", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["inspect", "nowhere", "--step", "0"], "nowhere"),
        (["replan", "nowhere", "--cp-size", "2"], "nowhere"),
    ],
)
def test_mistakes_are_status_2_and_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    status = run(*arguments)
    error = capsys.readouterr().err
    assert status in (1, 2) if arguments[0] == "verify" else status == 2
    assert words in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "SHAPE", "--cp-size", "2", "--cp-strategies", "x"], "no strategy 'x'"),
        (["simulate", "SHAPE", "--cp-size", "2", "--kv-exchange", "-1"], "kv_exchange is -1.0"),
        (["simulate", "SHAPE", "--cp-size", "2", "--cp-throughput", "x"], "expected default or"),
        (["inspect", "BUILT", "--step", "9999"], "step 9999 is not in 0.."),
        (["inspect", "BUILT", "--step", "0", "--slot", "4"], "slot 4 is not in 0..3"),
        (["report", "BUILT", "--dp-size", "3"], "dp_size 3 does not divide the 4"),
        (["simulate", "SHAPE", "--policies", "best"], "no packing policy 'best'"),
        (
            ["simulate", "SHAPE", "--policies", "ffd", "--global-batches", "2,x"],
            "steps with commas",
        ),
        (
            ["simulate", "SHAPE", "--policies", "ffd", "--global-batches", "0"],
            "--global-batches 0: expected steps with commas",
        ),
        (["simulate", "SHAPE", "--dp-size", "3"], "dp_size 3 does not divide"),
        (["report", "BUILT", "--pp-size", "4", "--virtual-stages", "2"], "groups of pp_size 4"),
        (["simulate", "SHAPE", "--virtual-stages", "2"], "nothing to interleave"),
        (["simulate", "SHAPE", "--micro-batch-order", "up"], "no micro_batch_order 'up'"),
        (["simulate", "SHAPE", "--max-tokens", "50"], "less than context_length"),
        (["simulate", "SHAPE", "--steps", "1000000000"], "lower --steps"),
        (["simulate", "SHAPE", "--objective", "mean"], "objective 'mean' is not known"),
        (["simulate", "SHAPE", "--token-band", "1.5"], "token-band"),
    ],
)
def test_asking_for_what_is_not_there_is_status_2(
    built: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--num-micro-batches", "4", "--context-length", "100000", "--thresholds", "50000"]
    given = {"BUILT": [str(built)], "SHAPE": shape}
    status = run(*(part for word in arguments for part in given.get(word, [word])))
    error = capsys.readouterr().err
    assert status == 2
    assert words in error
    assert "Traceback" not in error


def test_bugs_keep_their_traceback_and_mistakes_have_a_status() -> None:
    assert exit_status(RuntimeError("bug")) is None
    assert exit_status(ValueError("a bug of numpy's, say")) is None
    assert exit_status(ConfigError("mistake")) == 2
    assert exit_status(VerifyError("broken", path=Path("x"))) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_stands_in_the_readme(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: steelyard {command}" in re.sub(r"\s+", " ", result.output)
    assert f"steelyard {command}" in README.read_text()


def test_no_command_is_missing_from_these_tests() -> None:
    assert {command.callback.__name__ for command in app.registered_commands} == set(COMMANDS)  # type: ignore[union-attr]
