"""`cpupool doctor` on a node where the agent runs, and on the bundle that was taken there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cpupool import cli
from cpupool.host.root import HostRoot
from tests.scenarios import test_agent_process
from tests.waiting import eventually

if TYPE_CHECKING:
    import pytest

    from tests.scenarios.test_agent_process import World

world = test_agent_process.world
NOBODY = "http://127.0.0.1:9"


def test_a_node_that_works_is_found_well_there_and_from_afar(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--cgroup-root", world.node.cgroup_root, "--agent", NOBODY]
    here = ["--host-root", str(world.folder), "--config", str(world.mount.folder), *asked]
    bundle = str(world.folder / "bundle.tar.gz")
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        world.run("owner", exclusive_a=2)
        world.run("sharer", shared_b=100)
        world.await_cpus(owner="2-3", sharer="6-7")

        # The agent writes its status a moment after the cgroups; an earlier one has no pools yet.
        status = HostRoot.under(world.folder).status
        eventually(
            lambda: (
                "default/sharer/main" in status.read_text()
                and cli.main(["doctor", "--json", *here]) == 0
            ),
            lambda: capsys.readouterr().out,
        )
        capsys.readouterr()
        judged = cli.main(["doctor", "--json", *here])
        live = json.loads(capsys.readouterr().out)["checks"]
        collected = cli.main(["support-bundle", "--output", bundle, *here])
    capsys.readouterr()
    judged_afar = cli.main(["doctor", "--json", "--bundle", bundle, *asked])
    recorded = json.loads(capsys.readouterr().out)["checks"]

    assert (judged, collected, judged_afar) == (0, 0, 0)
    facts = {row["check"]: row["fact"] for row in live}
    assert facts["pool file"] == "poolconfig-worker.yaml is in force"
    assert facts["device plugins"] == "the kubelet listens, and 2 of 2 plugins"
    assert facts["podresources"] == "the kubelet tells of 2 pods"
    assert facts["owners"] == "no exclusive CPU has two pods; 2-3 of 2-5 have one"
    # The embedded node has no runtime to ask, and an agent does without one.
    verdicts = [row["verdict"] for row in live if row["check"] == "container runtime"]
    assert verdicts == ["warning", "warning"]
    afar = {row["check"]: row["fact"] for row in recorded}
    for check in ("pool file", "checkpoint", "containers", "owners"):
        assert afar[check] == facts[check]
