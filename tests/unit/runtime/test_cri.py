from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final

import grpc
import pytest

from cpupool.api.cri_pb2 import CONTAINER_EXITED, LinuxContainerResources
from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    ContainerNotFound,
    RemoteProtocolError,
    RuntimeRefused,
    RuntimeSilent,
)
from cpupool.core.names import Names
from cpupool.core.properties import Properties
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.runtime.cri import CRI
from tests import builders
from tests.cri_server import FakeCRI
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAIN = ContainerID("a" * 64)
SIDE = ContainerID("b" * 64)
SANDBOX = ContainerID("c" * 64)
CPUS = CPUSet.parse("2-3")
DEVICES = {"nokia.k8s.io/allocated.exclusive_a": "2-3", "nokia.k8s.io/allocated.shared_b": "0-99"}
SHORT_S = 0.2


@pytest.fixture
def runtime(folder: Path) -> Iterator[FakeCRI]:
    """A runtime with a pod of one container."""
    with FakeCRI(folder / "containerd.sock") as serving:
        serving.add_sandbox(SANDBOX, "web")
        serving.add(MAIN, "web", annotations=DEVICES)
        yield serving


@pytest.fixture
def cri(runtime: FakeCRI) -> CRI:
    return client(runtime)


def client(*runtimes: FakeCRI, timeout_s: float = DEADLINE_S) -> CRI:
    return CRI([one.socket for one in runtimes], Names(), timeout_s=timeout_s)


def main_container() -> RuntimeContainer:
    devices = {
        builders.resource("exclusive_a"): frozenset({"2", "3"}),
        builders.resource("shared_b"): frozenset(map(str, range(100))),
    }
    return RuntimeContainer(MAIN, "uid-of-web", "apps", "web", "main", devices)


def sandbox() -> RuntimeContainer:
    return RuntimeContainer(SANDBOX, "uid-of-web", "apps", "web")


class TestRecognise:
    def test_a_container_tells_its_pod_and_its_devices(self, cri: CRI, runtime: FakeCRI) -> None:
        assert cri.recognise([MAIN]) == (main_container(),)

    def test_of_a_container_without_annotations_of_ours_no_sandbox_is_asked_for(
        self, cri: CRI, runtime: FakeCRI
    ) -> None:
        runtime.add(SIDE, "web", "side", annotations={"example.com/note": "x"})

        assert [one.name for one in cri.recognise([SIDE])] == ["side"]
        assert runtime.calls["ListPodSandbox"] == 0

    def test_what_the_pods_author_wrote_is_no_device(self, cri: CRI, runtime: FakeCRI) -> None:
        forged = {"nokia.k8s.io/allocated.exclusive_a": "2-3"}
        runtime.add_sandbox(SANDBOX, "web", forged)

        (found,) = cri.recognise([MAIN])

        assert set(found.devices) == {"shared_b"}

    def test_without_its_sandbox_a_container_has_no_devices(
        self, cri: CRI, runtime: FakeCRI
    ) -> None:
        runtime.sandboxes.clear()

        (found,) = cri.recognise([MAIN])

        assert (found.name, found.devices) == ("main", {})

    def test_a_sandbox_has_no_name_even_if_its_pod_has_such_a_label(
        self, cri: CRI, runtime: FakeCRI
    ) -> None:
        runtime.sandboxes[SANDBOX].labels["io.kubernetes.container.name"] = "main"

        assert cri.recognise([SANDBOX]) == (sandbox(),)

    def test_what_the_runtime_does_not_know_is_left_out(self, cri: CRI) -> None:
        assert cri.recognise([SIDE, MAIN, "d" * 64]) == (main_container(),)

    def test_the_beginning_of_an_id_is_none(self, cri: CRI) -> None:
        assert cri.recognise([MAIN[:12], SANDBOX[:12]]) == ()

    def test_what_is_not_the_kubelets_is_left_out(self, cri: CRI, runtime: FakeCRI) -> None:
        del runtime.containers[MAIN].labels["io.kubernetes.pod.uid"]

        assert cri.recognise([MAIN]) == ()

    @pytest.mark.parametrize("text", ["", "x", "3-", "1e3", "99999999999", "0-999999999"])
    def test_an_annotation_that_is_no_list_of_devices_counts_as_none(
        self, cri: CRI, runtime: FakeCRI, text: str
    ) -> None:
        runtime.containers[MAIN].annotations["nokia.k8s.io/allocated.exclusive_a"] = text

        (found,) = cri.recognise([MAIN])

        assert set(found.devices) == {"shared_b"}

    def test_about_no_container_nothing_is_asked(self, cri: CRI, runtime: FakeCRI) -> None:
        assert cri.recognise([]) == ()
        assert not runtime.calls

    def test_five_hundred_containers_are_two_calls(self, cri: CRI, runtime: FakeCRI) -> None:
        for number in range(500):
            runtime.add_sandbox(f"{number:064x}", f"pod-{number}")
            runtime.add(f"{1000 + number:064x}", f"pod-{number}", annotations=DEVICES)
        ids = [f"{base + number:064x}" for base in (0, 1000) for number in range(500)]

        found = cri.recognise(ids)

        assert {one.id for one in found} == set(ids)
        assert {one.pod_name for one in found} == {f"pod-{number}" for number in range(500)}
        assert sum(len(one.devices) for one in found) == 1000
        assert (runtime.calls["ListContainers"], runtime.calls["ListPodSandbox"]) == (1, 1)


class TestChosen:
    MADE: Final = {"nokia.k8s.io/cpus-chosen": "2-3"}

    @pytest.mark.parametrize("cpus", ["2-3", "2"])
    def test_the_spec_tells_what_an_agent_chose(
        self, cri: CRI, runtime: FakeCRI, cpus: str
    ) -> None:
        """A CPU that is offline is not in the runtime's list."""
        runtime.add(MAIN, "web", nri_cpus=cpus, nri_annotations=self.MADE)

        assert cri.chosen([MAIN]) == (
            RuntimeContainer(MAIN, "uid-of-web", "apps", "web", "main", chosen=CPUS),
        )

    def test_the_spec_tells_what_a_plugin_gave(self, cri: CRI, runtime: FakeCRI) -> None:
        """A CPU that the runtime's list lacks is offline, or the plugin has taken it."""
        runtime.add(
            MAIN, "web", nri_cpus="2", nri_annotations={"nokia.k8s.io/cpus-answered": "2-3"}
        )

        (known,) = cri.chosen([MAIN])
        assert (known.answered, known.narrowed) == (CPUS, CPUSet.of(3))

    @pytest.mark.parametrize(
        ("cpus", "value"), [("2-4", "2-3"), ("", "2-3"), ("2-3", "x"), ("2-3", "")]
    )
    def test_what_the_runtimes_list_contradicts_does_not_count(
        self, cri: CRI, runtime: FakeCRI, cpus: str, value: str
    ) -> None:
        made = dict.fromkeys(self.MADE, value)
        runtime.add(MAIN, "web", nri_cpus=cpus, nri_annotations=made)

        assert cri.chosen([MAIN]) == ()

    def test_what_the_pods_author_wrote_does_not_count(self, cri: CRI, runtime: FakeCRI) -> None:
        runtime.add_sandbox(SANDBOX, "web", self.MADE)
        runtime.add(MAIN, "web", nri_cpus="2-3", nri_annotations=self.MADE)

        assert cri.chosen([MAIN]) == ()

    def test_without_its_sandbox_or_its_spec_nothing_counts(
        self, cri: CRI, runtime: FakeCRI
    ) -> None:
        runtime.add(MAIN, "web", nri_cpus="2-3", nri_annotations=self.MADE)
        runtime.terse = True
        assert cri.chosen([MAIN]) == ()

        runtime.terse = False
        runtime.sandboxes.clear()
        assert cri.chosen([MAIN]) == ()

    def test_about_no_container_nothing_is_asked(self, cri: CRI, runtime: FakeCRI) -> None:
        assert cri.chosen([]) == ()
        assert not runtime.calls


class TestHeld:
    def test_a_container_without_cpus_has_an_empty_list(self, cri: CRI) -> None:
        assert cri.cpu_list(MAIN) == ""

    @pytest.mark.parametrize("terse", [False, True])
    def test_what_was_set_is_held(self, cri: CRI, runtime: FakeCRI, *, terse: bool) -> None:
        runtime.terse = terse
        cri.update(MAIN, CPUS)

        assert cri.cpu_list(MAIN) == "2-3"

    def test_what_a_plugin_has_set_at_creation_is_held(self, cri: CRI, runtime: FakeCRI) -> None:
        runtime.add(MAIN, "web", nri_cpus="4-5")

        assert cri.cpu_list(MAIN) == "4-5"

    def test_neither_a_sandbox_nor_a_stranger_is_known(self, cri: CRI) -> None:
        assert (cri.cpu_list(SANDBOX), cri.cpu_list(SIDE)) == (None, None)

    def test_a_runtime_that_fails_to_tell(self, cri: CRI, runtime: FakeCRI) -> None:
        runtime.failing["ContainerStatus"] = grpc.StatusCode.INTERNAL

        with pytest.raises(RemoteProtocolError, match=r"ContainerStatus on .* told to fail"):
            cri.cpu_list(MAIN)


class TestUpdate:
    def test_the_runtime_gets_the_cpus(self, cri: CRI, runtime: FakeCRI) -> None:
        cri.update(MAIN, CPUS)

        assert runtime.updates == [(MAIN, "2-3")]
        assert not cri.starting(MAIN)

    def test_each_change_repeats_the_memory_nodes_of_its_container(self, runtime: FakeCRI) -> None:
        memory = {MAIN: CPUSet.of(1)}
        cri = CRI([runtime.socket], Names(), memory=memory, timeout_s=DEADLINE_S)
        cri.update(MAIN, CPUSet.of(2, 3))
        cri.adjust(MAIN, Properties(bandwidth=Bandwidth(50_000)))
        memory.clear()
        cri.update(MAIN, CPUSet.of(2))
        assert runtime.memory == ["1", "1", ""]

    def test_several_callers_run_at_one_time_and_an_error_of_one_is_raised(self, cri: CRI) -> None:
        met = threading.Barrier(2, timeout=DEADLINE_S)

        def meet() -> None:
            met.wait()

        def fail() -> None:
            met.wait()
            raise ZeroDivisionError

        cri.at_once([meet, meet])
        with pytest.raises(ZeroDivisionError):
            cri.at_once([fail, meet])

    def test_no_cpus_are_never_sent(self, cri: CRI, runtime: FakeCRI) -> None:
        with pytest.raises(ValueError, match="on no CPUs"):
            cri.update(MAIN, CPUSet())
        assert not runtime.calls

    @pytest.mark.parametrize("code", [None, grpc.StatusCode.UNKNOWN])
    def test_a_container_that_is_not_there(
        self, cri: CRI, runtime: FakeCRI, code: grpc.StatusCode | None
    ) -> None:
        if code:
            runtime.failing["UpdateContainerResources"] = code

        with pytest.raises(ContainerNotFound, match=SIDE):
            cri.update(SIDE, CPUS)

    def test_a_container_that_has_ended(self, cri: CRI, runtime: FakeCRI) -> None:
        runtime.containers[MAIN].state = CONTAINER_EXITED
        runtime.failing["UpdateContainerResources"] = grpc.StatusCode.UNKNOWN

        with pytest.raises(ContainerNotFound):
            cri.update(MAIN, CPUS)

    def test_a_refusal_says_why(self, cri: CRI, runtime: FakeCRI) -> None:
        runtime.failing["UpdateContainerResources"] = grpc.StatusCode.UNKNOWN

        with pytest.raises(RuntimeRefused, match="told to fail") as caught:
            cri.update(MAIN, CPUS)

        assert (caught.value.container, caught.value.what) == (MAIN, "CPUs 2-3")
        assert cri.connected()

    @pytest.mark.parametrize("quota", [Bandwidth(5_000, 50_000), Bandwidth()])
    def test_a_quota_changes_no_cpus(self, cri: CRI, runtime: FakeCRI, quota: Bandwidth) -> None:
        cri.update(MAIN, CPUS)
        cri.adjust(MAIN, Properties(bandwidth=quota))

        assert runtime.quotas == [(MAIN, quota.quota_us, quota.period_us)]
        assert (runtime.updates, cri.cpu_list(MAIN)) == ([(MAIN, "2-3")], "2-3")

    def test_properties_are_set_and_what_is_not_named_stays(
        self, cri: CRI, runtime: FakeCRI
    ) -> None:
        cri.adjust(MAIN, Properties(512, None, 1 << 30, -1, 5, {"io.weight": "50"}))

        assert runtime.asked == [
            LinuxContainerResources(
                cpu_shares=512,
                memory_limit_in_bytes=1 << 30,
                memory_swap_limit_in_bytes=-1,
                unified={"io.weight": "50"},
            )
        ]

    def test_a_quota_that_is_refused(self, cri: CRI, runtime: FakeCRI) -> None:
        with pytest.raises(ContainerNotFound, match=SIDE):
            cri.adjust(SIDE, Properties(bandwidth=Bandwidth()))
        runtime.failing["UpdateContainerResources"] = grpc.StatusCode.UNKNOWN
        with pytest.raises(RuntimeRefused, match=r"set the CPU quota max 100000: .* told to fail"):
            cri.adjust(MAIN, Properties(bandwidth=Bandwidth()))

    @pytest.mark.parametrize("hangs", [False, True])
    def test_a_runtime_that_does_not_answer(self, runtime: FakeCRI, *, hangs: bool) -> None:
        cri = client(runtime, timeout_s=SHORT_S if hangs else DEADLINE_S)
        eventually(cri.connected, "it answers once")
        if hangs:
            runtime.answers.clear()
        else:
            runtime.stop()

        with pytest.raises(RuntimeSilent, match="hangs" if hangs else "runs and that its folder"):
            cri.update(MAIN, CPUS)

        # It is asked no second question that it does not answer either.
        assert runtime.calls["ContainerStatus"] == 0
        assert not cri.connected()

    @pytest.mark.parametrize("call", ["update", "recognise", "cpu_list"])
    def test_a_runtime_that_hangs_is_left_alone_for_a_while(
        self, runtime: FakeCRI, call: str
    ) -> None:
        now_s = 0.0
        cri = CRI([runtime.socket], Names(), timeout_s=SHORT_S, now_s=lambda: now_s)

        def connects_later() -> bool:
            nonlocal now_s
            now_s += 100.0
            return cri.connected()

        eventually(connects_later, "it answers once")
        runtime.answers.clear()
        arguments = {"update": (MAIN, CPUS), "recognise": ([MAIN],), "cpu_list": (MAIN,)}
        with pytest.raises((RuntimeSilent, RemoteProtocolError)):
            getattr(cri, call)(*arguments[call])

        runtime.answers.set()
        now_s += 9 * SHORT_S
        assert not cri.connected()
        eventually(connects_later, "it is asked again")


class TestConnection:
    def test_the_runtime_tells_its_name_and_version(self, cri: CRI) -> None:
        assert cri.version() == ("containerd", "v2.1.4")

    def test_a_runtime_that_has_been_restarted_is_found_at_once(
        self, cri: CRI, runtime: FakeCRI
    ) -> None:
        assert cri.recognise([MAIN])
        runtime.stop()
        with pytest.raises(RemoteProtocolError):
            cri.recognise([MAIN])

        runtime.start()

        assert cri.recognise([MAIN])

    def test_one_that_is_away_is_asked_for_now_and_then(self, runtime: FakeCRI) -> None:
        now_s = 0.0
        cri = CRI([runtime.socket], Names(), timeout_s=DEADLINE_S, now_s=lambda: now_s)
        runtime.failing["Version"] = grpc.StatusCode.UNAVAILABLE

        assert not cri.connected()
        del runtime.failing["Version"]
        assert not cri.connected()
        assert runtime.calls["Version"] == 1
        now_s = 2.0
        assert cri.connected()
        assert cri.connected()
        assert runtime.calls["Version"] == 2

    def test_one_that_takes_long_is_asked_for_more_seldom(self, runtime: FakeCRI) -> None:
        later_s, looks = 0.0, itertools.count()
        # A second passes between any two looks at the clock, so a call takes one.
        cri = CRI(
            [runtime.socket],
            Names(),
            timeout_s=DEADLINE_S,
            now_s=lambda: later_s + next(looks),
        )
        runtime.failing["Version"] = grpc.StatusCode.UNAVAILABLE

        assert not cri.connected()
        later_s = 8.0
        assert not cri.connected()
        assert runtime.calls["Version"] == 1
        cri.connected()
        assert runtime.calls["Version"] == 2

    def test_the_socket_on_which_a_runtime_answers_is_used(
        self, folder: Path, runtime: FakeCRI
    ) -> None:
        missing, left_over = FakeCRI(folder / "none.sock"), FakeCRI(folder / "old.sock")
        with left_over:
            (folder / "old").hardlink_to(left_over.socket)
        (folder / "old").rename(left_over.socket)
        # The containerd of a Docker host has its CRI service switched off.
        with FakeCRI(folder / "docker.sock") as docker:
            docker.failing["Version"] = grpc.StatusCode.UNIMPLEMENTED

            assert client(missing, left_over, docker, runtime).recognise([MAIN])
            with pytest.raises(RemoteProtocolError, match="switched off"):
                client(docker, left_over).recognise([MAIN])

    def test_without_a_socket_the_remedy_is_reported(self, folder: Path) -> None:
        cri = client(FakeCRI(folder / "none.sock"))

        assert not cri.connected()
        with pytest.raises(RemoteProtocolError, match=r"none\.sock; start .* --cri-socket"):
            cri.cpu_list(MAIN)

    def test_a_socket_out_of_reach_is_dialled_all_the_same(
        self, cri: CRI, runtime: FakeCRI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def is_socket(_path: Path) -> bool:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(type(runtime.socket), "is_socket", is_socket)

        assert cri.connected()
