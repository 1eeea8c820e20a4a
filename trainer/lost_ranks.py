"""Which ranks have gone without a word, as far as a rank that is left can know.

Ranks tell one another their processes when they meet. Afterwards each can look for those of its own
machine; what became of others only a rank over there can see.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """Of a rank; process numbers mean something on one machine, in one container."""

    number: int
    machine: str
    container: str


def this_process() -> Process:
    """The one that asks."""
    try:
        container = str((_PROCESSES / "self/ns/pid").readlink())
    except OSError:
        container = ""
    return Process(os.getpid(), socket.gethostname(), container)


def lost_ranks(processes: Sequence[Process]) -> list[int]:
    """Ranks whose processes have ended, of those that this one can see.

    Args:
        processes: of all ranks, in order.
    """
    here = this_process()
    return [
        rank
        for rank, process in enumerate(processes)
        if (process.machine, process.container) == (here.machine, here.container)
        and _has_ended(process.number)
    ]


def describe(ranks: Sequence[int], processes: Sequence[Process]) -> str:
    """These ranks, with what a log or `dmesg` knows them by.

    Example:
        >>> describe([1], [Process(7, "node", ""), Process(8, "node", "")])
        'rank 1 (process 8 on node)'
    """
    return ", ".join(
        f"rank {rank} (process {processes[rank].number} on {processes[rank].machine})"
        for rank in ranks
    )


def is_of_a_peer(error: RuntimeError) -> bool:
    """Whether it is what torch says where a connection to another rank broke."""
    text = str(error).lower()
    return any(words in text for words in ("by peer", "broken pipe", "connection refused"))


def _has_ended(number: int) -> bool:
    """Also where its parent, torchrun, has not yet noticed."""
    try:
        status = (_PROCESSES / str(number) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return _PROCESSES.joinpath("self/stat").exists()  # else this system does not say
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("Z", "X")
