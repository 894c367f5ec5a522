"""The API server of the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.apiserver import FakeAPIServer
from tests.unit.agent.topology_reporter.reporting import NODE, SERVED

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def api() -> Iterator[FakeAPIServer]:
    with FakeAPIServer(NODE) as fake:
        fake.crds = dict(SERVED)
        yield fake
