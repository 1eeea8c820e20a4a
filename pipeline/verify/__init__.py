"""Reads a finished directory again and trusts nothing: every law, from the bytes."""

from pipeline.verify.result import VerifyError, VerifyReport
from pipeline.verify.run import verify
from pipeline.verify.sample import Sample
from pipeline.verify.sampled import SampleReport, verify_sample

__all__ = ["Sample", "SampleReport", "VerifyError", "VerifyReport", "verify", "verify_sample"]
