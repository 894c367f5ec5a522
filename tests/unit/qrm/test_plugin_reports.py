"""What plugins say, as metrics show it and as the status has it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from cpupool.api import pluginregistration_pb2
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.workloads import ContainerRef
from cpupool.qrm.plugin_client import PluginCall, PluginError
from cpupool.qrm.plugin_inquiry import PluginInquiry
from cpupool.qrm.plugin_metrics import PluginMetrics
from cpupool.qrm.plugin_reports import PluginReports
from cpupool.qrm.question_table import QuestionTable
from cpupool.telemetry.metrics import Metrics
from tests.resource_plugins import PluginDouble, Refusal
from tests.unit.manager.plugged import pod, pools, ref
from tests.unit.qrm.test_resource_manager import DEDICATED, FULL, Node, answer, listing
from tests.waiting import DEADLINE_S

GONE = Refusal(grpc.StatusCode.UNAVAILABLE, "no route")
AWAY = "is away (asked for its allocations: no route)"


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with Node(tmp_path) as made:
        made.start(pools(topology=TopologyPolicy.RESTRICTED))
        yield made


def series(node: Node) -> dict[str, float]:
    """Return what the metrics show of plugins, without buckets and times."""
    found = {}
    for line in node.metrics.render()[1].decode().splitlines():
        name, _, value = line.rpartition(" ")
        if "_plugin_" in name and not name.startswith("#"):
            found[name] = float(value)
    return found


def calls(node: Node, method: str, resource: str = "cpu") -> dict[str, float]:
    """Return outcome → how many calls of a method have had it."""
    start = f'cpupool_plugin_calls_total{{method="{method}",outcome="'
    return {
        name.removeprefix(start).partition('"')[0]: value
        for name, value in series(node).items()
        if name.startswith(start) and f'resource="{resource}"' in name
    }


def test_calls_are_counted_by_their_outcome(node: Node) -> None:
    plugin = node.plugin(with_topology_alignment=True, need_reconcile=True)
    plugin.answers("GetTopologyHints", b"")
    plugin.answers("Allocate", FULL)
    plugin.answers("GetResourcesAllocation", GONE)
    node.run(pod("a", level=DEDICATED))
    node.until(node.refusal)
    assert calls(node, "GetTopologyHints") == {"answered": 1.0}
    assert calls(node, "Allocate") == {"refused": 1.0}
    assert calls(node, "GetResourcesAllocation") == {"failed": 1.0}


def test_what_podresources_ask_is_counted_and_a_container_may_be_unknown(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    plugin.answers("GetTopologyAwareResources", Refusal(grpc.StatusCode.NOT_FOUND, "no such one"))
    facts = node.manager.snapshot().facts
    PluginInquiry(lambda: node.role.plugins).given(facts.plugins.answers, facts.topology)
    assert calls(node, "GetTopologyAwareResources") == {"refused": 1.0}
    (status,) = node.role.reports.report().plugins
    assert status.why == ""


def test_the_kubelets_series_have_their_names(node: Node) -> None:
    plugin = node.plugin(with_topology_alignment=True)
    plugin.answers("GetTopologyHints", b"")
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    found = series(node)
    for name in ("registration_total", "alloc_duration_seconds_count"):
        assert found[f'kubelet_resource_plugin_{name}{{resource_name="cpu"}}'] == 1.0
    hints = "kubelet_resource_plugin_get_hints_duration_seconds"
    assert found[f'{hints}_count{{resource_name="cpu"}}'] == 1.0
    assert found[f'{hints}_sum{{resource_name="cpu"}}'] > 0.0


def test_a_resource_whose_plugin_is_gone_is_shown_until_nothing_is_left_of_it(node: Node) -> None:
    def served() -> dict[str, float]:
        start = 'cpupool_plugin_serves{resource="'
        return {
            name.removeprefix(start).rstrip('"}'): value
            for name, value in series(node).items()
            if name.startswith(start)
        }

    node.run()
    with PluginDouble(node.folder / "cpu.sock"):
        node.until(lambda: served() == {"cpu": 1.0})
    (node.folder / "cpu.sock").unlink(missing_ok=True)
    node.role.step()
    assert served() == {"cpu": 0.0}
    node.now_s += 301.0
    node.role.step()
    node.role.step()
    assert served() == {}


def states(node: Node) -> dict[str, tuple[str, str]]:
    """Return the name of each socket → the resource of its plugin, and why it fails."""
    return {
        plugin.socket.rpartition("/")[2]: (plugin.resource, plugin.why)
        for plugin in node.role.reports.report().plugins
    }


def test_a_plugin_that_fails_is_reported_until_it_answers_again(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", GONE)
    node.run()
    node.until(lambda: states(node) == {"cpu.sock": ("cpu", AWAY)})
    changes = node.changes
    for _ in range(2):
        plugin.asked["GetResourcesAllocation"].clear()
        node.now_s += 3.0
        node.until(lambda: plugin.asked["GetResourcesAllocation"])
    assert node.changes == changes
    plugin.answers("GetResourcesAllocation", b"")
    node.now_s += 3.0
    node.until(lambda: states(node) == {"cpu.sock": ("cpu", "")})
    node.role.step()
    # The status shows it, and pods that share wait for its answers again.
    assert node.changes == changes + 2


def test_a_plugin_that_does_not_answer_is_no_plugin_to_wait_for(node: Node) -> None:
    def answering() -> frozenset[str]:
        return node.manager.snapshot().facts.plugins.answering

    assert node.manager.snapshot().facts.plugins.expected
    plugin = node.plugin()
    node.run(pod("a"))
    # A method that is missing, and a refusal, are answers.
    node.until(node.refusal)
    assert answering() == {"cpu"}
    assert not node.manager.snapshot().facts.plugins.expected
    plugin.answers("Allocate", GONE)
    node.now_s += 60.0
    node.until(lambda: not answering())
    plugin.answers("Allocate", answer("1-2"))
    node.now_s += 60.0
    node.until(lambda: node.cpus() == "1-2")
    assert answering() == {"cpu"}
    plugin.socket.unlink()
    node.until(lambda: not answering())


def test_a_plugin_that_only_lists_is_no_plugin_to_wait_for() -> None:
    reports = PluginReports([Path("/plugins")], PluginMetrics(Metrics().registry))
    mute = PluginError("cpu", "has not answered in time", "check its log")

    def called(method: str, failure: PluginError | None = None) -> bool:
        reports.called(PluginCall("cpu", method, 0.0, failure))
        return reports.silent == {"cpu"}

    assert called("GetTopologyHints", mute)
    assert not called("GetTopologyHints")
    assert called("Allocate", mute)
    assert called("GetTopologyHints")
    assert called("GetResourcesAllocation")
    assert called("RemovePod")
    assert called("GetResourcesAllocation", mute)
    assert not called("Allocate")
    assert called("Allocate", mute)
    reports.registered("cpu")
    assert not called("RemovePod")


def test_a_plugin_that_says_nothing_for_podresources_is_waited_for(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    plugin.answers("GetTopologyAwareResources", GONE)
    plugin.answers("GetTopologyAwareAllocatableResources", GONE)
    facts = node.manager.snapshot().facts
    asks = PluginInquiry(lambda: node.role.plugins)
    asks.given(facts.plugins.answers, facts.topology)
    asks.stocks(facts.topology)
    node.role.step()
    assert calls(node, "GetTopologyAwareResources") == {"failed": 1.0}
    assert node.manager.snapshot().facts.plugins.answering == {"cpu"}


def test_a_call_that_ends_with_its_plugin_says_nothing_of_the_next_plugin(node: Node) -> None:
    asked, free = threading.Event(), threading.Event()

    def hang(_request: bytes) -> bytes:
        asked.set()
        free.wait(DEADLINE_S)
        return b""

    old = node.plugin()
    old.replies["Allocate"] = hang
    node.run(pod("a"))
    node.until(asked.is_set)
    (before,) = node.role._registry.workers
    try:
        node.plugin(name="new")
        node.until(lambda: before.closed and not before.thread.runs)
        assert node.manager.snapshot().facts.plugins.answering == {"cpu"}
        assert states(node)["new.sock"] == ("cpu", "")
    finally:
        free.set()


def test_a_list_that_is_refused_fails_and_a_refused_pod_does_not(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", FULL)
    plugin.answers("Allocate", FULL)
    node.run(pod("a"))
    node.until(node.refusal)
    no_list = "has refused (asked for its allocations: no CPU is left)"
    assert states(node) == {"cpu.sock": ("cpu", no_list)}
    plugin.answers("GetResourcesAllocation", b"")
    node.now_s += 3.0
    node.until(lambda: states(node) == {"cpu.sock": ("cpu", "")})


def test_any_answer_shows_that_a_plugin_is_back(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", b"")
    plugin.answers("Allocate", GONE)
    node.run(pod("a"))
    node.until(lambda: "is away" in states(node)["cpu.sock"][1])
    # The pod's turn comes later.
    node.now_s += 3.0
    plugin.answers("Allocate", FULL)
    node.until(lambda: states(node) == {"cpu.sock": ("cpu", "")})


def test_a_socket_that_serves_nothing_says_why(node: Node) -> None:
    node.run()
    old = node.plugin()
    node.until(lambda: old.asked["NotifyRegistrationStatus"])
    node.until(lambda: states(node) == {"cpu.sock": ("cpu", "")})
    node.plugin(name="new")
    other = node.plugin(name="other")
    info = pluginregistration_pb2.PluginInfo(type="CSIPlugin", name="disk")
    other.answers("GetInfo", info)
    mute = node.plugin(name="mute")
    mute.answers("GetInfo", FULL)
    node.until(
        lambda: (
            states(node).items()
            >= {
                "cpu.sock": ("cpu", "has been replaced by another plugin"),
                "new.sock": ("cpu", ""),
                "other.sock": ("", "is no ResourcePlugin: its GetInfo has another type"),
            }.items()
        )
    )
    node.until(lambda: "no CPU is left" in states(node)["mute.sock"][1])


def test_the_times_of_answers_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    reports = PluginReports([Path("/plugins")], PluginMetrics(Metrics().registry), lambda: 1000.0)
    table = QuestionTable(lambda: 0.0)
    main, other = ContainerRef("a-uid", "main"), ContainerRef("b", "main")
    table.row(main, "cpu").confirmed_s = 0.0
    table.row(main, "memory").confirmed_s = 119.0
    table.row(other, "memory").confirmed_s = 119.0
    table.row(other, "cpu")
    reports.keep((), (), table)
    report = reports.report()
    assert report.folders == ("/plugins",)
    assert report.confirmed == {
        (main, "cpu"): "1970-01-01T00:00:00Z",
        (main, "memory"): "1970-01-01T00:01:00Z",
        (other, "memory"): "1970-01-01T00:01:00Z",
    }
    # The machine's clock is set.
    monkeypatch.setattr(time, "time", lambda: 1600.0)
    assert reports.report().confirmed[main, "cpu"] == "1970-01-01T00:10:00Z"
    table.follow({"b"}, ())
    reports.keep((), (), table)
    assert reports.report().confirmed.keys() == {(other, "memory")}


def test_a_call_that_fails_confirms_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", GONE)
    node.run(pod("a"))
    node.until(node.refusal)
    assert not node.role.reports.report().confirmed
    plugin.answers("Allocate", answer("1-2"))
    node.now_s = 1.5
    monkeypatch.setattr(time, "time", lambda: 180.0)
    node.until(lambda: node.cpus() == "1-2")
    assert node.role.reports.report().confirmed == {(ref("a"), "cpu"): "1970-01-01T00:03:00Z"}


def test_only_containers_of_the_node_are_confirmed_until_their_pod_ends(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", listing(a="1-2", elsewhere="3"))
    plugin.answers("RemovePod", b"")
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    assert node.role.reports.report().confirmed.keys() == {(ref("a"), "cpu")}
    node.run()
    node.manager.observe(idle=frozenset({"a-uid"}))
    node.until(lambda: not node.role.reports.report().confirmed)
