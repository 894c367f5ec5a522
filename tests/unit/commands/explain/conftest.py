from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.commands.explain.node import LAPTOP

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the machine that is drawn, once."""
    folder = tmp_path_factory.mktemp("laptop")
    LAPTOP.write(folder)
    return folder


@pytest.fixture
def file(laptop: Path) -> Path:
    """Name a file that is not there yet, beside the machine."""
    made = laptop / "status.json"
    made.unlink(missing_ok=True)
    return made
