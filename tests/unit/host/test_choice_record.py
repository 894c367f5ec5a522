from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.core.names import POLICY_CPUS
from cpupool.core.orchestration import Orchestration, QoS
from cpupool.core.pools import NodePools, Pool
from cpupool.host.choice_record import ChoiceRecord
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from cpupool.wire import cpu_manager_state
from tests import builders
from tests.events import Heard
from tests.machines import MACHINES

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.workloads import Pod

MACHINE = MACHINES["arm_no_smt"]
LINES = (Pool.named("exclusive_a", "8-9"), Pool.named("default", "0-7"))
STATIC = NodePools.of(*LINES, cpu_manager=CPUManager("static", reserved=CPUSet.of(0)))
COUNTED = NodePools.of(*LINES, cpu_manager=CPUManager("static", reserved=3))
NONE = NodePools.of(*LINES)


class Node:
    """A node whose agents keep a record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self.file = self.folder / "cpu_manager_state"
        self.boot = folder / "boot_id"
        self.boot.write_text("first\n")
        self.pods: list[Pod] = []
        self.events = Heard()
        self.metrics = Metrics()
        self.now_s = 0.0

    def start(self, pools: NodePools = STATIC, offline: str = "") -> None:
        """Start an agent that has no other source than the record."""
        self.manager = Manager()
        self.record = ChoiceRecord(
            self.manager,
            self.file,
            self.boot,
            events=self.events,
            metrics=self.metrics,
            now_s=lambda: self.now_s,
        )
        self.manager.reconfigure(pools, MACHINE.without(offline).topology())
        self.manager.observe(pods=self.pods)
        self.manager.adopt((), self.record.recorded())
        self.record.decided()

    def run(self, name: str, cpus: int = 1) -> None:
        self.pods.append(builders.pod(name, builders.container(f"{name}-main", cpu=cpus * 1000)))
        self.manager.observe(pods=self.pods)
        self.record.decided()

    def end(self, name: str) -> None:
        """End a pod; no container of it is left."""
        self.pods = [pod for pod in self.pods if pod.name != name]
        self.manager.observe(pods=self.pods, idle=frozenset({f"{name}-uid"}))
        self.record.decided()

    @property
    def owned(self) -> dict[str, str]:
        return {uid: str(has[POLICY_CPUS]) for uid, has in builders.owned(self.manager).items()}

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_bytes())
        return found

    def failing(self) -> bool:
        return "cpupool_cpu_manager_choices_unrecorded 1.0" in self.metrics.render()[1].decode()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.start()
    return made


def test_the_next_agent_gives_each_pod_the_same_cpus(node: Node) -> None:
    for name in ("first", "second", "third"):
        node.run(name)
    node.end("first")
    node.start()
    assert node.owned == {"second-uid": "2", "third-uid": "3"}


def test_the_file_has_the_kubelets_shape(node: Node) -> None:
    node.run("web", 2)
    content = node.content
    checksum = content.pop("checksum")
    assert content == {
        "policyName": "static",
        "defaultCpuSet": "0,3-7",
        "entries": {"web-uid": {"web-main": "1-2"}},
        "bootId": "first",
        "settled": {},
    }
    # As the kubelet's tools verify it: they do not know the agent's keys.
    del content["bootId"], content["settled"]
    cpu_manager_state.parse(json.dumps({**content, "checksum": checksum}).encode())


def test_the_next_agent_lets_the_same_others_run_on_the_cpus_of_a_pod(node: Node) -> None:
    policy = CPUManager("koordinator", reserved=CPUSet.of(0))
    pools = NodePools.of(*LINES, cpu_manager=policy)
    node.start(pools)
    for name, qos in (("lse", QoS.LSE), ("lsr", QoS.LSR)):
        container = replace(builders.container(f"{name}-main"), request_milli=1000)
        labelled = replace(
            builders.pod(name, container), orchestration=Orchestration(qos, prod=True)
        )
        node.pods.append(labelled)
        node.manager.observe(pods=node.pods)
        node.record.decided()
    before = node.manager.snapshot().resolution.grants
    assert {grant.sharing for grant in before} == {Sharing.NONE, Sharing.BEST_EFFORT}

    # Meanwhile the classes change places.
    lse, lsr = node.pods
    node.pods = [
        replace(lse, orchestration=lsr.orchestration),
        replace(lsr, orchestration=lse.orchestration),
    ]
    node.start(pools)
    assert node.manager.snapshot().resolution.grants == before


def test_a_node_without_choices_has_no_file(node: Node) -> None:
    node.pods.append(builders.pod("plain"))
    node.manager.observe(pods=node.pods)
    node.record.decided()
    node.start()
    assert not node.folder.exists()


def available(node: Node) -> str:
    now = node.manager.snapshot()
    return str(now.facts.policy.available(now.resolution.view))


def test_a_number_reserves_as_many_running_cpus_over_restarts(node: Node) -> None:
    node.start(COUNTED)
    assert available(node) == "3-7"
    assert node.content["entries"] == {}
    node.start(COUNTED, offline="2-3")
    assert available(node) == "5-7"
    node.start(COUNTED)
    assert available(node) == "3-7"
    # Without the record, too.
    node.boot.write_text("second\n")
    node.start(COUNTED, offline="2-3")
    assert available(node) == "5-7"


@pytest.mark.parametrize(
    "settled",
    [
        pytest.param({"reserved": "5-6"}, id="another number"),
        pytest.param({"reserved": "7-9"}, id="CPUs of another pool"),
        pytest.param({"reserved": "x"}, id="no CPU list"),
        pytest.param({"options": "full-pcpus-only"}, id="other options"),
        pytest.param({"cpus": "0-6"}, id="another default pool"),
    ],
)
def test_what_was_settled_for_something_else_is_not_believed(
    node: Node, settled: dict[str, str]
) -> None:
    node.start(COUNTED)
    true = node.content["settled"]
    lawful = {**node.content, "settled": {**true, "reserved": "5-7"}}
    node.file.write_text(json.dumps(lawful))
    node.start(COUNTED)
    assert available(node) == "0-4"
    node.file.write_text(json.dumps({**lawful, "settled": {**true, **settled}}))
    node.start(COUNTED)
    assert available(node) == "3-7"


def test_an_agent_writes_no_record_before_it_has_read_the_earlier_one(node: Node) -> None:
    node.run("web")
    before = node.file.read_bytes()
    node.manager = Manager()
    node.record = ChoiceRecord(
        node.manager, node.file, node.boot, events=node.events, metrics=node.metrics
    )
    node.manager.reconfigure(COUNTED, MACHINE.topology())
    node.record.decided()
    assert node.file.read_bytes() == before


def test_only_another_choice_is_written(node: Node) -> None:
    node.run("web")
    before = node.file.stat()
    node.manager.observe(pods=[*node.pods, builders.pod("plain")])
    node.record.decided()
    node.start()
    # Reading it sets its time of access, too.
    after = node.file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    node.end("web")
    assert node.content["entries"] == {}


def test_under_the_policy_none_a_pod_keeps_what_is_recorded(node: Node) -> None:
    node.run("web")
    node.start(NONE)
    assert node.owned == {"web-uid": "1"}
    assert node.content["policyName"] == "none"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param(b'"2"', b'"5"', "its checksum is", id="damage"),
        pytest.param(b"{", b"[", "not JSON", id="no JSON"),
        pytest.param(b'"entries"', b'"data":"","x"', "dataChecksum", id="another shape"),
    ],
)
def test_a_damaged_file_is_set_aside_with_an_event(
    node: Node, old: bytes, new: bytes, words: str
) -> None:
    node.run("first")
    node.run("second")
    node.end("first")
    damaged = node.file.read_bytes().replace(old, new)
    node.file.write_bytes(damaged)
    pods, node.pods = node.pods, []

    node.start()
    assert node.owned == {}
    ((reason, message),) = node.events.nodes
    assert reason == "RecordSetAside"
    assert words in message
    assert "kept as cpu_manager_state.corrupt" in message
    aside = node.folder / "cpu_manager_state.corrupt"
    assert aside.read_bytes() == damaged
    node.pods = pods
    node.run("third")
    assert node.content["entries"].keys() == {"second-uid", "third-uid"}
    assert aside.read_bytes() == damaged


def test_a_file_of_another_boot_is_ignored_and_stays_until_the_next_choice(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.run("first")
    before = node.file.read_bytes()
    node.boot.write_text("other\n")
    pods, node.pods = node.pods, []
    node.start()
    assert node.owned == {}
    assert "they are of another boot" in caplog.text
    assert node.file.read_bytes() == before
    assert not node.events.nodes
    node.pods = pods
    node.run("third")
    assert node.content["entries"].keys() == {"first-uid", "third-uid"}
    assert [path.name for path in node.folder.iterdir()] == ["cpu_manager_state"]


def test_without_a_boot_id_nothing_is_recorded_or_believed(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.run("first")
    before = node.file.read_bytes()
    node.boot.unlink()
    node.start()
    node.run("second")
    assert node.file.read_bytes() == before
    assert node.failing()
    assert "mount the machine's /proc" in caplog.text


def test_a_disk_that_cannot_be_written_stops_nothing_and_is_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.folder.write_text("a file in place of the folder")
    for name in ("first", "second"):
        node.now_s += 60
        node.run(name)
    assert node.owned == {"first-uid": "1", "second-uid": "2"}
    assert node.failing()
    assert caplog.text.count("chosen CPUs cannot be recorded") == 1
    ((reason, message),) = node.events.nodes
    assert reason == "CPUChoiceNotRecorded"
    assert "check the folder's rights" in message

    # It is tried again after a while, not at each look.
    node.folder.unlink()
    assert not node.record.is_kept()
    assert not node.file.exists()
    node.now_s += 60
    assert node.record.is_kept()
    assert node.content["entries"].keys() == {"first-uid", "second-uid"}
    assert "chosen CPUs are recorded again" in caplog.text
    assert not node.failing()


def test_a_full_disk_leaves_the_last_file_and_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("first")

    def full(_source: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    node.run("second")
    assert "No space left on device" in node.events.nodes[0][1]
    assert node.content["entries"].keys() == {"first-uid"}
    assert [path.name for path in node.folder.iterdir()] == ["cpu_manager_state"]
