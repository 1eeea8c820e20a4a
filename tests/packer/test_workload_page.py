"""docs/WORKLOAD.md says what the code does."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np

from packer.hardware import Hardware, workload_of_model
from packer.profile import parse_profile
from packer.shapes.read import shape_of
from packer.workload import Workload
from tests.model_shapes import LLAMA_2_7B
from tests.packer.test_workload_models import COSTS, workload

PAGE = (Path(__file__).parents[2] / "docs" / "WORKLOAD.md").read_text(encoding="utf-8")


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_of_models_is_what_they_cost() -> None:
    names = {"Qwen3-Next-80B-A3B": "Qwen3-Next"}
    rows = re.findall(r"^\| ([^|`]+-[^|`]+) \| ([\d,]+) \| ([^|]*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 12
    for name, full, others in rows:
        found = workload(COSTS[names.get(name, name)][0])
        assert f"{found.crossover:,}" == full
        spans = [
            f"{span.crossover:,}, {'window of' if span.mask == 'window' else 'chunks of'} "
            f"{span.tokens}"
            for span in found.spans
        ]
        assert ", ".join(spans) == others.strip()


def test_the_hardware_example_gives_what_it_says() -> None:
    (text,) = fenced("toml")
    given = tomllib.loads(text)["workload"]["hardware"]
    hardware = Hardware(
        gemm_flops=given["gemm_tflops"] * 1e12,
        attention_flops=given["attention_tflops"] * 1e12,
        tp_size=given["tp_size"],
        tp_bytes_per_s=given["tp_gb_per_s"] * 1e9,
    )
    crossover = workload_of_model(shape_of(LLAMA_2_7B), hardware).crossover
    assert crossover is not None
    assert f"{round(crossover, -2):,}" in PAGE


def test_the_profile_example_is_one() -> None:
    (text,) = fenced("json")
    profile, constant = parse_profile(json.loads(text))
    found = Workload(crossover=None, profile=profile).of(np.array([46_977]))
    assert abs(int(found[0]) / 256 / 46_977 - 2) < 0.01  # the paper's figure: both parts alike
    assert constant > 0
