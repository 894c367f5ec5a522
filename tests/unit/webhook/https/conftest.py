from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.webhook.https.clients import client_of, serving_with
from tests.webhooks import Client, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.webhook.https.server import HTTPSServer


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Secret:
    made = Secret(tmp_path_factory.mktemp("secret"))
    made.rotate()
    return made


@pytest.fixture
def server(secret: Secret) -> Iterator[HTTPSServer]:
    with serving_with(secret) as made:
        yield made


@pytest.fixture
def client(server: HTTPSServer, secret: Secret) -> Iterator[Client]:
    with client_of(server, secret) as made:
        yield made
