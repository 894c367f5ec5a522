"""The CPUs that a CPU manager policy chose, over the deaths of agents."""

from __future__ import annotations

import signal
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.kube import views
from cpupool.local.pods import HostedPod
from cpupool.wire import cpu_manager_state
from tests import dying, policies
from tests.cri_server import FakeCRI
from tests.machines import MACHINES
from tests.nri_pods import Container
from tests.nri_pods import Pod as NRIPod
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_mixed_cpus import guaranteed
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.nri_runtime import FakeRuntime, Plugin
    from tests.scenarios.test_agent_process import World

POOLS = """
pools:
  default: {cpus: "0-5"}
nodeSelector: {role: worker}
cpuManager: {policy: highest}
"""
NONE = POOLS.replace("policy: highest", "policy: none")


@pytest.fixture
def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PYTHONPATH", policies.installed(folder))
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


@dataclass
class Bound:
    """A pod that the scheduler has bound to the node, and whose container does not exist yet."""

    body: Any
    name: str
    attempts: int = 0

    @classmethod
    def named(cls, name: str) -> Bound:
        limits = {"cpu": "1", "memory": "1Gi"}
        manifest = {
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        created = views.created(manifest, str(uuid.uuid4()))
        return cls(HostedPod(created, Names()).body, name)

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    def created_by(self, plugin: Plugin) -> str:
        """Let the runtime create the container, as the kubelet tries it again and again."""
        self.attempts += 1
        container = Container(NRIPod(self.uid, self.name), f"{self.name}-{self.attempts}")
        adjust = plugin.create(container).adjust
        cpus = adjust.linux.resources.cpu.cpus
        assert adjust.annotations == {"nokia.k8s.io/cpus-chosen": cpus}
        return cpus


def recorded(world: World) -> dict[str, dict[str, str]]:
    """Give the file's content: the id in a pod's cgroup → container → CPUs."""
    file = world.folder / "var/lib/cpupool/cpu_manager_state"
    if not file.exists():
        return {}
    entries = cpu_manager_state.parse(file.read_bytes()).entries
    return {
        pod: {name: str(cpus) for name, cpus in containers.items()}
        for pod, containers in entries.items()
    }


@pytest.mark.parametrize("step", dying.STEPS)
def test_an_agent_that_is_killed_while_it_answers_gives_what_the_runtime_knows(
    world: World, runtime: FakeRuntime, step: str
) -> None:
    plain = world.run("plain")
    first, web = Bound.named("first"), Bound.named("web")
    world.api.set_pods([*world.node.bodies()["items"], first.body, web.body])
    fate = {dying.DIES: step, dying.VICTIM: web.uid}
    answered = ""
    with world.agent(environment=fate, program="tests.dying", end=signal.SIGKILL) as agent:
        plugin = runtime.welcome()
        # The agent has looked at everything once.
        world.await_containers({"plain/": "0-4", "plain/main": "5"})
        assert first.created_by(plugin) == "4"
        with suppress(ConnectionError):
            answered = web.created_by(plugin)
        eventually(lambda: agent.process.poll() is not None, "the agent has died")
    assert bool(answered) == (step == "answered")
    kept: dict[str, dict[str, str]] = {plain.uid: {"main": "5"}}
    expected = {**kept, first.uid: {"main": "4"}}
    if step != "chosen":
        expected[web.uid] = {"main": "3"}
    assert recorded(world) == expected

    # Without its record an agent would give the CPU that has become free.
    world.api.set_pods([*world.node.bodies()["items"], web.body])
    world.disturb("plain", "0-15")
    with world.agent():
        plugin = runtime.welcome()
        rest = "0-4" if step == "chosen" else "0-2,4"
        world.await_containers({"plain/": rest, "plain/main": "5"})
        again = web.created_by(plugin)
        assert again == ("4" if step == "chosen" else "3")
        right = {**kept, web.uid: {"main": again}}
        eventually(lambda: recorded(world) == right, "the record is right")


def two_pods(world: World) -> tuple[Pod, Pod]:
    """Start two pods; the second has CPUs that a new choice would not give it alone."""
    first, web = guaranteed(world, "first", 1), guaranteed(world, "web", 2)
    rest = {"first/": "0-2", "web/": "0-2"}
    world.await_containers({**rest, "first/main": "5", "web/main": "3-4"})
    return first, web


def test_a_container_keeps_its_cpus_although_all_else_is_lost(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        first, _ = two_pods(world)
    world.node.delete_pod(first.uid)
    world.disturb("web", "0-15")
    world.machine.switch_off(CPUSet.of(3))
    with world.agent(end=signal.SIGKILL):
        world.await_containers({"web/": "0-2,5", "web/main": "4"})
        world.machine.switch_on(CPUSet.of(3))
        world.await_containers({"web/": "0-2,5", "web/main": "3-4"})

    # The policy is another, and the pod has what it had.
    world.mount.show(worker=NONE)
    world.disturb("web", "0-15")
    with world.agent():
        world.await_containers({"web/": "0-2,5", "web/main": "3-4"})


def test_a_record_of_another_boot_is_not_believed(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        first, web = two_pods(world)
    world.node.delete_pod(first.uid)
    world.disturb("web", "0-15")
    (world.folder / "proc/sys/kernel/random/boot_id").write_text("another\n")
    with world.agent() as agent:
        assert "of another boot" in agent.await_line("recorded CPUs are ignored")
        world.await_containers({"web/": "0-3", "web/main": "4-5"})
        eventually(lambda: recorded(world) == {web.uid: {"main": "4-5"}}, "the record is new")


def test_without_a_file_a_living_container_says_what_was_chosen(world: World) -> None:
    state = world.folder / "var/lib/cpupool"
    (state / "cpu_manager_state").mkdir(parents=True)
    with world.agent(end=signal.SIGKILL) as agent:
        first, web = two_pods(world)
        agent.await_line("chosen CPUs cannot be recorded")
        assert "not recorded" in world.await_event("CPUChoiceNotRecorded")
    world.node.delete_pod(first.uid)
    world.disturb("web", "0-15")
    (process,) = (one for one in world.node.processes() if one.container)
    with FakeCRI(world.node.root.cri_sockets[0]) as cri:
        cri.add_sandbox("sandbox", "web")
        chosen = {Names().chosen: "3-4"}
        made = cri.add(process.instance.id, "web", nri_cpus="3-4", nri_annotations=chosen)
        for known in (made, cri.sandboxes["sandbox"]):
            known.labels["io.kubernetes.pod.uid"] = web.uid
        cri.obey = lambda _id, cpus: world.disturb("web", cpus)
        with world.agent():
            world.await_containers({"web/": "0-2,5", "web/main": "3-4"})
