"""What every test may rely on."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import HealthCheck

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes is the machine's affair, and that of the other tests on it.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder whose path leaves room for a socket's name; `tmp_path` is too long for one."""
    made = Path(tempfile.mkdtemp(prefix="cpl-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a command run in the test's own process sets up."""
    logger = logging.getLogger("cpupool")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
