"""What several scenarios need beside their own node, the fixture `world`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.nri_runtime import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.test_agent_process import World


@pytest.fixture
def runtime(world: World) -> Iterator[FakeRuntime]:
    """Serve NRI on the node."""
    world.node.root.nri_socket.parent.mkdir(parents=True, exist_ok=True)
    with FakeRuntime(world.node.root.nri_socket) as runtime:
        yield runtime
