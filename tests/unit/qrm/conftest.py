"""A node whose resource manager asks plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.qrm.test_resource_manager import Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with Node(folder) as made:
        made.start()
        yield made
