"""OpenShift's resource: shared CPUs beside exclusive ones, switched on and off while pods run."""

from __future__ import annotations

import copy
import json
import re
import shlex
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cpupool.api import nri_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PodRefused
from cpupool.core.names import ENABLE_SHARED_CPUS, Names
from tests.guides import blocks
from tests.machines import MACHINES
from tests.nri_pods import Container
from tests.nri_pods import Pod as NRIPod
from tests.nri_runtime import FakeRuntime, Plugin
from tests.scenarios import test_demo
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import started
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

GUIDE = (Path(__file__).parents[2] / "docs/user/mixed-cpus.md").read_text()
RESOURCE = "workload.openshift.io/enable-shared-cpus"
OFF = """
pools:
  exclusive_isolated: {cpus: "2-5"}
  shared_mixed: {cpus: "6-7"}
  default: {cpus: "0-1"}
nodeSelector: {role: worker}
"""
ON = f"{OFF}mixedCPUs: {{pool: shared_mixed}}\n"
FOR_ONE = f"{OFF}mixedCPUs: {{pool: shared_mixed, containersLimit: 1}}\n"
FEWER_CPUS = ON.replace("6-7", "7")
ALONE = {"exclusive_isolated": 1}
MIXED = {**ALONE, ENABLE_SHARED_CPUS: 1}


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        yield world


def run(world: World, name: str, **containers: Mapping[str, int]) -> Pod:
    """Start a pod: container → pool → amount."""
    resource = Names().resource
    for pool in {pool for pools in containers.values() for pool in pools if "exclusive" in pool}:
        # The kubelet may hear of a pool later than of the shared CPUs.
        world.node.kubelet.wait_for(resource(pool), lambda found: found.allocatable > 0, DEADLINE_S)
    listed = [
        {
            "name": container,
            "resources": {"limits": {resource(pool): str(n) for pool, n in pools.items()}},
        }
        for container, pools in containers.items()
    ]
    return world.node.run_pod(
        {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": listed}}
    )


def await_units(world: World, healthy: int) -> None:
    """Wait until so many containers may have shared CPUs, by the kubelet's count."""
    world.node.kubelet.wait_for(
        RESOURCE, lambda listing: listing.allocatable == healthy, DEADLINE_S
    )


def environment(world: World, pod: str, container: str = "main") -> dict[str, str]:
    """Give the variables that name CPUs."""
    (found,) = (
        one.instance.environment
        for one in world.node.processes()
        if (one.pod.name, one.container) == (pod, container)
    )
    return {name: value for name, value in found.items() if name.endswith("_CPUS")}


def test_a_container_has_shared_cpus_beside_its_own_and_knows_which_are_which(
    world: World,
) -> None:
    world.mount.show(worker=ON)
    with world.agent_here():
        await_units(world, 256)
        run(world, "web", main={**MIXED, "exclusive_isolated": 2}, plain={}, own=ALONE)
        world.await_containers(
            {"web/": "0-1", "web/main": "2-3,6-7", "web/plain": "0-1", "web/own": "4"}
        )
        assert environment(world, "web") == {
            "EXCLUSIVE_CPUS": "2-3",
            "OPENSHIFT_ISOLATED_CPUS": "2-3",
            "SHARED_CPUS": "6-7",
            "OPENSHIFT_SHARED_CPUS": "6-7",
        }
        assert "SHARED_CPUS" not in environment(world, "web", "own")
        assert environment(world, "web", "plain") == {}

        # The shared pool is edited below it.
        world.mount.show(worker=FEWER_CPUS)
        world.await_containers(
            {"web/": "0-1", "web/main": "2-3,7", "web/plain": "0-1", "web/own": "4"}
        )


def test_the_feature_is_switched_off_and_on_below_a_container_that_runs(world: World) -> None:
    world.mount.show(worker=ON)
    with world.agent_here():
        await_units(world, 256)
        pod = run(world, "web", main=MIXED)
        world.await_containers({"web/": "0-1", "web/main": "2,6-7"})

        world.mount.show(worker=OFF)
        world.await_containers({"web/": "0-1", "web/main": "2"})
        # What the container holds stays healthy, so that the kubelet admits its pod again.
        await_units(world, 1)
        world.node.kubelet.restart()
        await_units(world, 1)
        # Each plugin registers by itself.
        world.await_pool("exclusive_isolated", 4)
        assert world.node.admit_again() == {}
        with pytest.raises(PodRefused, match=f"Insufficient {RESOURCE}: 1 requested, 0 free of 1"):
            run(world, "late", main=MIXED)

        world.mount.show(worker=ON)
        world.await_containers({"web/": "0-1", "web/main": "2,6-7"})
        await_units(world, 256)

        world.mount.show(worker=OFF)
        await_units(world, 1)
        world.node.delete_pod(pod.uid)
        await_units(world, 0)


def test_of_two_pods_that_want_the_last_unit_one_is_not_admitted(world: World) -> None:
    world.mount.show(worker=FOR_ONE)
    with world.agent_here():
        await_units(world, 1)
        first = run(world, "first", main=MIXED)
        with pytest.raises(PodRefused, match=f"Insufficient {RESOURCE}: 1 requested, 0 free of 1"):
            run(world, "second", main=MIXED)
        # Nor do two containers of one pod get it, and nothing else is short.
        run(world, "own", main=ALONE)
        world.await_containers(
            {"first/": "0-1", "first/main": "2,6-7", "own/": "0-1", "own/main": "3"}
        )
        world.node.delete_pod(first.uid)
        with pytest.raises(PodRefused, match="2 requested, 1 free of 1"):
            run(world, "twins", main=MIXED, other=MIXED)
        run(world, "second", main=MIXED)
        world.await_containers(
            {"own/": "0-1", "own/main": "3", "second/": "0-1", "second/main": "2,6-7"}
        )


def test_of_two_pods_created_at_the_same_moment_one_gets_the_last_unit(world: World) -> None:
    world.mount.show(worker=FOR_ONE)
    ready = threading.Barrier(2)

    def attempt(name: str) -> str:
        ready.wait(DEADLINE_S)
        try:
            run(world, name, main=MIXED)
        except PodRefused as error:
            return str(error)
        return ""

    with world.agent_here(), ThreadPoolExecutor(2) as pool:
        await_units(world, 1)
        said = dict(zip("ab", pool.map(attempt, "ab"), strict=True))
        assert sorted(map(bool, said.values())) == [False, True]
        assert "1 requested, 0 free of 1" in "".join(said.values())
        (winner,) = (name for name, refusal in said.items() if not refusal)
        world.await_containers({f"{winner}/": "0-1", f"{winner}/main": "2,6-7"})


def test_who_asks_while_the_feature_is_off_is_treated_as_if_he_had_not(world: World) -> None:
    """For a pod that no scheduler has placed, the kubelet ignores a resource that no plugin has
    registered (removeMissingExtendedResources in pkg/kubelet/lifecycle/predicate.go)."""
    world.mount.show(worker=OFF)
    with world.agent_here():
        world.await_pool("exclusive_isolated", 4)
        run(world, "web", main=ALONE, plain={})
        world.await_containers({"web/": "0-1", "web/main": "2", "web/plain": "0-1"})
    world.api.set_pods([_asking(body) for body in world.node.bodies()["items"]])
    world.disturb("web", "0-15")
    with world.agent_here():
        world.await_containers({"web/": "0-1", "web/main": "2", "web/plain": "0-1"})


def _asking(body: Mapping[str, Any]) -> dict[str, Any]:
    """Give a pod all of whose containers ask for shared CPUs."""
    asking: dict[str, Any] = copy.deepcopy(dict(body))
    for container in asking["spec"]["containers"]:
        container["resources"]["limits"][RESOURCE] = "1"
    return asking


def test_more_containers_than_an_edit_allows_keep_what_they_have(world: World) -> None:
    world.mount.show(worker=ON)
    with world.agent_here():
        await_units(world, 256)
        run(world, "web", main=MIXED, other=MIXED)
        world.mount.show(worker=FOR_ONE)
        await_units(world, 2)
        world.await_containers({"web/": "0-1", "web/main": "2,6-7", "web/other": "3,6-7"})
        with pytest.raises(PodRefused, match="0 free of 2"):
            run(world, "late", main=MIXED)


@pytest.mark.parametrize("nri", [True, False])
def test_shared_cpus_are_added_to_those_of_our_own_static_policy(folder: Path, nri: bool) -> None:
    (_, _, _, pools, resources) = blocks(GUIDE, "yaml")
    container = {"name": "main", **yaml.safe_load(resources)}
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {}, nri=nri) as world, world.agent_here():
        world.mount.show(node=pools)
        await_units(world, 256)
        eventually(lambda: world.node.plugged == nri, "the runtime asks the agent")
        pod = world.node.run_pod(
            {"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [container]}}
        )

        started(world, pod)
        world.await_containers({"web/": "0-1,6-15", "web/main": "2-5"})
        shared = {"SHARED_CPUS": "2-3", "OPENSHIFT_SHARED_CPUS": "2-3"}
        own = {"EXCLUSIVE_CPUS": "4-5", "OPENSHIFT_ISOLATED_CPUS": "4-5"}
        assert environment(world, "web") == ({**shared, **own} if nri else shared)


@test_demo.two_cpus
def test_the_demo_of_the_guide_runs_a_container_with_both_kinds_of_cpus(folder: Path) -> None:
    (shown,) = (block for block in blocks(GUIDE, "sh") if "cpupool demo" in block)
    ((name, manifest, calls),) = re.findall(
        r"cat > (\S+) <<'EOF'\n(.*)^EOF\n(.*)", shown, re.DOTALL | re.MULTILINE
    )
    (folder / name).write_text(manifest)
    (words,) = (shlex.split(line) for line in calls.splitlines())
    assert words == ["cpupool", "demo", "--pods", name]
    (folder / "tmp").mkdir()

    process = test_demo.demo(folder / "tmp", "--pods", str(folder / name), "--json")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    found = {row["name"]: row["given"] for row in json.loads(printed)["processes"]}
    assert re.fullmatch(r"EXCLUSIVE_CPUS=\d+, SHARED_CPUS=[\d,-]+", found["mixed/main"])
    assert test_demo.left_behind(folder / "tmp", process.pid) == []


SHARED = 'pools:\n  shared_mixed: {cpus: "6-7"}\nnodeSelector: {role: worker}\n'
BESIDE = f"{SHARED}mixedCPUs: {{pool: shared_mixed}}\n"


class Runtime:
    """A container runtime that asks the agent, and does in the cgroups what it answers."""

    def __init__(self, world: World, fake: FakeRuntime) -> None:
        self._world = world
        self._fake = fake
        self._cpus: dict[str, str] = {}
        self._plugin = self._accept()

    def create(
        self,
        pod: Pod,
        cpus: str,
        devices: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
    ) -> nri_pb2.CreateContainerResponse:
        """Create the only container of a pod anew, as the kubelet asks for it."""
        told = self._told(pod)
        told = replace(told, pod=replace(told.pod, own_labels=labels or {}))
        created = nri_pb2.CONTAINER_CREATED
        again = replace(told, id=f"{told.id}-again", cpus=cpus, devices=devices, state=created)
        return self._plugin.create(replace(again, quota_us=200_000))

    def id_of(self, pod: Pod) -> str:
        """Return the id of the only container of a pod."""
        return self._told(pod).id

    def update(self, pod: Pod, cpus: str) -> None:
        """Give the only container of a pod other CPUs, as the kubelet does again and again."""
        told = self._told(pod)
        self.update_alone(pod, cpus)
        for update in self._plugin.update(told, cpus).update:
            self._obey(update)

    def end(self, pod: Pod) -> None:
        """End the only container of a pod, and its sandbox."""
        told = self._told(pod)
        self._plugin.stop(told)
        self._plugin.remove(told)
        self._plugin.remove_sandbox(told.pod)

    def lose(self) -> None:
        """Lose the plugin."""
        self._plugin.hang_up()

    def update_alone(self, pod: Pod, cpus: str) -> None:
        """Give the only container of a pod other CPUs, with no plugin to ask."""
        self._set(self._told(pod).id, cpus)

    def regain(self, *pods: Pod) -> None:
        """Take the plugin back, and tell it of the only containers of these pods."""
        self._plugin = self._accept(*(self._told(pod) for pod in pods))

    def _accept(self, *containers: Container) -> Plugin:
        plugin = self._fake.accept()
        plugin.obey = self._obey
        plugin.configure()
        for update in plugin.synchronize(containers):
            self._obey(update)
        return plugin

    def _obey(self, update: nri_pb2.ContainerUpdate) -> None:
        if cpus := update.linux.resources.cpu.cpus:
            self._set(update.container_id, cpus)

    def _set(self, identifier: str, cpus: str) -> None:
        self._cpus[identifier] = cpus
        (process,) = (one for one in self._world.node.processes() if one.instance.id == identifier)
        self._world.disturb(process.pod.name, cpus)

    def _told(self, pod: Pod) -> Container:
        (process,) = (
            one for one in self._world.node.processes() if one.container and one.pod.uid == pod.uid
        )
        return Container(
            NRIPod(pod.uid, pod.name),
            process.instance.id,
            process.container,
            self._cpus.get(process.instance.id, ""),
            state=nri_pb2.CONTAINER_RUNNING,
        )


@pytest.fixture
def runtime(world: World) -> Iterator[FakeRuntime]:
    """Serve NRI on a node where the kubelet gives out CPUs, and where shared ones are added."""
    world.node.kubelet.static_cpus = CPUSet.parse("8-15")
    world.mount.show(worker=BESIDE)
    world.node.root.nri_socket.parent.mkdir(parents=True)
    with FakeRuntime(world.node.root.nri_socket) as runtime:
        yield runtime


def guaranteed(world: World, name: str, cpu: int, *, shared: bool = False) -> Pod:
    """Start a pod with so many CPUs of its own."""
    limits = {"cpu": str(cpu), "memory": "1Gi", **({RESOURCE: "1"} if shared else {})}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return world.node.run_pod(
        {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}
    )


def generation(world: World) -> int:
    told = json.loads((world.node.root.state / "pools/shared_mixed/cpus.json").read_bytes())
    return int(told["generation"])


def test_beside_a_static_kubelet_shared_cpus_are_added_and_all_else_is_left_alone(
    world: World, runtime: FakeRuntime
) -> None:
    everywhere = "0-15"
    with world.agent_here():
        nri = Runtime(world, runtime)
        await_units(world, 256)
        mixed = guaranteed(world, "mixed", 2, shared=True)
        own = guaranteed(world, "own", 1)
        placed = {"mixed/": everywhere, "own/": everywhere}
        world.await_containers({**placed, "mixed/main": "6-9", "own/main": everywhere})

        # What the kubelet writes stands, but for what is added.
        nri.update(own, "10")
        nri.update(mixed, "8-9")
        placed["own/main"] = "10"
        world.await_containers({**placed, "mixed/main": "6-9"})

        answer = nri.create(mixed, "8-9", {ENABLE_SHARED_CPUS: "0"}).adjust
        assert answer.linux.resources.cpu.cpus == "6-9"
        assert {one.key: one.value for one in answer.env} == {
            "EXCLUSIVE_CPUS": "8-9",
            "OPENSHIFT_ISOLATED_CPUS": "8-9",
            "SHARED_CPUS": "6-7",
            "OPENSHIFT_SHARED_CPUS": "6-7",
        }
        assert not nri.create(own, "10", {}).HasField("adjust")

        world.mount.show(worker=SHARED)
        world.await_containers({**placed, "mixed/main": "8-9"})
        world.mount.show(worker=BESIDE)
        world.await_containers({**placed, "mixed/main": "6-9"})

    nri.update_alone(mixed, "8-9")
    with world.agent_here():
        nri.regain(mixed, own)
        world.await_containers({**placed, "mixed/main": "6-9"})


def test_without_nri_nothing_is_added_beside_a_static_kubelet(
    world: World, runtime: FakeRuntime
) -> None:
    with world.agent_here() as agent:
        nri = Runtime(world, runtime)
        await_units(world, 256)
        mixed = guaranteed(world, "mixed", 2, shared=True)
        world.await_cpus(mixed="6-9")
        nri.update(mixed, "8-9")
        before = generation(world)

        nri.lose()
        eventually(lambda: "enable NRI" in str(agent.health.ready()), "it says what lacks")
        nri.update_alone(mixed, "8-9")
        nri.regain(mixed)
        world.await_cpus(mixed="6-9")
        eventually(lambda: generation(world) > before, "its threads pin themselves again")


def test_a_kubelet_that_starts_anew_gives_other_cpus_and_one_without_a_policy_takes_none(
    world: World, runtime: FakeRuntime
) -> None:
    kubelet = world.node.kubelet
    with world.agent_here():
        Runtime(world, runtime)
        await_units(world, 256)
        guaranteed(world, "mixed", 2, shared=True)
        world.await_cpus(mixed="6-9")

        kubelet.static_cpus = CPUSet.parse("10-15")
        kubelet.forget_cpus()
        kubelet.restart()
        await_units(world, 256)
        assert world.node.admit_again() == {}
        world.await_cpus(mixed="6-7,10-11")

        # Its CPUs stay its own, and the others are placed by the pools from now on.
        kubelet.static_cpus = CPUSet()
        kubelet.restart()
        await_units(world, 256)
        run(world, "plain", main={})
        world.await_cpus(mixed="6-7,10-11", plain="0-5,8-9,12-15")


def test_pools_of_our_own_are_refused_beside_a_static_kubelet_while_it_runs(
    world: World, runtime: FakeRuntime
) -> None:
    with world.agent_here():
        nri = Runtime(world, runtime)
        await_units(world, 256)
        mixed = guaranteed(world, "mixed", 2, shared=True)
        own = guaranteed(world, "own", 1)
        world.await_cpus(mixed="6-9", own="0-15")

        world.mount.show(worker=ON)
        assert "set cpuManagerPolicy to none" in world.await_event("KubeletCPUManagerStatic")
        nri.update(own, "10")
        nri.update(mixed, "8-9")
        world.await_cpus(mixed="6-9", own="10")

        world.mount.show(worker=BESIDE)
        await_units(world, 256)
        world.await_cpus(mixed="6-9", own="10")
