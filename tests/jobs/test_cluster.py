"""A cluster of several nodes, on one machine: the same bytes, also when a node dies."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs import stages
from jobs.build import build
from jobs.executor import ClusterError, RayExecutor, open_executor
from pipeline.config import JobSettings, RunConfig
from pipeline.verify import verify
from tests.jobs.small_run import QUIET, build_with, digests

pytestmark = pytest.mark.ray


@contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """A running cluster of nodes with one core each; the first is the head."""
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False}, connect=False
    )
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(autouse=True)
def every_stage_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "ALONE_ROWS", 0)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_any_number_of_nodes_gives_the_same_bytes(
    config: RunConfig, built: Path, tmp_path: Path, nodes: int
) -> None:
    with cluster_of(nodes) as cluster:
        settings = JobSettings(executor="ray", address=cluster.address)
        build(config.model_copy(update={"job": settings}), tmp_path, QUIET)
    assert digests(tmp_path) == digests(built)


@pytest.mark.slow
def test_a_node_that_dies_takes_nothing_with_it(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_of(2) as cluster:
        settings = JobSettings(executor="ray", address=cluster.address)
        with open_executor(settings):
            killing = _Killing(cluster, after=3)
            build_with(killing, config, tmp_path, monkeypatch)
        assert killing.killed
    assert digests(tmp_path) == digests(built)
    verify(tmp_path)


def test_the_cluster_of_a_submitted_job_is_found(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    with cluster_of(1) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)  # as `ray job submit` sets it
        with open_executor(JobSettings(executor="ray")) as executor:
            assert executor.num_workers == 1
            assert ray.get_runtime_context().gcs_address == cluster.address


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with (
            pytest.raises(ClusterError, match=f"no Ray cluster answers at {address}: Connection"),
            open_executor(JobSettings(executor="ray", address=address)),
        ):
            pass


class _Killing(RayExecutor):
    """Kills the cluster's second node once, while tasks run, after so many results."""

    def __init__(self, cluster: Any, *, after: int) -> None:
        super().__init__(2)
        self._cluster, self._left, self.killed = cluster, after, False

    def map(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        for item in super().map(function, arguments):
            yield item
            self._left -= 1
            if self._left == 0:
                self._cluster.remove_node(self._cluster.list_all_nodes()[1], allow_graceful=False)
                self.killed = True
