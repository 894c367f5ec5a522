"""What the agent's command line comes to."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.agent.changes import Signals
from cpupool.agent.setup import SWEEP_INTERVAL_S
from cpupool.commands import agent
from cpupool.config.settings import OPTIONS, AgentSettings
from cpupool.core.cgroups import Writer
from cpupool.core.names import STARTER, Names
from cpupool.core.plugin_facts import ServedAs
from cpupool.manager.manager import Manager
from cpupool.runtime.nri.connection import Launch
from cpupool.runtime.nri.holding import MissingFacts
from cpupool.telemetry.metrics import Metrics
from tests.kubeconfigs import login
from tests.loops import running_all
from tests.waiting import eventually

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from cpupool.agent.setup import Setup
    from cpupool.kube.cluster_view import ClusterView

ENOUGH = ("agent", "--node-name", "a", "--api-server", "http://127.0.0.1:1")


class Started:
    """Stands for the agent, and ends at once."""

    settings: Setup
    join: Callable[[Metrics, Signals], ClusterView]

    def __init__(
        self, _manager: Any, settings: Setup, _root: Any, _topology: Any, join: Any
    ) -> None:
        Started.settings = settings
        Started.join = staticmethod(join)

    def run(self, _stop: threading.Event) -> None:
        """End."""


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(agent, "Agent", Started)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def settings(*options: str) -> Setup:
    assert cli.main([*ENOUGH, *options]) == 0
    return Started.settings


@pytest.mark.parametrize(
    ("release", "options", "moves"),
    [
        pytest.param("6.1.0-18-amd64", [], False, id="an old kernel"),
        pytest.param("6.12.8+deb13-amd64", [], True, id="a new kernel"),
        pytest.param("6.1.0-18-amd64", ["--move-pinned", "always"], True, id="as the admin says"),
    ],
)
def test_pinned_containers_are_moved_where_the_kernel_lets_them_stay_pinned(
    monkeypatch: pytest.MonkeyPatch, release: str, options: list[str], *, moves: bool
) -> None:
    here = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*here[:2], release, *here[3:])))

    made: list[bool] = []

    def manager(names: Names, *, moves_pinned: bool) -> Manager:
        made.append(moves_pinned)
        return Manager(names, moves_pinned=moves_pinned)

    monkeypatch.setattr(agent, "Manager", manager)
    settings(*options)
    assert made == [moves]


@pytest.mark.parametrize(
    ("options", "listens"),
    [([], ("", 9404)), (["--metrics-port", "80"], ("", 80)), (["--metrics-port", "0"], None)],
)
def test_probes_and_metrics_have_a_port_unless_it_is_0(
    options: list[str], listens: tuple[str, int] | None
) -> None:
    assert settings(*options).telemetry == listens


def test_the_name_of_the_node_may_come_from_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "a")

    assert cli.main(["agent", "--api-server", "http://127.0.0.1:1"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--metrics-port", "x"], "--metrics-port: 'x' is no port"),
        (["--metrics-port", "65536"], "--metrics-port: '65536' is no port"),
        (["--sweep-interval", "x"], "--sweep-interval: 'x' is not between 0.1 and 60 seconds"),
    ],
)
def test_a_number_that_is_none_is_reported_in_the_users_words(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*ENOUGH, *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "writer"),
    [
        ([], None),
        (["--enforcement", "auto"], None),
        (["--enforcement", "nri"], Writer.NRI),
        (["--enforcement", "cgroup"], Writer.CGROUP),
    ],
)
def test_the_way_of_enforcement_may_be_left_to_the_agent(
    options: list[str], writer: Writer | None
) -> None:
    assert settings(*options).runtime.enforcement is writer


def test_the_setting_names_the_plugins_resource() -> None:
    found = settings("--resource-plugin-names", "example.com/milli=cpu:1000")
    assert found.plugins.names == {"example.com/milli": ServedAs("cpu", 1000)}
    found = settings("--resource-plugin-names", "memory=memory, example.com/bytes=memory")
    expected = {"memory": ServedAs("memory"), "example.com/bytes": ServedAs("memory")}
    assert found.plugins.names == expected
    assert settings().plugins.names == {}


def test_a_plugin_that_the_runtime_has_started_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("SOCKET", "3"), ("NAME", "cpupool"), ("IDX", "50")):
        monkeypatch.setenv(f"NRI_PLUGIN_{name}", value)

    assert settings("--enforcement", "nri").runtime.launch == Launch(3, "cpupool", "50")
    assert cli.main([*ENOUGH, "--enforcement", "cgroup"]) == 2
    assert "as its NRI plugin; leave out --enforcement=cgroup" in capsys.readouterr().err


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("sweep-interval: 10\nmetrics-port: 80\ncri-socket: /run/a.sock\n")

    found = settings("--settings", str(file), "--metrics-port", "81")

    assert (found.interval_s, found.telemetry) == (10.0, ("", 81))
    assert found.runtime.cri_socket == Path("/run/a.sock")
    assert found.starter == Path(STARTER)


def test_a_flag_wins_with_its_default_as_well(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("metrics-port: 80\nenforcement: cri\n")

    found = settings("--settings", str(file), "--metrics-port", "9404", "--enforcement", "auto")

    assert (found.telemetry, found.runtime.enforcement) == (("", 9404), None)


def test_a_switch_of_the_file_can_be_undone(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("verbose: true\n")
    parser = argparse.ArgumentParser()
    agent.add_parser(parser.add_subparsers(), "")

    given = parser.parse_args([*ENOUGH, "--settings", str(file), "--no-verbose"])

    assert not agent._settings(given).verbose


def test_a_flag_that_names_the_api_server_wins_over_any_name_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("kubeconfig: /gone\ncontext: lab\n")

    assert cli.main([*ENOUGH, "--settings", str(file)]) == 0


def test_the_name_of_the_node_may_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("node-name: a\napi-server: http://127.0.0.1:1\n")

    assert cli.main(["agent", "--settings", str(file)]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "settings.yaml: No such file or directory; name a file that can be read"),
        ("verbos: true", "settings.yaml:1:1: verbos: unknown key; did you mean verbose?"),
    ],
)
def test_a_file_that_cannot_be_used_starts_nothing(
    tmp_path: Path, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)

    assert cli.main([*ENOUGH, "--settings", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_the_words_of_the_settings_are_those_of_what_they_set() -> None:
    assert OPTIONS["enforcement"].choices == ("auto", *(writer.value for writer in Writer))
    assert OPTIONS["nri-missing-facts"].choices == tuple(one.value for one in MissingFacts)
    defaults = AgentSettings()
    assert defaults.sweep_interval_s == SWEEP_INTERVAL_S
    assert MissingFacts(defaults.nri_missing_facts) is MissingFacts.HOLD


def test_a_trial_agent_logs_in_with_a_kubeconfig(folder: Path) -> None:
    with login(folder) as cluster:
        cluster.server.tokens = {"secret"}
        cluster.server.set_labels({"nodeType": "dpdk"})
        path = cluster.kubeconfig({"other": {"token": "no"}, "admin": {"token": "secret"}})

        options = ["--node-name", "node-a", "--kubeconfig", str(path), "--context", "admin"]
        assert cli.main(["agent", *options]) == 0

        view = Started.join(Metrics(), Signals())
        with running_all(view):
            eventually(lambda: view.labels() == {"nodeType": "dpdk"}, "the node's labels")


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ([], set()),
        (["--node-topology", "zones"], {"topology"}),
        (["--write-resource-status"], {"pod_annotations"}),
        (["--resource-plugins", "--write-node-resources"], {"node_status"}),
    ],
)
def test_only_what_is_set_is_written_for_others(options: list[str], written: set[str]) -> None:
    plugins = settings(*options).plugins
    view = Started.join(Metrics(), Signals())
    writers = {
        "topology": view.topology,
        "pod_annotations": view.pod_annotations,
        "node_status": view.node_status,
    }
    assert {name for name, writer in writers.items() if writer is not None} == written
    assert plugins.of_node is ("node_status" in written)


def test_two_api_servers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ENOUGH, "--context", "admin"]) == 2
    assert "--api-server and --context name two API servers" in capsys.readouterr().err


def test_the_nodes_resources_are_written_only_where_plugins_are_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["agent", "--node-name=a", "--write-node-resources"]) == 2
    assert "add --resource-plugins" in capsys.readouterr().err
