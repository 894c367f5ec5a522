from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.apiserver import FakeAPIServer
from tests.scenarios.certs.objects import fill

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as fake:
        fill(fake)
        yield fake
