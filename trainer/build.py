"""A rank's stage and its parameters: shared over tp first, then sharded over dp and cp together."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.attention_kernels import VarlenAttention
from trainer.communication import Mesh
from trainer.model import Stage
from trainer.model_config import ModelConfig
from trainer.settings import OptimizerSettings
from trainer.weights import materialise


def build_stage(
    config: ModelConfig,
    mesh: Mesh,
    attend: VarlenAttention,
    *,
    precision: torch.dtype,
    seed: int,
    recompute: bool = False,
    loss_rows: int = 2048,
) -> Stage:
    """The stage of this rank; the same weights on every mesh.

    Args:
        config: of the whole model.
        mesh: this rank's place in it.
        attend: attention in `precision`.
        precision: what is computed in. bfloat16 keeps parameters, and sums gradients, in float32.
        seed: of the first weights.
        recompute: layers keep their inputs only, and run again in the backward pass.
        loss_rows: rows whose logits are held at once.
    """
    stage = Stage(config, mesh, attend, recompute=recompute, loss_rows=loss_rows)
    half = precision == torch.bfloat16
    policy = MixedPrecisionPolicy(
        param_dtype=precision if half else None,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,
    )
    modules = [
        *((f"layers.{number}", layer) for number, layer in stage.layers.items()),
        ("", stage),
    ]
    for prefix, module in modules:  # a layer at a time, so that one is whole in memory
        materialise(
            module,
            prefix,
            seed=seed,
            std=config.initializer_range,
            layers=config.num_layers,
            tp=mesh.axes["tp"],
            device=mesh.device,
            dtype=torch.float32 if half else precision,
        )
        sharded = fully_shard(
            module, mesh=mesh.dp_cp, mp_policy=policy, reshard_after_forward=False
        )
        assert isinstance(sharded, FSDPModule)
        # Sums, not means: the loss is divided by the step's targets. Not recursive, so set on each.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    return stage


def last_backward(stage: Stage, is_last: bool) -> None:
    """Say whether the next backward pass is the step's last: gradients are summed in that one."""
    assert isinstance(stage, FSDPModule)
    stage.set_is_last_backward(is_last)
    stage.set_requires_gradient_sync(is_last)
    stage.set_reshard_after_backward(is_last)


def build_optimizer(stage: Stage, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the stage's parameters; norms do not decay."""
    parameters = list(stage.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
