"""Finds the recorded machines and samples, which are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def folder() -> Path:
    """Give the test data's folder, or skip the test."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "testdata"
    found = Path(os.environ.get("CPUPOOL_TESTDATA", beside))
    if not found.is_dir():
        pytest.skip(f"no recorded test data in {found}; set CPUPOOL_TESTDATA to their folder")
    return found
