"""The slow twin of the pipeline's clock: a queue of events, every rank of the cluster by itself."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

Task = tuple[str, int, int]
"""F or B, the model chunk of the rank, the micro-batch."""


@dataclass(frozen=True)
class Cluster:
    """What the twin simulates; stage s of the model is chunk s // pp_size of rank s % pp_size."""

    pp_size: int
    chunks: int
    shares: Sequence[int]
    forward: int
    backward: int
    lockstep: bool
    first_token: int = 0
    last_token: int = 0

    @property
    def stages(self) -> int:
        return self.pp_size * self.chunks

    def length(self, task: Task, rank: int, work: int, tokens: int) -> int:
        """How long a rank takes for a task on a micro-batch of so much work and so many tokens."""
        kind, chunk, _ = task
        stage = chunk * self.pp_size + rank
        time = self.shares[stage] * work
        if stage == 0:
            time += self.first_token * tokens * sum(self.shares)
        if stage == self.stages - 1:
            time += self.last_token * tokens * sum(self.shares)
        return time * (self.forward if kind == "F" else self.backward)

    def needs(self, task: Task, rank: int) -> tuple[int, Task] | None:
        """Which task of which rank must be done before."""
        kind, chunk, micro_batch = task
        stage = chunk * self.pp_size + rank
        if kind == "B" and stage == self.stages - 1:
            return rank, ("F", chunk, micro_batch)
        other = stage - 1 if kind == "F" else stage + 1
        if other < 0:
            return None
        return other % self.pp_size, (kind, other // self.pp_size, micro_batch)


def order_of(rank: int, pp_size: int, chunks: int, num: int) -> list[Task]:
    """What a pipeline rank runs."""
    if chunks == 1:
        turns = [(0, micro_batch) for micro_batch in range(num)]
        ahead = pp_size - rank - 1
    else:
        turns = []
        for start in range(0, num, pp_size):
            for chunk in range(chunks):
                turns += [(chunk, start + member) for member in range(pp_size)]
        ahead = (pp_size - rank - 1) * 2 + (chunks - 1) * pp_size
    forwards: list[Task] = [("F", chunk, micro_batch) for chunk, micro_batch in turns]
    backwards: list[Task] = [("B", chunks - 1 - chunk, mb) for chunk, mb in turns]
    order, forwards = forwards[:ahead], forwards[ahead:]
    while forwards:
        order += [forwards.pop(0), backwards.pop(0)]
    return order + backwards


def event_driven(
    cluster: Cluster, work: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
) -> int:
    """When the last rank is done.

    Args:
        cluster: who runs what.
        work: of each data-parallel rank's micro-batches in the order in which they run.
        tokens: of the same.

    Raises:
        RuntimeError: nobody can go on.
    """
    replicas, num = range(len(work)), len(work[0])
    queues = {
        (replica, rank): order_of(rank, cluster.pp_size, cluster.chunks, num)
        for replica in replicas
        for rank in range(cluster.pp_size)
    }
    done: set[tuple[int, int, Task]] = set()
    busy: set[tuple[int, int]] = set()
    events: list[tuple[int, int, int, Task]] = []
    now = 0

    def ready(replica: int, rank: int) -> bool:
        queue = queues[replica, rank]
        if not queue or (replica, rank) in busy:
            return False
        needed = cluster.needs(queue[0], rank)
        return needed is None or (replica, *needed) in done

    def length(replica: int, rank: int) -> int:
        task = queues[replica, rank][0]
        return cluster.length(task, rank, work[replica][task[2]], tokens[replica][task[2]])

    def start(replica: int, rank: int, time: int) -> None:
        busy.add((replica, rank))
        heapq.heappush(events, (now + time, replica, rank, queues[replica, rank].pop(0)))

    while any(queues.values()) or events:
        for rank in range(cluster.pp_size):
            waiting = [replica for replica in replicas if ready(replica, rank)]
            if not cluster.lockstep:
                for replica in waiting:
                    start(replica, rank, length(replica, rank))
            elif len(waiting) == len(replicas):
                slowest = max(length(replica, rank) for replica in replicas)
                for replica in replicas:
                    start(replica, rank, slowest)
        if not events:
            raise RuntimeError(f"nobody can go on at {now}: {queues}")
        now, replica, rank, task = heapq.heappop(events)
        done.add((replica, rank, task))
        busy.remove((replica, rank))
    return now
