"""Which API server and ConfigMap a command follows, and how it is asked to end."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cpupool.commands.shell import services
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.options import add_setting
from cpupool.kube.config_map import ConfigMapName
from tests.kubeconfigs import login
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


def taken(*arguments: str) -> ConfigMapName | None:
    parser = argparse.ArgumentParser()
    add_setting(parser, "configmap")
    return services.config_map(parser.parse_args(arguments).configmap)


def test_the_namespace_is_that_of_the_pod_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "SERVICE_ACCOUNT", tmp_path)
    # Outside a pod nothing is followed unless the namespace is given.
    assert taken() is None
    assert taken("--configmap", "a/b.c") == ConfigMapName("a", "b.c")
    (tmp_path / "namespace").write_text("mine\n")
    assert taken() == ConfigMapName("mine", "cpu-pooler-configmap")
    assert taken("--configmap", "other") == ConfigMapName("mine", "other")
    assert taken("--configmap", "a/b.c") == ConfigMapName("a", "b.c")
    assert taken("--configmap", "") is None


def test_the_own_pod_has_the_name_of_the_host(tmp_path: Path) -> None:
    assert services.own_pod(tmp_path) == "", "no pod"
    (tmp_path / "namespace").write_text("cpupool\n")
    assert services.own_pod(tmp_path) == f"cpupool/{os.uname().nodename}"


@pytest.mark.parametrize("text", ["a/", "/a", "a/b/c", "A", "a,metadata.name=b", "../a", "a b"])
def test_what_is_no_name_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        taken("--configmap", text)
    assert "is no name of a ConfigMap" in capsys.readouterr().err


_INTERRUPTED = """
import signal
from cpupool.commands.shell.services import asked_to_end

stop = asked_to_end()
with stop._cond:
    signal.raise_signal(signal.SIGTERM)
stop.wait()
"""


def test_a_signal_that_comes_while_the_event_is_waited_for_ends_the_wait() -> None:
    # In a process of its own: what fails here waits for itself.
    subprocess.run([sys.executable, "-c", _INTERRUPTED], check=True, timeout=DEADLINE_S)


def test_kubectls_kubeconfig_is_read_where_only_a_context_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with login(folder) as cluster:
        path = cluster.kubeconfig({"a": {"token": "t"}, "b": {"token": "t"}})
        monkeypatch.setenv("KUBECONFIG", str(path))
        assert str(services.api_server("", context="b")) == cluster.server.url

        monkeypatch.delenv("KUBECONFIG")
        monkeypatch.setenv("HOME", str(folder))
        (folder / ".kube").mkdir()
        path.rename(folder / ".kube/config")
        assert str(services.api_server("", context="b")) == cluster.server.url


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("http://127.0.0.1:1", "file"), "--api-server and --kubeconfig name two API servers"),
        (("http://127.0.0.1:1", "", "c"), "--api-server and --context name two API servers"),
        (("", "/gone"), "/gone: no such file; name a kubeconfig"),
        (("",), "KUBERNETES_SERVICE_HOST is not set"),
    ],
)
def test_an_api_server_that_cannot_be_had_is_a_wrong_command_line(
    given: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        services.api_server(*given)
    assert said in str(refused.value)


_WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from cpupool import cli
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("library", "extra", "command"),
    [
        ("kubernetes", "cluster", ["certs", "--namespace", "cpupool", "--kubeconfig", "/gone"]),
        ("kubernetes", "cluster", ["status", "--node", "a", "--kubeconfig", "/gone"]),
        ("grpc", "demo", ["demo"]),
    ],
)
def test_without_the_extra_the_command_says_what_to_install(
    library: str, extra: str, command: list[str]
) -> None:
    # In a process of its own: this one has the library already.
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT, library, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        f"cpupool: {library} is missing; in cpupool's folder: pip install '.[{extra}]'\n"
    )


_IMPORTED = """
import sys
from cpupool import cli
assert cli.main(["agent", "--api-server", "ftp://no", "--node-name", "a"]) == 2
sys.exit("kubernetes" in sys.modules)
"""


def test_the_agent_does_not_import_the_library_unasked() -> None:
    subprocess.run(
        [sys.executable, "-c", _IMPORTED], check=True, capture_output=True, timeout=DEADLINE_S
    )
