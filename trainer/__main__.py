"""`torchrun --nproc-per-node N -m trainer --shards DIR --config FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Train on a set; one process a rank. docs/TRAINING.md has the settings.",
        epilog="Example: torchrun --nproc-per-node 8 -m trainer --shards out/train-shards "
        "--config jobs/configs/train.toml --set mesh.tp_size=2",
    )
    parser.add_argument("--shards", required=True, metavar="DIR", help="the set, or its URL")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings, TOML")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, such as run.steps=10",
    )
    return parser.parse_args()


if __name__ == "__main__":
    arguments = _arguments()
    from trainer.launch import launch

    sys.exit(launch(arguments.shards, arguments.config, arguments.overrides))
