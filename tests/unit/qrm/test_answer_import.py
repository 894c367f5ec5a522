"""A node that moves from Katalyst's manager: no plugin is asked again for what containers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.qrm_checkpoints import Recorded, written
from tests.unit.manager.plugged import container, pod, ref
from tests.unit.qrm.test_resource_manager import DEDICATED, NIC, Node, answer, asked

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.plugin_facts import RecordedAnswer
    from cpupool.core.workloads import Pod

A = pod("a", level=DEDICATED)
B = pod("b")


class Moved(Node):
    """A node on which Katalyst's manager has run."""

    def finds(self, *pods: Pod) -> None:
        """Start an agent that finds pods, as far as its first sweep."""
        self.pods = pods
        self.start()
        self.role.take_over()

    def recorded(self, *entries: Recorded) -> None:
        """Let Katalyst's manager have recorded what containers have."""
        self.checkpoint.write_bytes(written(*entries))

    def given(self, name: str, resource: str = "cpu") -> RecordedAnswer:
        return self.manager.snapshot().facts.plugins.answers[ref(name)][resource]


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with Moved(tmp_path) as made:
        yield made


def test_what_pods_have_counts_and_no_plugin_is_asked_again(node: Moved) -> None:
    node.recorded(
        Recorded.cpus("a-uid", "2-3"),
        Recorded.cpus("b-uid", "4-5"),
        Recorded.of("b-uid", NIC, envs={"NIC": "eth0"}),
    )
    plugin = node.plugin()
    plugin.answers("Allocate", answer("6-7"))
    nic = node.plugin(NIC, name="nic")
    node.finds(A, pod("b", container(cpu=2.0, more={NIC: 1.0})), pod("c"))

    assert (node.cpus("a"), node.cpus("b"), node.cpus("c")) == ("2-3", "4-5", "nothing")
    assert (node.given("a").exclusive, node.given("b").exclusive) == (True, False)
    assert node.given("b", NIC).parts[NIC].env == {"NIC": "eth0"}
    node.until(lambda: node.cpus("c") == "6-7")
    assert asked(plugin) == ["c"]
    node.until(lambda: nic.asked["NotifyRegistrationStatus"])
    node.role.step()
    assert "Allocate" not in nic.asked


def test_until_the_pods_are_known_nothing_is_asked_and_the_resources_count(node: Moved) -> None:
    node.recorded(Recorded.of("a-uid", NIC))
    plugin = node.plugin()
    plugin.answers("Allocate", answer("2-3"))
    node.start()
    node.run(pod("a", container(more={NIC: 1.0})), B)
    # The import runs in another thread than the loop, which must not touch the answers before.
    stepped: list[None] = []
    node.role._post(lambda: stepped.append(None))
    node.role.step()
    assert not stepped
    assert not plugin.asked
    assert node.manager.snapshot().facts.plugins.served == {NIC}

    node.role.take_over()
    assert set(node.manager.snapshot().facts.plugins.answers) == {ref("a")}
    node.until(lambda: node.cpus("b") == "2-3")


def test_containers_that_are_gone_or_request_nothing_are_left_out(
    node: Moved, caplog: pytest.LogCaptureFixture
) -> None:
    node.recorded(
        Recorded.cpus("a-uid", "2-3"),
        Recorded.of("a-uid", "memory", oci_property_name="CpusetMems", allocation_result="0"),
        Recorded.of("a-uid", container="gone"),
        Recorded.cpus("gone-uid", "4-5"),
        Recorded.cpus("done-uid", "6-7"),
    )
    caplog.set_level("INFO")
    node.finds(A, pod("done", finished=True))
    given = node.manager.snapshot().facts.plugins.answers
    assert {(ref, *by_resource) for ref, by_resource in given.items()} == {(ref("a"), "cpu")}
    assert "answers of Katalyst's manager are imported taken=1 refused=0 left_out=4" in caplog.text


@pytest.mark.parametrize("first", ["a", "d"])
def test_of_two_containers_with_one_cpu_that_of_the_older_pod_has_it(
    node: Moved, first: str
) -> None:
    node.recorded(Recorded.cpus("d-uid", "3-4"), Recorded.cpus("a-uid", "2-3"))
    plugin = node.plugin()
    node.finds(
        *(pod(name, level=DEDICATED, created="1" if name == first else "2") for name in ("a", "d"))
    )

    (second,) = {"a", "d"} - {first}
    assert node.cpus(first) == {"a": "2-3", "d": "3-4"}[first]
    assert node.cpus(second) == ""
    assert node.given(second).refused == "the answer for cpu names CPUs 3, which another pod owns"
    said = (
        "container main: the answer for cpu names CPUs 3, which another pod owns: it is not"
        " used; create the pod again"
    )
    assert node.events.pods == [(second, "PluginAnswerRefused", said)]
    page = node.metrics.render()[1].decode()
    assert 'cpupool_plugin_answers_refused_total{resource="cpu",rule="owned"} 1.0' in page
    # The plugin has it as given.
    node.until(lambda: "cpu" in node.manager.snapshot().facts.plugins.served)
    node.role.step()
    assert "Allocate" not in plugin.asked


def test_a_lost_amount_is_the_requested_one(node: Moved) -> None:
    node.recorded(Recorded.cpus("a-uid", "2-3", 1.7), Recorded.cpus("b-uid", "4-5", 4.0))
    node.finds(A, pod("b", container(more={"example.com/milli": 1500.0})))
    assert [node.given(name).quantity for name in ("a", "b")] == [2.0, 1.5]
    assert [node.given(name).parts["cpu"].quantity for name in ("a", "b")] == [2.0, 4.0]


def test_an_agent_that_is_killed_before_its_record_imports_again_and_then_never(
    node: Moved,
) -> None:
    node.recorded(Recorded.cpus("a-uid", "2-3"))
    node.pods = (A,)
    node.start()
    node.stop()
    node.finds(A)
    assert node.cpus() == "2-3"
    node.stop()

    node.recorded(Recorded.cpus("a-uid", "4-5"))
    node.finds(A)
    assert node.cpus() == "2-3"


def test_a_damaged_record_of_ours_is_replaced_by_no_import(node: Moved) -> None:
    node.recorded(Recorded.cpus("a-uid", "2-3"))
    node.file.write_bytes(b"{")
    node.finds(A)
    assert node.cpus() == "nothing"
    node.plugin().answers("Allocate", answer("4-5"))
    node.until(lambda: node.cpus() == "4-5")


def test_a_damaged_file_is_named_and_the_plugins_are_asked(node: Moved) -> None:
    node.checkpoint.write_bytes(b"[]")
    node.finds(A)
    ((reason, message),) = node.events.nodes
    assert reason == "PluginAnswersNotImported"
    assert message == (
        "kubelet_qrm_checkpoint is not readable: it is not of type dict; the agent imports nothing:"
        " remove the file, and it asks plugins for every container"
    )
    node.plugin().answers("Allocate", answer("4-5"))
    node.until(lambda: node.cpus() == "4-5")


def test_an_agent_that_asks_no_plugin_imports_nothing(node: Moved) -> None:
    node.recorded(Recorded.cpus("a-uid", "2-3"))
    node.folders = []
    node.finds(A)
    assert node.cpus() == "nothing"
    assert not node.file.exists()
