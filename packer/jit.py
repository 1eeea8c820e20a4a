"""The one decorator of every kernel, so that their flags are decided in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def kernel(function: Kernel) -> Kernel:
    """Compile a kernel: plain loops over one-dimensional arrays and scalars.

    No `fastmath`: plans must be the same everywhere. No `parallel`: packing is ordered, and Ray
    owns the cores. No `cache`: Numba's cache on disk is not safe under many processes.
    The slow twin of a kernel is `kernel.py_func`; `NUMBA_DISABLE_JIT=1` runs all of them.
    """
    return cast(Kernel, numba.njit(function))
