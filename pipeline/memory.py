"""Giving freed memory back to the system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return the pages of freed blocks; nothing where the C library is not glibc.

    glibc keeps pages that lie between blocks in use. A process that writes thousands of parts of
    ever other sizes so grows by tens of KB a part, though it holds no more than before.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
