from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from tests import builders
from tests.machines import Machine
from tests.setters import Node, ids
from tests.unit.config.poolconfig.files import parse

BEFORE, AFTER = Machine(cores=6).topology(), Machine(cores=8).topology()


@pytest.mark.parametrize(
    ("default", "then"),
    [
        pytest.param('default: {cpus: "0,4-"}', "0,4-7", id="an open end"),
        pytest.param("", "0,4-7", id="no line"),
        pytest.param('default: {cpus: "0,4-5"}', "0,4-5", id="a closed list"),
    ],
)
def test_added_cpus_join_the_default_pool_if_its_list_has_no_end(default: str, then: str) -> None:
    node = Node()
    node.kernel.online = BEFORE.online
    node.manager.update_topology(BEFORE)
    file = parse(f'pools:\n  exclusive_a: {{cpus: "1-3"}}\n  {default}\n')
    node.manager.reconfigure(file.pools, BEFORE)
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    assert (node.cpus("owner"), node.cpus("plain")) == ("2", "0,4-5")

    node.kernel.online |= CPUSet.parse("6-7")
    node.manager.update_topology(AFTER)
    node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("plain")) == ("2", then)
