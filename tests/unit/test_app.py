from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool import app
from cpupool.app import Agent, AgentFailed, PodFile, Settings
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, CPUPoolError, HostFileError
from cpupool.core.names import Names
from cpupool.host import files
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.local.cgroups import EmulatedCgroups
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.manager.ports import PodSource
    from cpupool.roles.cpusetter import SweepReport
    from tests.machines import WrittenMachine

POOLS = "pools:\n  exclusive_a: {cpus: '4'}\n  default: {cpus: 0-1}\n"
UID = "1b2c3d4e-0000-1111-2222-333344445555"
POD = f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
ID = "ab" * 32
CONTAINER = f"{POD}/cri-containerd-{ID}.scope"


class TestSupervise:
    def test_a_loop_that_fails_ends_the_others_and_is_named(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        woken = threading.Event()
        ended = threading.Event()

        def failing(_stop: threading.Event) -> None:
            raise HostFileError("/sys", "gone", "mount it")

        def other(stop: threading.Event) -> None:
            if woken.wait(DEADLINE_S) and stop.is_set():
                ended.set()

        with pytest.raises(AgentFailed, match=r"the failing one stopped: .*/sys.*gone"):
            app.supervise({"other": other, "failing one": failing}, threading.Event(), woken.set)

        assert ended.is_set()
        assert "loop failed name=failing one" in caplog.text

    def test_loops_that_are_stopped_end_without_an_error(self) -> None:
        stop = threading.Event()
        started = threading.Semaphore(0)

        def loop(stop: threading.Event) -> None:
            started.release()
            stop.wait(DEADLINE_S)

        def stop_both() -> None:
            assert started.acquire(timeout=DEADLINE_S)
            assert started.acquire(timeout=DEADLINE_S)
            stop.set()

        stopper = threading.Thread(target=stop_both)
        stopper.start()
        app.supervise({"one": loop, "two": loop}, stop, lambda: None)
        stopper.join(DEADLINE_S)

        assert stop.is_set()


class TestPodFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "pods.json"
        publish(path, "first")
        return path

    def test_a_file_that_changes_is_read_again(self, path: Path) -> None:
        source = PodFile(path, Names())
        assert names_in(source) == ["first"]

        publish(path, "first", "second")

        assert names_in(source) == ["first", "second"]

    def test_an_odd_pod_hides_no_other_and_is_told_once_per_change(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(path, "", "second")
        source = PodFile(path, Names())

        assert [names_in(source), names_in(source)] == [["second"], ["second"]]

        assert caplog.text.count("pod cannot be read") == 1

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(None, id="it is gone"),
            pytest.param(b"\xff\xfe", id="it is no UTF-8"),
            pytest.param(b'{"kind": "PodList", "items": [', id="it is cut off"),
            pytest.param(b'{"kind": "Node", "metadata": {}}', id="it holds something else"),
            pytest.param(b" \n", id="it is empty"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_an_error_until_it_can_again(
        self, path: Path, content: bytes | None
    ) -> None:
        source = PodFile(path, Names())
        source.pods()
        path.unlink()
        if content is not None:
            path.write_bytes(content)

        for _ in range(2):
            with pytest.raises(CPUPoolError):
                source.pods()

        publish(path, "second")
        assert names_in(source) == ["second"]


class TestPoolFiles:
    def test_the_problems_of_all_files_are_told_together(self, tmp_path: Path) -> None:
        for name, cpus in {"a": "5-2", "b": "0-1", "c": "x"}.items():
            (tmp_path / f"poolconfig-{name}.yaml").write_text(
                f"pools: {{default: {{cpus: '{cpus}'}}}}\nnodeSelector: {{n: {name}}}\n"
            )

        with pytest.raises(ConfigError) as raised:
            app.read_pool_files(tmp_path, Names())

        told = [str(problem).split(":")[0] for problem in raised.value.problems]
        assert told == ["poolconfig-a.yaml", "poolconfig-c.yaml"]

    def test_only_pool_files_are_read_in_the_order_of_their_names(self, tmp_path: Path) -> None:
        for name in ("poolconfig-b.yaml", "poolconfig-a.yaml"):
            (tmp_path / name).write_text(POOLS + "nodeSelector: {n: a}\n")
        (tmp_path / "other.yaml").write_text("]")

        found = app.read_pool_files(tmp_path, Names())

        assert [file.name for file in found] == ["poolconfig-a.yaml", "poolconfig-b.yaml"]

    def test_a_folder_that_is_missing_is_told_with_the_option_that_names_it(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(HostFileError, match=r"missing.*--config"):
            app.read_pool_files(tmp_path / "missing", Names())


class World:
    """An agent that sweeps once an hour, on a machine in a folder; no pod runs there."""

    def __init__(self, folder: Path) -> None:
        self.root = HostRoot.under(folder)
        self.machine: WrittenMachine = MACHINES["laptop_4c8t"].write(folder)
        self.place = EmulatedCgroups(folder, self.machine.topology().online, "a test")
        self._config = folder / "etc"
        self._config.mkdir()
        (self._config / "poolconfig-a.yaml").write_text(POOLS + "nodeSelector: {node: a}\n")
        self._swept = threading.Semaphore(0)

    @contextmanager
    def running(self) -> Iterator[Agent]:
        """Run the agent; it has swept once."""
        settings = Settings(self._config, {"node": "a"}, interval_s=3600.0)
        pods: PodSource = PodFile(self.root.kubelet / "pods.json", settings.names)
        publish(self.root.kubelet / "pods.json")
        agent = Agent(settings, self.root, Sysfs.at(self.root.sysfs), pods, self._observe)
        agent.configure()
        stop = threading.Event()
        thread = threading.Thread(target=agent.run, args=(stop,), daemon=True)
        thread.start()
        try:
            self.await_sweep()
            yield agent
        finally:
            stop.set()
            agent.wake()
            thread.join(DEADLINE_S)

    def await_sweep(self) -> None:
        assert self._swept.acquire(timeout=DEADLINE_S), "no sweep"

    def directory(self, path: str) -> Path:
        return self.place.root / "cpuset" / path

    def cpus(self) -> str:
        return (self.directory(CONTAINER) / "cpuset.cpus").read_text().strip()

    def await_cpus(self, expected: str) -> None:
        eventually(lambda: self.cpus() == expected, lambda: f"{expected}, but {self.cpus()}")

    def _observe(self, _report: SweepReport) -> None:
        self._swept.release()


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    made = World(folder)
    made.root.device_plugins.mkdir(parents=True)
    with made.place:
        made.place.make("kubepods.slice")
        yield made


class TestAgent:
    @pytest.mark.parametrize(
        "path",
        [
            pytest.param(POD, id="a pod's slice"),
            pytest.param(f"kubepods.slice/cri-containerd-{ID}.scope", id="containerd's scope"),
            pytest.param(f"kubepods.slice/crio-{ID}.scope", id="CRI-O's scope"),
            pytest.param(f"kubepods.slice/{ID}", id="a plain name"),
        ],
    )
    def test_a_new_cgroup_is_looked_at_at_once(self, world: World, path: str) -> None:
        with world.running():
            world.directory(path).mkdir()
            world.await_sweep()

    def test_a_container_that_somebody_moves_is_moved_back_at_once(self, world: World) -> None:
        world.place.make(CONTAINER)
        with world.running():
            world.await_cpus("0-1")
            (world.directory(CONTAINER) / "cpuset.cpus").write_text("0-7")
            world.await_cpus("0-1")

    def test_a_container_leaves_an_offline_cpu_before_a_sweep_is_due(self, world: World) -> None:
        world.place.make(CONTAINER)
        with world.running():
            world.await_cpus("0-1")
            world.machine.switch_off(CPUSet.of(1))
            world.await_cpus("0")

    def test_a_status_file_that_cannot_be_written_is_told_once_and_costs_nothing(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.place.make(CONTAINER)
        world.root.run.parent.mkdir()
        world.root.run.touch()
        with caplog.at_level(logging.WARNING), world.running() as agent:
            world.await_cpus("0-1")
            for _ in range(2):
                agent.wake()
                world.await_sweep()
            assert caplog.text.count("status file cannot be written") == 1

            world.root.run.unlink()
            agent.wake()
            eventually(world.root.status.exists, "the status file")
        (shown,) = json.loads(world.root.status.read_text())["containers"]
        assert shown["found"] == "0-1"


def publish(path: Path, *pods: str) -> None:
    bodies = [
        {
            "kind": "Pod",
            "metadata": {"namespace": "default", "name": name, "uid": f"{name}-uid"},
            "spec": {"containers": [{"name": "main"}]},
        }
        for name in pods
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path, json.dumps({"kind": "PodList", "items": bodies}).encode())


def names_in(source: PodFile) -> list[str]:
    return [pod.name for pod in source.pods() or ()]


def test_a_loop_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_END_S", 0.05)
    release = threading.Event()
    stop = threading.Event()
    stop.set()

    def sleeper(_stop: threading.Event) -> None:
        release.wait(DEADLINE_S)

    with pytest.raises(AgentFailed, match=r"the sleeper did not end within 0\.05 s"):
        app.supervise({"sleeper": sleeper}, stop, lambda: None)
    release.set()
