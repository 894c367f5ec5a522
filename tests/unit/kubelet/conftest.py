from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kubelets import short_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made
