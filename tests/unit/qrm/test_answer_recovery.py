"""What containers keep although the record of their plugins' answers lacks it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.manager.manager import Manager
from cpupool.qrm.answer_book import AnswerBook
from cpupool.qrm.answer_recovery import Recovery, Trace
from cpupool.qrm.question_table import QuestionTable
from tests.unit.manager.plugged import MACHINE, container, cpus, pod, pools, ref

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

DEDICATED = "dedicated_cores"
SHARED = "0-7"


def of(text: str) -> CPUSet:
    return CPUSet.parse(text)


@dataclass
class Node:
    """A node whose agent has just started.

    Attributes:
        recorded: pod → the CPUs of its container in the record, its own.
        noted: pod → the CPUs in its annotation, and those in the runtime's list.
        runs: pod → the CPUs where its container runs.
    """

    recorded: dict[str, str] = field(default_factory=dict)
    noted: dict[str, tuple[str, str]] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    shared: str = SHARED
    offline: str = ""
    level: str = DEDICATED
    chosen: dict[str, str] = field(default_factory=dict)

    def start(self) -> Recovery:
        """Let an agent take over; the pods are the older, the earlier in the alphabet."""
        names = sorted({*self.recorded, *self.noted, *self.runs})
        pods = [self._pod(at, name) for at, name in enumerate(names)]
        self.table = QuestionTable(lambda: 0.0)
        self.book = AnswerBook(self.table, Names(), lambda *_said: None)
        self.book.load(
            {ref(name): {"cpu": cpus(text, exclusive=True)} for name, text in self.recorded.items()}
        )
        self.manager = Manager()
        self.manager.reconfigure(pools(), MACHINE.without(self.offline).topology())
        self.publish()
        self.manager.observe(pods=pods)
        self.manager.observe_containers(map(self._sighted, names))
        sandboxes = [
            FoundContainer(f"{name}-uid", "sandbox", f"{name}/s", self.shared) for name in names
        ]
        containers = [
            FoundContainer(f"{name}-uid", f"{name}-main", f"{name}/m", text)
            for name, text in self.runs.items()
        ]
        choices = {f"{name}-uid": of(text) for name, text in self.chosen.items()}
        found = self.book.recover(self.manager.snapshot(), [*sandboxes, *containers], choices)
        self.publish()
        self.manager.adopt(())
        return found

    def publish(self) -> None:
        """Make the book's answers facts."""
        facts = PluginFacts(frozenset({"cpu"}), self.table.record, enabled=True)
        self.manager.observe(plugins=facts)

    def _pod(self, at: int, name: str) -> Pod:
        main = replace(container(), id=ContainerID(f"{name}-main"))
        return replace(pod(name, main, level=self.level), created=f"2026-01-01T00:00:{at:02}Z")

    def _sighted(self, name: str) -> RuntimeContainer:
        noted, listed = self.noted.get(name, ("", ""))
        return RuntimeContainer(
            ContainerID(f"{name}-main"),
            f"{name}-uid",
            "default",
            name,
            "main",
            answered=of(noted),
            narrowed=of(noted) - of(listed),
        )

    @property
    def owns(self) -> dict[str, str]:
        """Return pod → the CPUs that it owns."""
        grants = self.manager.snapshot().resolution.grants.of_pods
        return {uid.removesuffix("-uid"): str(grant.cpus) for uid, grant in grants}


def noted(text: str) -> tuple[str, str]:
    return text, text


@pytest.mark.parametrize(
    ("node", "owns"),
    [
        pytest.param(Node(noted={"a": noted("5-6")}), "5-6", id="the annotation"),
        pytest.param(Node({"a": "5-6"}), "5-6", id="the record"),
        pytest.param(Node(runs={"a": "5-6"}), "5-6", id="the cgroup"),
        pytest.param(
            Node({"a": "3-4"}, {"a": noted("5-6")}, {"a": "1-2"}),
            "5-6",
            id="the annotation before all others",
        ),
        pytest.param(
            Node({"a": "3-4"}, runs={"a": "1-2"}), "3-4", id="the record before the cgroup"
        ),
        pytest.param(
            Node({"a": "3-4"}, {"a": noted("5-6")}, {"a": "5-6"}),
            "5-6",
            id="a record that annotation and cgroup contradict",
        ),
        pytest.param(
            Node({"a": "3-4"}, {"a": noted("5-6")}, {"a": "3-4"}),
            "3-4",
            id="an answer that has changed since the annotation",
        ),
        pytest.param(
            Node(noted={"a": ("4-6", "5-6")}, offline="4"), "4-6", id="a CPU that is offline"
        ),
        pytest.param(
            Node(noted={"a": ("4-6", "5-6")}), "5-6", id="a CPU that the plugin has taken"
        ),
        pytest.param(
            Node(noted={"a": noted("90-91")}, runs={"a": "5-6"}),
            "5-6",
            id="CPUs that the machine lacks, in the annotation",
        ),
        pytest.param(
            Node({"a": "90-91"}, runs={"a": "5-6"}),
            "5-6",
            id="CPUs that the machine lacks, in the record",
        ),
    ],
)
def test_an_owner_keeps_what_the_best_source_names(node: Node, owns: str) -> None:
    node.start()
    assert node.owns == {"a": owns}


@pytest.mark.parametrize(
    ("node", "owns"),
    [
        pytest.param(
            Node({"a": "5-6"}, {"b": noted("5-6")}),
            {"b": "5-6"},
            id="an older pod's record names the CPUs of a younger one's annotation",
        ),
        pytest.param(
            Node(noted={"a": noted("5-6"), "b": noted("6-7")}, runs={"a": "5-6", "b": "3-4"}),
            {"a": "5-6", "b": "3-4"},
            id="two annotations name a CPU, and a cgroup others",
        ),
        pytest.param(
            Node({"a": "5-6"}, runs={"a": "5-6", "b": "5-6"}), {"a": "5-6"}, id="a cgroup, too"
        ),
        pytest.param(
            Node({"a": "4-5", "b": "2-3"}, {"b": noted("4-5")}, {"a": SHARED, "b": "4-5"}),
            {"a": "4-5", "b": "2-3"},
            id="two containers were about to swap their CPUs",
        ),
        pytest.param(
            Node(runs={"a": "5-6"}, chosen={"z": "6"}), {}, id="an earlier policy chose one of them"
        ),
    ],
)
def test_no_cpu_has_two_owners(node: Node, owns: dict[str, str]) -> None:
    node.start()
    assert node.owns == owns


@pytest.mark.parametrize(
    ("runs", "more"),
    [
        pytest.param(SHARED, {}, id="with the containers without an answer"),
        pytest.param("1-7", {"shared": "1-7"}, id="where its sandbox runs"),
        pytest.param("0-2", {}, id="on a reserved CPU"),
        pytest.param("7-8", {}, id="on CPUs that are not the policy's"),
        pytest.param("", {}, id="nowhere"),
    ],
)
def test_an_owner_of_which_nothing_is_known_is_named(runs: str, more: dict[str, str]) -> None:
    node = Node(runs={"a": runs}, **more)  # type: ignore[arg-type]  # only texts
    found = node.start()
    assert not found.kept
    assert list(found.lost) == ([ref("a")] if runs else [])
    assert node.owns == {}


def test_what_is_kept_is_asked_for_again_and_the_rest_of_its_answer_stays() -> None:
    node = Node({"a": "3-4"}, {"a": noted("5-6")}, {"a": "1-2"})
    found = node.start()
    (kept,) = found.kept.values()
    assert (kept.trace, kept.resource) == (Trace.ANNOTATION, "cpu")
    (given,) = node.table.answers(ref("a")).values()
    before = cpus("3-4", exclusive=True)
    answer = replace(before.parts["cpu"], value="5-6")
    assert given == replace(before, parts={"cpu": answer}, kept=True)
    assert not given.serves(1.0)


def test_a_container_that_shares_stays_where_its_answer_was() -> None:
    node = Node(runs={"a": "1-4"}, level="")
    (kept,) = node.start().kept.values()
    assert kept.given == RecordedAnswer(0.0, {"cpu": AnswerPart("CpusetCpus", "1-4")}, kept=True)
    assert node.owns == {}
    assert Node(runs={"a": SHARED}, level="").start() == Recovery()


def test_a_container_that_the_runtime_reports_later_is_recognised_then() -> None:
    node = Node(runs={"a": SHARED})
    found = node.start()
    assert list(found.lost) == [ref("a")]
    node.noted = {"a": noted("5-6")}
    node.manager.observe_containers([node._sighted("a")])
    assert list(node.book.recover_late(node.manager.snapshot()).kept) == [ref("a")]
    node.publish()
    assert node.owns == {"a": "5-6"}
    # By now its plugin may have moved it.
    node.book.take(node.manager.snapshot(), {(ref("a"), "cpu"): cpus("3-4", exclusive=True)})
    assert node.book.recover_late(node.manager.snapshot()) == Recovery()


def test_a_late_annotation_takes_no_cpu_of_another_owner() -> None:
    node = Node({"a": "5-6"}, runs={"b": SHARED})
    node.start()
    node.noted = {"b": noted("6-7")}
    node.manager.observe_containers([node._sighted("b")])
    assert node.book.recover_late(node.manager.snapshot()) == Recovery()
