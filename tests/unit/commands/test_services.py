"""Which ConfigMap a command follows, and how it is asked to end."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cpupool.commands import services
from cpupool.kube.config_map import ConfigMapName
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


def taken(*arguments: str) -> ConfigMapName | None:
    parser = argparse.ArgumentParser()
    services.add_config_map(parser)
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


@pytest.mark.parametrize("text", ["a/", "/a", "a/b/c", "A", "a,metadata.name=b", "../a", "a b"])
def test_what_is_no_name_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        taken("--configmap", text)
    assert "is no name of a ConfigMap" in capsys.readouterr().err


_INTERRUPTED = """
import signal
from cpupool.commands.services import asked_to_end

stop = asked_to_end()
with stop._cond:
    signal.raise_signal(signal.SIGTERM)
stop.wait()
"""


def test_a_signal_that_comes_while_the_event_is_waited_for_ends_the_wait() -> None:
    # In a process of its own: what fails here waits for itself.
    subprocess.run([sys.executable, "-c", _INTERRUPTED], check=True, timeout=DEADLINE_S)
