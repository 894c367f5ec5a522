"""A fake runtime, and an agent's plugin that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.nri_agents import Agent
from tests.nri_runtime import FakeRuntime, Plugin
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def runtime(folder: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(folder / "nri.sock", alone=True) as made:
        yield made


@pytest.fixture
def agent(folder: Path) -> Agent:
    return Agent(folder / "nri.sock")


@pytest.fixture
def plugin(agent: Agent, runtime: FakeRuntime) -> Iterator[Plugin]:
    with agent.running():
        connected = runtime.welcome()
        eventually(agent.runtime.connected, "the plugin is connected")
        yield connected
