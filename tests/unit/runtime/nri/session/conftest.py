from __future__ import annotations

import pytest

from cpupool.core.names import Names
from cpupool.runtime.nri.session import Session


@pytest.fixture
def session() -> Session:
    return Session("cpupool", "10", Names())
