"""What a user can get wrong; no torch here, so that a command line can name these without it."""

from __future__ import annotations

from types import ModuleType


class TrainerError(ValueError):
    """A mistake in what was asked of the trainer, or a machine that cannot do it."""


def require_torch() -> ModuleType:
    """The module torch.

    Raises:
        TrainerError: it is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TrainerError(
            "this needs torch, which is not installed: pip install 'steelyard[train]'"
        ) from None
    return torch
