"""Reads a finished directory again and trusts nothing: every law, from the bytes."""

from pipeline.verify.result import VerifyError, VerifyReport
from pipeline.verify.run import verify

__all__ = ["verify", "VerifyError", "VerifyReport"]
