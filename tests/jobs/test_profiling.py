"""`steelyard profile` and the GPU check, whole, on the CPU reference."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from jobs import gpu_check, gpu_mfu
from jobs.cli import app, exit_status, main
from packer.context_parallel import STRATEGIES
from packer.lengths import fig3_lengths
from packer.profile import Profile, parse_profile
from trainer.errors import TrainerError

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's own CPU time, so that others at work on this machine are no noise."""
    torch.set_num_threads(1)
    monkeypatch.setattr("trainer.timing.time", SimpleNamespace(perf_counter=time.thread_time))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL))
    return path


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["steelyard", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


def test_a_profile_is_written_that_the_planner_reads(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "profile.json"
    arguments = ("--device", "cpu", "--max-tokens", "512", "--repeats", "3", "--tp-size", "2")
    result = CliRunner().invoke(
        app, ["profile", "--model-config", str(model), "--out", str(out), *arguments]
    )
    assert result.exit_code == 0, result.exception
    assert "a layer, forward and backward" in result.stdout
    assert "18/18 measurements" in result.stderr
    document = json.loads(out.read_text())
    rows = [line.split("│")[1].strip() for line in result.stdout.splitlines() if "│" in line]
    lengths = {*document["linear"]["tokens"], *document["attention"]["tokens"]}
    assert rows == [str(tokens) for tokens in sorted(lengths)]
    about = document["about"]
    assert (about["backend"], about["dtype"]) == ("reference", "float32")
    assert (about["layer"]["tp_size"], about["layer"]["heads"]) == (2, 2)
    profile, constant = parse_profile(document)
    assert constant == document["constant"]
    assert profile.throughput is not None
    assert profile.throughput.query_tokens == profile.throughput.key_tokens == (128, 256, 512)
    assert profile == Profile.from_tables(document)


def test_without_torch_one_line_says_what_to_install(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    out = tmp_path / "profile.json"
    status = run_main(monkeypatch, "profile", "--model-config", str(model), "--out", str(out))
    assert status == 2
    assert capsys.readouterr().err == (
        "steelyard: this needs torch, which is not installed: pip install 'steelyard[train]'\n"
    )
    assert gpu_check.main(["--device", "cpu", "--tiny"]) == 2
    assert "pip install 'steelyard[train]'" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "gpu"), 'no device "gpu"'),
        (("--dtype", "int8"), "dtype is 'int8'"),
        (("--backend", "flash"), 'no attention backend "flash"'),
        (("--backend", "torch"), "on a CUDA device, not torch.float32 on cpu"),
        (("--tp-size", "3"), "tp_size is 3"),
        (("--max-tokens", "100"), "it must have 256 to"),
        (("--out", "."), "is a directory"),
        (("--model-config", "missing.json"), "missing.json: No such file"),
    ],
)
def test_mistakes_are_found_before_anything_is_measured(
    options: tuple[str, ...], says: str, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "profile.json"
    arguments = ["--model-config", str(model), "--out", str(out), "--device", "cpu", *options]
    result = CliRunner().invoke(app, ["profile", *arguments])
    assert isinstance(result.exception, Exception)
    assert exit_status(result.exception) == 2
    assert says in str(result.exception)
    assert not out.exists()


def test_times_that_make_no_profile_end_in_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {"linear": {"tokens": [1, 2], "time": [1, 2]}, "attention": {}}
    monkeypatch.setattr("trainer.profile.measure_profile", lambda *_: tables)
    out, says = tmp_path / "profile.json", "make no profile: attention must be an object"
    options = ("--model-config", str(model), "--out", str(out), "--device", "cpu")
    assert run_main(monkeypatch, "profile", *options) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()
    assert gpu_check.main(["--device", "cpu", "--tiny"]) == 2
    assert says in capsys.readouterr().err


def test_nothing_but_noise_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainer.timing.Clock.median_ms", lambda self, call: 1.0)
    assert gpu_check.main(["--device", "cpu", "--tiny"]) == 2
    assert "linear times of [64, 256, 512] tokens do not rise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "not JSON"), ("[1]", "not a JSON object"), ('{"a": 1}', "model_type")],
)
def test_a_config_that_is_none_is_refused(content: str, says: str, model: Path) -> None:
    model.write_text(content)
    result = CliRunner().invoke(app, ["profile", "--model-config", str(model), "--device", "cpu"])
    assert result.exception is not None
    assert says in str(result.exception)


def check_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_whole_check_runs_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cpu", "--tiny", "--micro-batches", "2"]) == 0
    lines = check_lines(capsys)
    assert [line["check"] for line in lines] == [
        "machine",
        *["kernel"] * 3,
        *["mfu"] * 4,
        "profile",
        *["strategy"] * len(STRATEGIES),
    ]
    kernels = {line["backend"]: line for line in lines if line["check"] == "kernel"}
    assert kernels["reference"]["right"]
    assert max(kernels["reference"]["largest_relative_errors"].values()) < 1e-5
    assert "refused" in kernels["torch"]
    assert "refused" in kernels["flash_attn"]
    for line in (line for line in lines if line["check"] == "mfu"):
        assert line["tokens"] in gpu_mfu.TINY_TOKENS
        assert line["pieces"] == 1 or line["documents"] == "packed"
        assert line["tflops_per_s"] > 0
        assert (line["peak_tflops"], line["mfu"]) == (None, None)
    strategies = {line["strategy"]: line for line in lines if line["check"] == "strategy"}
    assert set(strategies) == set(STRATEGIES)
    for line in strategies.values():
        assert line["micro_batches"] == 2
        for name in ("measured", "predicted"):
            assert 1 - 1e-9 <= line[f"{name}_slowest_over_mean"] <= 8
        assert line["predicted_ms"] > 0
        ratio = line["predicted_ms"] / line["measured_ms"]
        assert line["predicted_over_measured"] == pytest.approx(ratio)


def test_a_strategy_is_charged_for_its_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two micro-batches on two ranks; the device takes a millisecond a key and two a token."""
    plan = SimpleNamespace(
        num_rows=2,
        row_offsets=np.array([0, 3, 4]),
        cp_rank=np.array([0, 1, 1, 1]),
        piece=np.array([0, 0, -1, 0]),
        start=np.array([0, 6, 0, 0]),
        stop=np.array([6, 10, 2, 8]),
        predicted=np.array([[256, 512], [0, 768]]),  # units of 2 ms: 2, 4; 0, 6, all 3 later
    )
    calls: list[list[tuple[int, int]]] = []

    def attention_ms(segments: list[tuple[int, int]]) -> float:
        calls.append(segments)
        return sum(keys for _, keys in segments)

    device = SimpleNamespace(
        attention_ms=attention_ms, linear_calls=lambda: lambda tokens: 2.0 * tokens
    )
    profile = {
        "linear": {"tokens": [100, 200], "time": [200.0, 400.0]},
        "attention": {"tokens": [128, 256], "time": [128.0, 384.0]},
        "constant": 3.0,
    }
    monkeypatch.setattr(gpu_check, "_CP_SIZE", 2)
    monkeypatch.setattr(gpu_check, "STRATEGIES", ("literal",))
    monkeypatch.setattr(gpu_check, "plan_context_parallel", lambda *_, **__: plan)
    (line,) = gpu_check._strategies(device, profile, 64, 2)  # pyright: ignore[reportArgumentType]
    # Pad tokens are computed and attend to nothing; a rank without tokens takes no time.
    assert calls == [[(6, 6)], [(4, 10)], [(8, 8)]]
    measured = np.array([[6 + 2 * 6, 10 + 2 * 6], [0, 8 + 2 * 8]])
    predicted = np.array([[5, 7], [3, 9]])
    assert line["measured_ms"] == 22 + 24
    assert line["predicted_ms"] == 7 + 9
    assert line["measured_slowest_over_mean"] == 46 / measured.mean(axis=1).sum()
    assert line["predicted_slowest_over_mean"] == 16 / predicted.mean(axis=1).sum()
    assert line["predicted_over_measured"] == 16 / 46


def test_mfu_is_the_layers_flops_over_time_and_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.timing.Clock.median_ms", lambda self, call: 2.0)
    cpu = torch.device("cpu")
    one, many = gpu_mfu.mfu_lines(MODEL, cpu, 0.001, [2048])
    weights = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 256
    pairs = 2048 * 2049 // 2
    flops = 3 * (2 * weights * 2048 + 4 * 64 * pairs)
    assert one["pieces"] == 1
    assert one["tflops_per_s"] == pytest.approx(flops / 0.002 / 1e12)
    assert one["mfu"] == pytest.approx(flops / 0.002 / 1e9)
    assert many["tokens"] == 2048
    assert 0 < many["mfu"] < one["mfu"]  # fewer pairs of queries and keys
    (given, _) = gpu_mfu.mfu_lines(MODEL, cpu, None, [64])
    assert (given["peak_tflops"], given["mfu"]) == (None, None)


def test_the_peak_is_given_or_else_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks: list[float | None] = []

    def mfu_lines(config: object, device: object, peak: float | None, sizes: object) -> None:
        peaks.append(peak)
        raise TrainerError("enough")

    monkeypatch.setattr(gpu_check, "mfu_lines", mfu_lines)
    monkeypatch.setattr(gpu_check, "peak_tflops", lambda name: 312.0)
    for options in ((), ("--peak-tflops", "100")):
        assert gpu_check.main(["--device", "cpu", "--tiny", *options]) == 2
    assert peaks == [312.0, 100.0]
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main(["--peak-tflops", "0"])


def test_a_size_that_the_memory_does_not_hold_is_refused_and_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def median_ms(self: object, call: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    monkeypatch.setattr("trainer.timing.Clock.median_ms", median_ms)
    lines = [*gpu_mfu.mfu_lines(MODEL, torch.device("cpu"), None, [64, 128])]
    assert [line["refused"] for line in lines] == ["CUDA out of memory."] * 4


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", 989.0),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA B200", 2250.0),
        ("x86_64", None),
    ],
)
def test_peaks_of_whole_devices_are_known_by_name(device: str, peak: float | None) -> None:
    assert gpu_mfu.peak_tflops(device) == peak


@pytest.mark.parametrize("tokens", [64, 8192, 131_072])
def test_packed_documents_are_the_papers_and_fill_the_micro_batch(tokens: int) -> None:
    pieces = gpu_mfu.packed(tokens)
    assert sum(pieces) == tokens
    assert (len(pieces) > 1) == (tokens > 64)
    assert min(pieces) > 0
    assert pieces[:-1] == fig3_lengths(tokens, 0)[: len(pieces) - 1].tolist()


def test_a_wrong_kernel_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.attention import BACKENDS
    from trainer.attention_kernels import reference

    def doubled(*arguments: Any) -> torch.Tensor:
        return 2 * reference(*arguments)

    monkeypatch.setitem(BACKENDS, "doubled", lambda device, dtype: doubled)
    monkeypatch.setattr(gpu_check, "_strategies", lambda *_: iter(()))
    monkeypatch.setattr(gpu_check, "mfu_lines", lambda *_: iter(()))
    assert gpu_check.main(["--device", "cpu", "--tiny"]) == 1
    (line,) = (line for line in check_lines(capsys) if line.get("backend") == "doubled")
    assert not line["right"]
    assert line["largest_relative_errors"]["output"] == pytest.approx(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("gpu-check: no CUDA device 0: torch ")
    assert output.err.count("\n") == 1


@pytest.mark.gpu
def test_the_check_passes_on_a_gpu() -> None:
    assert gpu_check.main(["--micro-batches", "1"]) == 0
