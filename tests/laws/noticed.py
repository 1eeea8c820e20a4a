"""Code broken on purpose, and the test that must notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def noticed(*errors: type[BaseException], match: str | None = None) -> Iterator[None]:
    """The test or helper that is called in here fails, or the code itself refuses with `errors`."""
    with pytest.raises((AssertionError, pytest.fail.Exception, *errors), match=match):
        yield
