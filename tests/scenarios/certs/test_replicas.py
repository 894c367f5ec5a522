from __future__ import annotations

import json
import random
import subprocess
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cpupool.https.certificates import Held
from cpupool.roles.certificates import CertificateKeeper
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
    empty,
    fill,
    keeper,
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
        pytest.param(90, False, id="serving due"),
        pytest.param(1230, False, id="CA due"),
        pytest.param(30, True, id="good and emptied meanwhile"),
        pytest.param(90, True, id="serving due and emptied meanwhile"),
        pytest.param(1230, True, id="CA due and emptied meanwhile"),
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
            name: CertificateKeeper(
                InTurn(server.url, turns, name), INSTALLED, now=lambda: now
            ).look
            for name in ("a", "b", "c")
        }
        if emptied:
            actors["admin"] = partial(empty, server, turns, after=choices.randrange(1, 8))
        turns.run(actors)
        check_history(server, start, now)
        keeper(server, now).look()
        check_history(server, start, now)
        assert keeper(server, now).look().changes == ()


def test_processes_at_once_make_one_of_each(server: FakeAPIServer) -> None:
    processes = [
        subprocess.Popen(command(server, "--json"), stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [json.loads(process.communicate(timeout=DEADLINE_S)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [path for path, _ in server.updates] == [SECRET, CONFIGURATION, SECRET]
    check_history(server, Held(), datetime.now(UTC))
    made = [change["what"] for answer in answers for change in answer["changes"]]
    assert sorted(made) == ["CA made", "bundle published", "serving certificate made"]
    assert answers[0]["certificates"] == answers[1]["certificates"] == answers[2]["certificates"]
