"""`make gpu-check`: is the attention kernel right on this GPU, and do plans keep their promise?

Prints JSON lines on stdout, each with a "check":

- "machine": the device and versions;
- "kernel": errors of each backend that serves here, queries and keys differing in number, forward
  and backward, beside the reference on the CPU in float64;
- "mfu": time of one layer of the trainer's model, forward and backward, over one document and over
  documents of the paper's lengths, its FLOPs a second and their share of the device's peak;
- "profile": a small profile of a layer;
- "strategy": for each CP strategy, the slowest rank's time as that profile predicts it and as it
  was measured, summed over a few micro-batches of the paper's lengths. A rank's chunks run as one
  varlen call, then the layer's linear part on its tokens; nothing is sent, in either.

Exit 0, 1 where a kernel is wrong, 2 where there is no such device. `--device cpu --tiny` runs
all of it on the CPU reference in seconds, to test the script itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.gpu_mfu import TINY_TOKENS, TOKENS, mfu_lines, peak_tflops
from jobs.profiling import ProfileRequest, profile_of, read_config
from jobs.progress import Reporter
from packer.context_parallel import STRATEGIES, CPPlan, plan_context_parallel
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.whole import pack
from packer.plan import Pieces, Steps
from packer.profile import Profile
from packer.workload import SCALE, Workload
from pipeline.config import ConfigError
from trainer.errors import TrainerError, require_torch

if TYPE_CHECKING:
    import torch

    from trainer.layer_times import LayerTimes

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
_TINY = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_SEGMENTS = (
    (1, 1),
    (1, 2048),
    (0, 64),
    (128, 128),
    (200, 1000),
    (77, 3001),
    (1024, 4096),
    (515, 515),
)
_TINY_SEGMENTS = ((1, 1), (1, 40), (0, 7), (20, 100), (33, 33))
_CP_SIZE = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jobs.gpu_check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--model-config", help="a config.json; default Llama-3-8B's layer")
    parser.add_argument("--micro-batches", type=int, default=4, help="planned and timed")
    parser.add_argument(
        "--peak-tflops", type=float, help="dense, of the device; a few are known by name"
    )
    parser.add_argument("--tiny", action="store_true", help="sizes for the CPU")
    given = parser.parse_args(arguments)
    if given.peak_tflops is not None and not given.peak_tflops > 0:
        parser.error(f"--peak-tflops is {given.peak_tflops}; it must be above 0")
    try:
        right = True
        for line in _checks(given):
            right = right and line.get("right", True)
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    except (ConfigError, TrainerError) as error:
        sys.stderr.write(f"gpu-check: {error}\n")
        return 2
    return 0 if right else 1


def _checks(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    require_torch()
    from trainer.timing import describe, open_device

    device = open_device(given.device)
    machine = describe(device)
    yield {"check": "machine", **machine}
    name, config = ("tiny", _TINY) if given.tiny else ("Llama-3-8B", LLAMA_3_8B)
    if given.model_config:
        name, config = given.model_config, read_config(Path(given.model_config))
    yield from _kernels(device, _TINY_SEGMENTS if given.tiny else _SEGMENTS)
    peak = given.peak_tflops or peak_tflops(machine["device"])
    yield from mfu_lines(config, device, peak, TINY_TOKENS if given.tiny else TOKENS)
    request = ProfileRequest(
        model=name,
        config=config,
        device=given.device,
        max_tokens=512 if given.tiny else 131_072,
        factor=4,
        repeats=3,
    )
    times, document = profile_of(request, Reporter())
    yield {"check": "profile", "profile": document}
    context_length = 512 if given.tiny else 131_072
    yield from _strategies(times, document, context_length, given.micro_batches)


def _kernels(device: torch.device, segments: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    import torch

    from trainer.attention import BACKENDS
    from trainer.attention_proof import MAX_ERROR, kernel_errors

    types = (torch.bfloat16, torch.float16) if device.type == "cuda" else (torch.float32,)
    for name, load in BACKENDS.items():
        for dtype in types:
            line = {"check": "kernel", "backend": name, "dtype": str(dtype).removeprefix("torch.")}
            try:
                kernel = load(device, dtype)
            except TrainerError as error:  # on a CPU, or without flash-attn
                needed = name == "torch" and device.type == "cuda"
                yield {**line, "refused": str(error), **({"right": False} if needed else {})}
                continue
            try:
                errors = kernel_errors(kernel, segments, device, dtype, 128, heads=8, kv_heads=2)
            except RuntimeError as error:
                yield {**line, "right": False, "failed": str(error).splitlines()[0]}
                continue
            right = max(errors.values()) <= MAX_ERROR[dtype]
            yield {**line, "right": right, "largest_relative_errors": errors}


def _strategies(
    times: LayerTimes, document: dict[str, Any], context_length: int, num_micro_batches: int
) -> Iterator[dict[str, Any]]:
    profile, constant = Profile.from_tables(document), float(document["constant"])
    workload = Workload(crossover=None, profile=profile)
    steps = _micro_batches(context_length, num_micro_batches, workload)
    linear_ms = cache(times.linear_calls())
    for strategy in STRATEGIES:
        line = {"check": "strategy", "strategy": strategy, "cp_size": _CP_SIZE}
        try:
            plan = plan_context_parallel(
                steps.pieces.tokens,
                steps.row_offsets,
                cp_size=_CP_SIZE,
                strategy=strategy,
                workload=workload,
            )
        except ValueError as error:
            yield {**line, "refused": str(error)}
            continue
        predicted = constant + plan.predicted * (profile.unit / SCALE)  # ms, (rows, cp_size)
        measured = np.empty_like(predicted)
        for row in range(plan.num_rows):
            for rank in range(_CP_SIZE):
                segments, tokens = _rank(plan, row, rank)
                attention = times.attention_ms(segments) if segments else 0.0
                measured[row, rank] = attention + (linear_ms(tokens) if tokens else 0.0)
        yield {
            **line,
            "micro_batches": plan.num_rows,
            "measured_slowest_over_mean": _slowest_over_mean(measured),
            "predicted_slowest_over_mean": _slowest_over_mean(predicted),
            "measured_ms": float(measured.max(axis=1).sum()),
            "predicted_ms": float(predicted.max(axis=1).sum()),
            "predicted_over_measured": float(predicted.max(1).sum() / measured.max(1).sum()),
        }


def _micro_batches(context_length: int, count: int, workload: Workload) -> Steps:
    """The first micro-batches that `concat` makes of the paper's lengths, seed 0."""
    config = PackingConfig(
        num_micro_batches=count, context_length=context_length, max_tokens=context_length
    )
    lengths = np.minimum(fig3_lengths(count * context_length, 0), context_length)
    enough = int(np.searchsorted(np.cumsum(lengths), count * context_length)) + 1
    steps = pack("concat", Pieces.from_lengths(lengths[:enough]), config, workload).steps
    assert steps is not None
    return steps.take_steps(0, 1)


def _rank(plan: CPPlan, row: int, rank: int) -> tuple[list[tuple[int, int]], int]:
    """A rank's segments of (queries, keys), pad tokens left out, and all its tokens."""
    chunks = np.arange(plan.row_offsets[row], plan.row_offsets[row + 1])
    chunks = chunks[plan.cp_rank[chunks] == rank]
    start, stop = plan.start[chunks], plan.stop[chunks]
    real = plan.piece[chunks] >= 0
    segments = zip((stop - start)[real].tolist(), stop[real].tolist(), strict=True)
    return list(segments), int((stop - start).sum())


def _slowest_over_mean(times: np.ndarray) -> float:
    """Sums over micro-batches; times (rows, cp_size)."""
    return float(times.max(axis=1).sum() / times.mean(axis=1).sum())


if __name__ == "__main__":
    raise SystemExit(main())
