from __future__ import annotations

import json
import random
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cpupool.kube.client import APIServer
from cpupool.webhook.certificate_maker import CertificateMaker
from cpupool.webhook.https.certificate_renewal import SecretContents
from tests.scenarios.certs.objects import (
    CONFIGURATION,
    DAY,
    INSTALLED,
    NOW,
    SECRET,
    InTurn,
    Turns,
    aged,
    check_history,
    command,
    decoded,
    empty,
    fill,
    maker,
)
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.apiserver import FakeAPIServer


@pytest.mark.parametrize(
    ("days", "emptied"),
    [
        pytest.param(0, False, id="new"),
        pytest.param(30, False, id="good"),
        pytest.param(89, False, id="serving due"),
        pytest.param(1246, False, id="CA due"),
        pytest.param(30, True, id="good and emptied meanwhile"),
        pytest.param(89, True, id="serving due and emptied meanwhile"),
        pytest.param(1246, True, id="CA due and emptied meanwhile"),
    ],
)
def test_replicas_at_once_end_alike_whichever_is_first(
    server: FakeAPIServer, days: int, *, emptied: bool
) -> None:
    start, now = aged(days), NOW + max(days - 29, 0) * DAY
    for seed in range(15):
        fill(server, start)
        server.updates.clear()
        choices = random.Random(seed)
        turns = Turns(choices)
        actors: dict[str, Callable[[], object]] = {
            name: CertificateMaker(InTurn(server.url, turns, name), INSTALLED, now=lambda: now).look
            for name in ("a", "b", "c")
        }
        if emptied:
            actors["admin"] = partial(empty, server, turns, after=choices.randrange(1, 8))
        turns.run(actors)
        assert server.updates or days == 30
        check_history(server, start, now)
        maker(server, now).look()
        check_history(server, start, now)
        assert maker(server, now).look().changes == ()


class Cut(APIServer):
    """The API server for one that is killed before it can send another request."""

    def __init__(self, url: str, requests: int) -> None:
        super().__init__(url)
        self._left = requests

    def headers(self) -> dict[str, str]:
        """Count: this is called once before each request."""
        if not self._left:
            raise Killed
        self._left -= 1
        return super().headers()


class Killed(BaseException):
    """What no code expects."""


@pytest.mark.parametrize("requests", range(5))
@pytest.mark.parametrize("days", [0, 89, 1246])
def test_one_that_is_killed_at_any_request_loses_nothing(
    server: FakeAPIServer, days: int, requests: int
) -> None:
    start, now = aged(days), NOW + max(days - 29, 0) * DAY
    fill(server, start)
    with suppress(Killed):
        CertificateMaker(Cut(server.url, requests), INSTALLED, now=lambda: now).look()
    check_history(server, start, now)
    maker(server, now).look()
    check_history(server, start, now)
    assert maker(server, now).look().changes == ()
    # Not one CA for each time that it starts.
    authorities = [body for path, body in server.updates if path == SECRET]
    assert len({decoded(body)["ca.crt"] for body in authorities}) == 1


def test_processes_at_once_make_one_of_each(server: FakeAPIServer) -> None:
    processes = [
        subprocess.Popen(command(server, "--json"), stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [json.loads(process.communicate(timeout=DEADLINE_S)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [path for path, _ in server.updates] == [SECRET, CONFIGURATION, SECRET]
    check_history(server, SecretContents(), datetime.now(UTC))
    made = [change["what"] for answer in answers for change in answer["changes"]]
    assert sorted(made) == ["CA made", "bundle published", "serving certificate made"]
    assert answers[0]["certificates"] == answers[1]["certificates"] == answers[2]["certificates"]
