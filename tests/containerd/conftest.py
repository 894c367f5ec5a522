"""A containerd for the tests of one module, and a new node on it for each."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests import folders
from tests.containerd import node as nodes
from tests.containerd.runtime import SUITE, ContainerdHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from tests.containerd.node import Node

PATIENT_S = 20.0
"""How long the runtime waits for a plugin: here only counts what it answers."""


@contextmanager
def containerd(suite: str = SUITE, *, passing: bool = False) -> Iterator[ContainerdHost]:
    """Run the containerd of a Debian release until the block ends."""
    with (
        folders.folder() as folder,
        ContainerdHost(folder, suite=suite, nri_timeout_s=PATIENT_S, passing=passing) as host,
    ):
        yield host


@pytest.fixture(scope="module")
def host() -> Iterator[ContainerdHost]:
    with containerd() as host:
        yield host


@pytest.fixture
def lasting(request: pytest.FixtureRequest) -> Callable[[], AbstractSet[int]]:
    """Return what finds the module's containerd: a test that restarts it leaves another process."""
    if "host" not in request.fixturenames:
        return frozenset
    host: ContainerdHost = request.getfixturevalue("host")
    return lambda: {host.pid}


@pytest.fixture
def node(host: ContainerdHost) -> Iterator[Node]:
    with nodes.node(host) as node:
        yield node
        # Of a test that failed, pytest shows it.
        sys.stderr.write(node.log())
