from __future__ import annotations

from cpupool.core.cpuset import CPUSet
from cpupool.policies.layout import Layout, Level, Place
from tests.machines import MACHINES

TELCO = MACHINES["telco_2s_2n_16c32t"]


def test_a_cpu_that_went_offline_stays_where_its_core_is() -> None:
    topology = TELCO.having_lost(CPUSet.parse("3,9,18,25"))

    layout = Layout.of_topology(topology, CPUSet.parse("0-31"))

    assert layout.places[3] == layout.places[19] == Place(core=3, socket=0, node=0, uncore=0)
    assert layout.places[2] == layout.places[18] == Place(core=2, socket=0, node=0, uncore=0)
    # No thread of this core is left to tell.
    assert layout.places[9] == layout.places[25] == Place(core=9, socket=-1, node=1, uncore=-1)
    assert layout.groups[Level.CORE][2] == CPUSet.parse("2,18")
    assert layout.whole_cores(topology.online & CPUSet.parse("0-3,16-19")) == CPUSet.parse(
        "0-1,16-17"
    )


def test_a_cpu_of_which_nothing_is_known_is_a_core_by_itself() -> None:
    layout = Layout.of_topology(TELCO.without("5").topology(), CPUSet.parse("5,21,99"))

    assert layout.places[5] == Place(core=5, socket=-1, node=-1, uncore=-1)
    assert layout.places[21] == Place(core=21, socket=0, node=0, uncore=0)
    assert layout.largest_core == 1
    assert [layout.usual(level) for level in (Level.CORE, Level.SOCKET)] == [1, 1]
    assert Layout.of({}).largest_core == 1
