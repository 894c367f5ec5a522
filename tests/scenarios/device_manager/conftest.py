from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenarios.device_manager.node import Node, node_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with node_on(folder, look_s=0.05) as made:
        yield made


@pytest.fixture
def waiting_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node whose role looks when an event tells it to, and otherwise once an hour."""
    monkeypatch.setattr("cpupool.kubelet.registrar._DIAL_S", 3600.0)
    with node_on(folder, look_s=3600.0) as made:
        yield made
