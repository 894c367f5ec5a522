from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.api import nri_pb2
from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.properties import Properties
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.runtime.nri.messages import (
    Adjustment,
    ContainerState,
    CPUResources,
    CreateContainer,
    NRIContainer,
    SandboxStarted,
    Synchronize,
    Update,
    UpdateContainer,
)
from cpupool.runtime.nri.session import Session
from tests import builders
from tests.nri_pods import Container, Pod
from tests.unit.runtime.nri.session.conversation import (
    CONTAINER,
    CREATE,
    FAILED_PRECONDITION,
    POD,
    SANDBOX,
    SEEN,
    request,
    said,
)


class TestCreateContainer:
    def test_the_container_gets_its_cpus_quota_and_environment(self, session: Session) -> None:
        assert session.receive(request("CreateContainer", CREATE, timeout_ns=2 * 10**9)) == [
            CreateContainer(1, SANDBOX, SEEN, 2.0)
        ]
        session.answer_create(
            1,
            Adjustment(
                CPUSet.of(2, 3),
                {"EXCLUSIVE_CPUS": "2,3"},
                {"nokia.k8s.io/cpus-chosen": "2-3"},
                CPUSet.of(0, 1),
                Properties(bandwidth=Bandwidth(200_000, 50_000)),
            ),
            [Update(ContainerID("c0"), CPUSet.of(4), ignore_failure=False)],
        )

        answered = nri_pb2.CreateContainerResponse.FromString(said(session)[1].payload)
        cpu = answered.adjust.linux.resources.cpu
        assert (cpu.cpus, cpu.quota.value, cpu.period.value) == ("2-3", 200_000, 50_000)
        assert cpu.mems == "0-1"
        assert [(one.key, one.value) for one in answered.adjust.env] == [("EXCLUSIVE_CPUS", "2,3")]
        assert answered.adjust.annotations == {"nokia.k8s.io/cpus-chosen": "2-3"}
        assert not answered.adjust.linux.resources.HasField("memory")
        assert not answered.adjust.linux.HasField("oom_score_adj")
        [other] = answered.update
        assert (other.container_id, other.ignore_failure) == ("c0", False)
        assert other.linux.resources.cpu == nri_pb2.LinuxCPU(cpus="4")

    def test_an_update_repeats_the_memory_nodes_of_a_container(self) -> None:
        memory = {ContainerID("c0"): CPUSet.of(1)}
        session = Session("cpupool", "10", Names(), memory)
        session.receive(request("CreateContainer", CREATE))
        updates = [Update(ContainerID(name), CPUSet.of(4)) for name in ("c0", "c2")]
        session.answer_create(1, None, updates)
        memory[ContainerID("c0")] = CPUSet.of(0)
        session.receive(request("CreateContainer", CREATE, call=3))
        session.answer_create(3, None, updates)

        answers = said(session)
        first, second = (
            nri_pb2.CreateContainerResponse.FromString(answers[number].payload).update
            for number in (1, 3)
        )
        assert [one.linux.resources.cpu.mems for one in first] == ["1", ""]
        assert [one.linux.resources.cpu.mems for one in second] == ["0", ""]

    def test_what_is_not_asked_for_is_not_written(self, session: Session) -> None:
        session.receive(
            request("CreateContainer", CREATE) + request("CreateContainer", CREATE, call=3)
        )

        session.answer_create(1, None)
        session.answer_create(3, Adjustment(CPUSet()), [Update(ContainerID("c0"), CPUSet())])

        answers = said(session)
        assert answers[1].payload == b""
        assert nri_pb2.CreateContainerResponse.FromString(answers[3].payload) == (
            nri_pb2.CreateContainerResponse(
                update=[nri_pb2.ContainerUpdate(container_id="c0", ignore_failure=True)]
            )
        )

    def test_it_can_be_refused_with_the_reason(self, session: Session) -> None:
        session.receive(request("CreateContainer", CREATE))

        session.refuse(1, "its devices are not known yet")

        status = said(session)[1].status
        assert (status.code, status.message) == (
            FAILED_PRECONDITION,
            "cpupool: its devices are not known yet",
        )

    @pytest.mark.parametrize(
        "wrongly",
        [
            lambda session: session.answer_update(1, []),
            lambda session: session.answer_synchronize(1, []),
            lambda session: session.answer_create(3, None),
            lambda session: session.refuse(3, "no"),
        ],
    )
    def test_only_what_waits_can_be_answered(self, session: Session, wrongly: object) -> None:
        assert callable(wrongly)
        session.receive(request("CreateContainer", CREATE))

        with pytest.raises(ValueError, match=r"call \d "):
            wrongly(session)
        assert session.outgoing() == b""
        session.answer_create(1, None)
        with pytest.raises(ValueError, match="call 1 "):
            session.answer_create(1, None)


class TestWhoseContainerItIs:
    def seen(self, session: Session, create: nri_pb2.CreateContainerRequest) -> CreateContainer:
        [message] = session.receive(request("CreateContainer", create))
        assert isinstance(message, CreateContainer)
        return message

    def test_the_pod_is_the_sandboxs_where_the_container_does_not_say(
        self, session: Session
    ) -> None:
        bare = Container(POD, "c1", devices={"exclusive_a": "2"}, own_labels=False)

        known = self.seen(
            session,
            nri_pb2.CreateContainerRequest(pod=POD.message(), container=bare.message()),
        ).container.known

        assert known == RuntimeContainer(
            ContainerID("c1"),
            POD.uid,
            "default",
            "pod",
            "main",
            {builders.resource("exclusive_a"): frozenset("2")},
        )

    def test_what_the_pods_author_wrote_is_no_device(self, session: Session) -> None:
        forged = {"nokia.k8s.io/allocated.exclusive_a": "2"}
        pod = Pod(annotations={**forged, "example.com/note": "x"})
        container = Container(pod, "c1", devices={"exclusive_b": "6"})

        known = self.seen(
            session,
            nri_pb2.CreateContainerRequest(pod=pod.message(), container=container.message()),
        ).container.known

        assert known is not None
        assert known.devices == {"exclusive_b": {"6"}}

    def test_of_a_pod_that_is_not_named_no_annotation_counts(self, session: Session) -> None:
        named = nri_pb2.SynchronizeRequest(containers=[CONTAINER.message()])

        [message] = session.receive(request("Synchronize", named))

        assert isinstance(message, Synchronize)
        [known] = [one.known for one in message.containers]
        assert known is not None
        assert (known.name, known.devices) == ("main", {})

    def test_what_the_kubelet_has_not_labelled_is_not_known(self, session: Session) -> None:
        other = Pod(labelled=False)

        message = self.seen(
            session,
            nri_pb2.CreateContainerRequest(
                pod=other.message(), container=Container(other, "c1").message()
            ),
        )

        assert message.sandbox is None
        assert message.container == NRIContainer(
            ContainerID("c1"), None, CPUResources("", None, None), {}, ContainerState.CREATED
        )

    def test_the_pods_author_cannot_make_a_container_of_its_sandbox(self, session: Session) -> None:
        pod = POD.message()
        pod.labels["io.kubernetes.container.name"] = "main"

        [started] = session.receive(request("RunPodSandbox", nri_pb2.LifecycleEvent(pod=pod)))

        assert started == SandboxStarted(SANDBOX)

    def test_a_state_and_a_variable_of_another_kind_are_taken(self, session: Session) -> None:
        odd = CONTAINER.message()
        odd.state = 77  # type: ignore[assignment]
        odd.env.append("no equals sign")

        container = self.seen(
            session, nri_pb2.CreateContainerRequest(pod=POD.message(), container=odd)
        ).container

        assert container.state is ContainerState.UNKNOWN
        assert set(container.environment) == {"PATH", "OPTIONS"}


class TestChosenCPUs:
    """What an earlier agent wrote on a container comes back with Synchronize."""

    def chosen(self, session: Session, container: Container, *pods: Pod) -> str:
        named = nri_pb2.SynchronizeRequest(
            pods=[pod.message() for pod in pods], containers=[container.message()]
        )
        [message] = session.receive(request("Synchronize", named))
        assert isinstance(message, Synchronize)
        [known] = [one.known for one in message.containers]
        assert known is not None
        return str(known.chosen)

    @pytest.mark.parametrize("own_labels", [True, False])
    @pytest.mark.parametrize("cpus", ["2-3", "3"])
    def test_they_are_read_where_the_runtimes_list_agrees(
        self, session: Session, cpus: str, *, own_labels: bool
    ) -> None:
        container = Container(POD, "c1", cpus=cpus, chosen="2-3", own_labels=own_labels)
        assert self.chosen(session, container, POD) == "2-3"

    @pytest.mark.parametrize(
        ("cpus", "chosen"), [("2-4", "2-3"), ("", "2-3"), ("2-3", "x"), ("2-3", "2-99999999999")]
    )
    def test_they_are_not_where_it_does_not(self, session: Session, cpus: str, chosen: str) -> None:
        assert self.chosen(session, Container(POD, "c1", cpus=cpus, chosen=chosen), POD) == ""

    @pytest.mark.parametrize(
        "chosen",
        [pytest.param("", id="a copy"), pytest.param("2-3", id="a copy that an agent overwrote")],
    )
    def test_what_cri_o_copies_from_the_pod_does_not_count(
        self, session: Session, chosen: str
    ) -> None:
        """CRI-O shows the annotations of a container's OCI spec, which has a copy of its sandbox's
        (cri-o: server/nri-api.go, criContainer.GetAnnotations)."""
        forger = Pod(annotations={"nokia.k8s.io/cpus-chosen": "2-3"})
        container = Container(forger, "c1", cpus="2-3", chosen=chosen)
        assert container.message().annotations["nokia.k8s.io/cpus-chosen"] == "2-3"
        assert self.chosen(session, container, forger) == ""

    def test_of_a_pod_that_is_not_named_they_do_not_count(self, session: Session) -> None:
        assert self.chosen(session, Container(POD, "c1", cpus="2-3", chosen="2-3")) == ""


PARENT = "kubepods.slice/kubepods-pod1.slice"
BURSTABLE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
MOST = 262_144
"""The most shares that the kubelet writes."""


class TestOwnCPUs:
    """How many CPUs of its own a container asks for, by what the kubelet tells the runtime."""

    def owning(self, shares: int, parent: str = PARENT, **fields: object) -> Container:
        container = Container(Pod(cgroup_parent=parent), "c1", shares=shares, oom_score_adj=-997)
        return replace(container, **fields)  # type: ignore[arg-type]

    def seen(self, session: Session, container: Container) -> NRIContainer:
        [message] = session.receive(
            request(
                "CreateContainer",
                nri_pb2.CreateContainerRequest(
                    pod=container.pod.message(), container=container.message()
                ),
            )
        )
        assert isinstance(message, CreateContainer)
        return message.container

    def told(self, session: Session, container: Container) -> int | None:
        known = self.seen(session, container).known
        assert known is not None
        return known.owns

    @pytest.mark.parametrize(
        ("shares", "owns"),
        [(0, None), (2, 0), (1024, 1), (2048, 2), (2560, 0), (255 * 1024, 255)],
    )
    def test_the_kubelet_writes_1024_shares_for_each(
        self, session: Session, shares: int, owns: int | None
    ) -> None:
        assert self.told(session, self.owning(shares)) == owns

    @pytest.mark.parametrize(
        ("quota_us", "owns"),
        [
            pytest.param(25_600_000, 256, id="256 CPUs"),
            pytest.param(30_000_000, 300, id="more CPUs"),
            pytest.param(30_050_000, 0, id="no whole number"),
            pytest.param(-1, None, id="a quota that is lifted"),
            pytest.param(None, None, id="no quota"),
        ],
    )
    def test_the_quota_counts_where_it_cannot_write_more(
        self, session: Session, quota_us: int | None, owns: int | None
    ) -> None:
        assert self.told(session, self.owning(MOST, quota_us=quota_us)) == owns

    @pytest.mark.parametrize(
        "other",
        [
            {"parent": ""},
            {"parent": BURSTABLE},
            {"parent": BURSTABLE.replace("burstable", "besteffort")},
            {"oom_score_adj": 2},
        ],
    )
    def test_only_a_guaranteed_pod_is_waited_for(
        self, session: Session, other: dict[str, object]
    ) -> None:
        container = self.seen(session, self.owning(2048, **other))  # type: ignore[arg-type]
        assert container.known is not None
        # A runtime may keep the score from the plugin, and the agent knows its owners.
        assert (container.known.owns, container.whole_cpus) == (2, 0)

    @pytest.mark.parametrize("parent", [PARENT, BURSTABLE])
    @pytest.mark.parametrize(
        ("quota_us", "period_us", "owns", "equal"),
        [
            pytest.param(200_000, 100_000, 2, 2, id="an equal limit"),
            pytest.param(10_000, 5_000, 2, 2, id="an equal limit, of another period"),
            pytest.param(300_000, 100_000, 0, 0, id="another limit"),
            pytest.param(0, 100_000, 2, 0, id="no limit"),
            pytest.param(0, 0, 2, 2, id="a kubelet without quotas"),
            pytest.param(-1, 100_000, 2, 2, id="a quota that is lifted"),
        ],
    )
    def test_a_container_may_be_eligible_alone(
        self, session: Session, *, parent: str, quota_us: int, period_us: int, owns: int, equal: int
    ) -> None:
        container = self.owning(2048, parent, oom_score_adj=900)
        described = container.message()
        if quota_us:
            described.linux.resources.cpu.quota.value = quota_us
        if period_us:
            described.linux.resources.cpu.period.value = period_us
        create = nri_pb2.CreateContainerRequest(pod=container.pod.message(), container=described)
        [message] = session.receive(request("CreateContainer", create))
        assert isinstance(message, CreateContainer)
        seen = message.container
        assert seen.known is not None
        assert (seen.known.owns, seen.whole_cpus, seen.equal_cpus) == (owns, 0, equal)

    def test_a_static_pod_has_them_and_is_not_waited_for(self, session: Session) -> None:
        pod = Pod(cgroup_parent=PARENT, annotations={"kubernetes.io/config.source": "file"})
        container = self.seen(session, self.owning(2048, pod=pod))
        assert container.known is not None
        assert (container.known.owns, container.whole_cpus, container.equal_cpus) == (2, 0, 0)

    def test_synchronize_tells_it_too(self, session: Session) -> None:
        container = self.owning(2048)
        named = nri_pb2.SynchronizeRequest(
            pods=[container.pod.message()], containers=[container.message()]
        )
        [message] = session.receive(request("Synchronize", named))
        assert isinstance(message, Synchronize)
        assert [one.known.owns for one in message.containers if one.known] == [2]

    @pytest.mark.parametrize(
        ("asked", "owns"),
        [
            pytest.param(nri_pb2.LinuxCPU(), None, id="nothing"),
            pytest.param(nri_pb2.LinuxCPU(shares=nri_pb2.OptionalUInt64()), None, id="zero"),
            pytest.param(
                nri_pb2.LinuxCPU(quota=nri_pb2.OptionalInt64(value=400_000)), None, id="a quota"
            ),
            pytest.param(nri_pb2.LinuxCPU(shares=nri_pb2.OptionalUInt64(value=4096)), 4, id="4"),
            pytest.param(
                nri_pb2.LinuxCPU(shares=nri_pb2.OptionalUInt64(value=1536)), 0, id="no whole one"
            ),
            pytest.param(
                nri_pb2.LinuxCPU(
                    shares=nri_pb2.OptionalUInt64(value=3072),
                    quota=nri_pb2.OptionalInt64(value=300_000),
                    period=nri_pb2.OptionalUInt64(value=100_000),
                ),
                3,
                id="3, with its limit",
            ),
            pytest.param(
                nri_pb2.LinuxCPU(
                    shares=nri_pb2.OptionalUInt64(value=3072),
                    quota=nri_pb2.OptionalInt64(value=400_000),
                ),
                0,
                id="another limit",
            ),
        ],
    )
    def test_an_update_tells_what_the_container_asks_for_then(
        self, session: Session, asked: nri_pb2.LinuxCPU, owns: int | None
    ) -> None:
        container = self.owning(2048)
        resize = nri_pb2.UpdateContainerRequest(
            pod=container.pod.message(), container=container.message()
        )
        resize.linux_resources.cpu.CopyFrom(asked)
        [message] = session.receive(request("UpdateContainer", resize))
        assert isinstance(message, UpdateContainer)
        assert message.container.known is not None
        assert (message.container.known.owns, message.owns) == (2, owns)


class TestUpdateContainer:
    def test_what_is_asked_is_reported_and_can_be_changed(self, session: Session) -> None:
        resize = nri_pb2.UpdateContainerRequest(pod=POD.message(), container=CONTAINER.message())
        resize.linux_resources.cpu.cpus = "0-63"
        resize.linux_resources.cpu.quota.value = -1
        resize.linux_resources.cpu.period.value = 50_000

        assert session.receive(request("UpdateContainer", resize)) == [
            UpdateContainer(1, SEEN, CPUResources("0-63", -1, 50_000))
        ]
        session.answer_update(1, [Update(ContainerID("c1"), CPUSet.of(2))])
        [update] = nri_pb2.UpdateContainerResponse.FromString(said(session)[1].payload).update
        assert update.container_id == "c1"
        assert update.linux.resources.cpu == nri_pb2.LinuxCPU(cpus="2")

    def test_what_is_not_asked_is_not_reported(self, session: Session) -> None:
        [message] = session.receive(
            request(
                "UpdateContainer", nri_pb2.UpdateContainerRequest(container=CONTAINER.message())
            )
        )

        assert isinstance(message, UpdateContainer)
        assert message.asked == CPUResources("", None, None)
