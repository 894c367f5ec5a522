"""`cpupool explain` of what the production roles have done on the embedded node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cpupool import cli
from tests.scenarios import test_embedded_node
from tests.waiting import eventually

if TYPE_CHECKING:
    import pytest

    from tests.scenarios.test_embedded_node import World

machine = test_embedded_node.machine
world = test_embedded_node.world


def test_the_agents_own_choice_is_reported_and_that_the_kubelet_followed_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def explained(name: str) -> list[str]:
        """Give the lines of the container's explanation; none until it is where it belongs."""
        code = cli.main(["explain", name, "--file", str(world.node.root.status), "--json"])
        printed = capsys.readouterr().out
        if code:
            return []
        (one,) = json.loads(printed)["containers"]
        return [f"{step['rule']}: {step['why']} => {step['left']}" for step in one["steps"]]

    world.run("first", main={"exclusive_a": 1})
    world.run("second", main={"exclusive_a": 2, "shared_b": 100})
    world.eventually("second", main="3-4,6-7")

    # The agent writes its status a moment after the cgroups.
    eventually(
        lambda: explained("default/second/main"),
        "the agent has seen the second pod where it belongs",
    )
    assert "free: 4 of the pool's 4 CPUs can be chosen => 2-5" in explained("default/first/main")
    steps = explained("default/second/main")
    assert "free: 3 of the pool's 4 CPUs can be chosen => 3-5" in steps
    followed = "devices: the kubelet gave these, as GetPreferredAllocation had advised => 3-4"
    assert followed in steps
    assert "together: the CPUs of all its pools => 3-4,6-7" in steps
    assert steps[-1] == "found: its cgroup has these CPUs: it is where it belongs => 3-4,6-7"
