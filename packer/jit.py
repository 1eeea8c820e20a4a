"""The decorators of every kernel, so that their flags are decided in one place."""

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


def inlined(function: Kernel) -> Kernel:
    """A kernel that becomes part of each kernel that calls it.

    For small ones in inner loops that take arrays: handing three arrays to a function costs some 15
    nanoseconds a call, and LLVM does not inline what can raise. Its calls compile anew everywhere.
    """
    return cast(Kernel, numba.njit(inline="always")(function))
