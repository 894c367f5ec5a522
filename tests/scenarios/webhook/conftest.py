from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenarios.webhook.processes import POOLS, Here

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def here(tmp_path: Path) -> Here:
    made = Here(tmp_path)
    made.files.pools.show(worker=POOLS)
    made.files.secret.rotate()
    return made
