"""A server of the S3 protocol in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NO_ACCOUNT = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Runs while the block does; gives `127.0.0.1:PORT`."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NO_ACCOUNT.items():
            patch.setenv(name, value)
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
    server.stop()
