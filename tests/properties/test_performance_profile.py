from __future__ import annotations

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from cpupool.config import (
    kubelet_config,
    performance_profile,
    pool_rules,
    poolconfig,
    profile_kubelet,
)
from cpupool.config.kubelet_settings import KubeletNeeds
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import errors_in
from cpupool.core.names import Names
from tests.machines import MACHINES, Machine
from tests.profiles import pools_in, profile_of, written
from tests.searching import examples

uses = st.lists(st.sampled_from(["reserved", "isolated", "shared", "none"]), max_size=62)
names = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True)
keys = st.one_of(names, st.builds("example.com/{}".format, names))


@given(
    uses=uses.map(lambda rest: ["reserved", "isolated", *rest]),
    labels=st.dictionaries(keys, st.one_of(names, st.just("")), max_size=3),
    mixed=st.booleans(),
)
def test_any_disjoint_lists_come_back_from_the_pool_file(
    uses: list[str], labels: dict[str, str], *, mixed: bool
) -> None:
    cpus = {use: CPUSet(cpu for cpu, one in enumerate(uses) if one == use) for use in uses}
    lists = {use: str(some) for use, some in cpus.items() if use != "none"}
    profile = profile_of(
        written(cpu=lists, workloadHints={"mixedCpus": mixed}, nodeSelector=labels)
    )

    text = performance_profile.pool_file(profile, None)

    file = poolconfig.parse("a", text, Names())
    made = {"default": "reserved", "exclusive_isolated": "isolated", "shared_mixed": "shared"}
    assert {made[pool.name]: str(pool.cpus) for pool in file.pools} == lists
    assert file.node_selector == labels
    assert (file.pools.mixed is not None) == (mixed and "shared" in lists)
    assert yaml.safe_load(text)["pools"].keys() == {pool.name for pool in file.pools}


@examples(40)
@given(st.sampled_from(sorted(MACHINES.keys() - {"single_cpu"})), st.data())
def test_on_any_machine_whole_cores_give_pools_that_fit_it(name: str, data: st.DataObject) -> None:
    topology = MACHINES[name].topology()
    further = st.sampled_from(["reserved", "isolated", "shared"])
    uses = ["reserved", "isolated", *(data.draw(further) for _ in topology.cores[2:])]
    cpus = {
        use: CPUSet.union(
            core for core, one in zip(topology.cores, uses, strict=True) if one == use
        )
        for use in uses
    }
    profile = profile_of(written(cpu={use: str(some) for use, some in cpus.items()}))

    pools = pools_in(profile, topology)

    assert pool_rules.validate(pools, topology) == ()
    exclusive = pools.by_name("exclusive_isolated")
    assert exclusive
    assert len(exclusive.cpus) == uses.count("isolated")
    assert exclusive.reach(topology) == cpus["isolated"]


lists = st.sampled_from(["reserved", "isolated", "shared", "ovsDpdk", "offlined"])
policies = st.sampled_from([policy.value for policy in TopologyPolicy if policy.of_kubelet])


@examples(60)
@given(
    name=st.one_of(st.just("ten nodes"), st.sampled_from(sorted(MACHINES.keys() - {"single_cpu"}))),
    policy=st.one_of(st.just(""), policies),
    mixed=st.booleans(),
    off=st.booleans(),
    data=st.data(),
)
def test_our_check_accepts_our_settings_for_the_kubelet(
    *, name: str, policy: str, mixed: bool, off: bool, data: st.DataObject
) -> None:
    machine = MACHINES.get(name) or Machine(sockets=2, nodes=5, cores=2)
    topology = machine.topology()
    uses = ["reserved", "isolated", *(data.draw(lists) for _ in topology.cores[2:])]
    cpus = {
        use: CPUSet.union(
            core for core, one in zip(topology.cores, uses, strict=True) if one == use
        )
        for use in uses
    }
    if off and cpus.get("offlined"):
        topology = topology.cut_to(topology.online - cpus["offlined"])
    profile = profile_of(
        written(
            cpu={use: str(some) for use, some in cpus.items()},
            workloadHints={"mixedCpus": mixed},
            numa={"topologyPolicy": policy} if policy else {},
        )
    )

    settings = profile_kubelet.settings(profile, {}, topology)

    config = kubelet_config.parse("a", json.dumps({"kind": "KubeletConfiguration", **settings}))
    needs = KubeletNeeds.of(pools_in(profile, topology), topology)
    assert errors_in(kubelet_config.check(config, needs)) == []
    assert settings.get("topologyManagerPolicy", "") == policy
    empty = CPUSet()
    kept = cpus["reserved"] | cpus.get("ovsDpdk", empty)
    assert profile.reserved_system_cpus == kept | (cpus.get("shared", empty) if mixed else empty)
