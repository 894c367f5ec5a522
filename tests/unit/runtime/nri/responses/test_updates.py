from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.nri_agents import OWNER, Agent, of

if TYPE_CHECKING:
    from tests.nri_runtime import Plugin


@pytest.mark.parametrize(
    ("asked_us", "before_us", "quota_us"),
    [
        pytest.param(None, 20_000, None, id="left as it is, and strict enough"),
        pytest.param(0, 20_000, None, id="so in zeros"),
        pytest.param(0, 80_000, 50_000, id="left as it is, and too wide"),
        pytest.param(80_000, 20_000, 50_000, id="widened too far"),
        pytest.param(-1, 20_000, 50_000, id="lifted"),
    ],
)
def test_an_update_widens_no_quota(
    agent: Agent, plugin: Plugin, asked_us: int | None, before_us: int, quota_us: int | None
) -> None:
    container = agent.allocated(of(OWNER, devices={"shared_a": "0-499"}, quota_us=before_us))
    plugin.create(container)
    (update,) = plugin.update(container, quota_us=asked_us).update
    cpu = update.linux.resources.cpu
    assert (cpu.quota.value if cpu.HasField("quota") else None) == quota_us


def test_a_quota_keeps_the_runtimes_own_period(agent: Agent, plugin: Plugin) -> None:
    container = agent.allocated(of(OWNER, devices={"shared_a": "0-499"}, quota_us=80_000))
    plugin.create(container)
    (update,) = plugin.update(container, quota_us=40_000, period_us=50_000).update
    cpu = update.linux.resources.cpu
    assert (cpu.quota.value, cpu.period.value) == (25_000, 50_000)


@pytest.mark.parametrize("asked", ["", "0-7"])
def test_an_update_takes_no_container_off_its_cpus(
    agent: Agent, plugin: Plugin, asked: str
) -> None:
    container = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}))
    plugin.create(container)
    (update,) = plugin.update(container, asked, quota_us=300_000).update
    cpu = update.linux.resources.cpu
    assert (update.container_id, cpu.cpus, cpu.quota.value) == ("c1", "2", -1)
