"""The project's own promises: who imports whom, and whose names these are."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from packer.lengths import fig3_lengths

ROOT = Path(__file__).parents[1]
PACKAGES = ("packer", "pipeline", "jobs", "trainer")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pipeline.shard.reader", ("ray", "numba", "torch", "tokenizers", "pydantic")),
        ("packer.plan", ("numba", "pyarrow", "ray")),
        ("packer.workload", ("numba",)),
        ("jobs.cli", ("ray", "numba", "torch", "pyarrow")),
        ("jobs.profiling", ("ray", "numba", "torch")),
        ("pipeline.verify", ("numba", "ray")),
        ("trainer.errors", ("torch", "ray", "numba")),
        ("trainer.profile", ("ray", "numba")),
        ("trainer.train", ("ray", "numba", "tokenizers", "pydantic")),
        ("trainer.launch", ("torch", "pyarrow")),
    ],
)
def test_importing_a_module_does_not_pull_in_what_it_should_not_know(
    module: str, absent: tuple[str, ...]
) -> None:
    code = f"import sys, {module}; print(*(set(sys.modules) & {set(absent)!r}))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""


def test_the_package_names_are_ours_alone() -> None:
    owners = importlib.metadata.packages_distributions()
    for package in PACKAGES:
        assert set(owners.get(package, ["steelyard"])) == {"steelyard"}, (
            f"another distribution holds {package!r}: give steelyard an environment of its own"
        )


def test_the_documented_generator_is_the_one_that_runs() -> None:
    page = (ROOT / "docs" / "LENGTHS.md").read_text()
    (printed,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert (ROOT / "packer" / "lengths.py").read_text().endswith(printed)
    digest = hashlib.sha256(fig3_lengths(10_000, 0).astype("<i8").tobytes()).hexdigest()
    assert f"\n{digest}\n" in page


def test_every_package_is_listed_for_the_wheel() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert folders == set(PACKAGES)
