from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.api import nri_pb2
from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.properties import Properties
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.messages import Configured, Registered, Synchronize, Update
from tests.nri_pods import Container
from tests.nri_runtime import FIRST_EVENTS
from tests.unit.runtime.nri.session.conversation import (
    CONTAINER,
    POD,
    SANDBOX,
    SEEN,
    answer,
    asked,
    request,
    said,
)

if TYPE_CHECKING:
    from cpupool.runtime.nri.session import Session


class TestRegistration:
    def test_the_plugin_says_its_name_and_place_first(self, session: Session) -> None:
        session.register()

        [(call, said_first)] = asked(session).items()
        assert (call, said_first.service, said_first.method) == (
            1,
            "nri.pkg.api.v1alpha1.Runtime",
            "RegisterPlugin",
        )
        assert nri_pb2.RegisterPluginRequest.FromString(
            said_first.payload
        ) == nri_pb2.RegisterPluginRequest(plugin_name="cpupool", plugin_idx="10")
        assert session.receive(answer(call)) == [Registered()]

    def test_a_runtime_that_does_not_take_it_ends_the_conversation(self, session: Session) -> None:
        session.register()

        with pytest.raises(RemoteProtocolError, match="does not take the plugin 10-cpupool: no"):
            session.receive(answer(1, error="no"))

    @pytest.mark.parametrize(
        ("version", "may"),
        [
            pytest.param("", True, id="before 0.12 none is told"),
            ("v0.12.0", True),
            ("v0.12.1", False),
            ("0.13.0-rc.1", False),
            ("v1.0.0", False),
            pytest.param("0.0.0-unknown", True, id="the build does not know"),
            ("(devel)", True),
        ],
    )
    def test_a_runtime_tells_by_its_nri_whether_updates_can_lock_it_up(
        self, session: Session, version: str, *, may: bool
    ) -> None:
        configure = nri_pb2.ConfigureRequest(
            runtime_name="containerd", runtime_version="v2.4.0", NRI_version=version
        )
        (configured,) = session.receive(request("Configure", configure))
        assert isinstance(configured, Configured)
        assert (configured.nri, configured.may_lock_up) == (version, may)

    def test_it_subscribes_to_what_every_runtime_knows(self, session: Session) -> None:
        configure = nri_pb2.ConfigureRequest(runtime_name="containerd", runtime_version="v1.7")

        assert session.receive(request("Configure", configure)) == [
            Configured("containerd", "v1.7")
        ]
        events = nri_pb2.ConfigureResponse.FromString(said(session)[1].payload).events
        assert events & ~FIRST_EVENTS == 0
        for needed in (
            nri_pb2.RUN_POD_SANDBOX,
            nri_pb2.REMOVE_POD_SANDBOX,
            nri_pb2.CREATE_CONTAINER,
            nri_pb2.START_CONTAINER,
            nri_pb2.POST_START_CONTAINER,
            nri_pb2.UPDATE_CONTAINER,
            nri_pb2.STOP_CONTAINER,
            nri_pb2.REMOVE_CONTAINER,
        ):
            assert events & 1 << (needed - 1), nri_pb2.Event.Name(needed)


class TestSynchronize:
    def test_everything_that_runs_is_named_and_corrected(self, session: Session) -> None:
        everything = nri_pb2.SynchronizeRequest(
            pods=[POD.message()], containers=[CONTAINER.message()]
        )

        assert session.receive(request("Synchronize", everything)) == [
            Synchronize(1, (SANDBOX,), (SEEN,))
        ]
        assert session.outgoing() == b""
        session.answer_synchronize(
            1, [Update(ContainerID("c1"), CPUSet.of(2, 3), Properties(bandwidth=Bandwidth(50_000)))]
        )
        [update] = nri_pb2.SynchronizeResponse.FromString(said(session)[1].payload).update
        assert (update.container_id, update.ignore_failure) == ("c1", True)
        assert update.linux.resources.cpu.cpus == "2-3"
        assert update.linux.resources.cpu.quota.value == 50_000
        assert update.linux.resources.cpu.period.value == 100_000

    def test_parts_are_put_together_and_a_container_may_come_before_its_pod(
        self, session: Session
    ) -> None:
        bare = Container(POD, "c2", own_labels=False)
        first = nri_pb2.SynchronizeRequest(containers=[bare.message()], more=True)
        last = nri_pb2.SynchronizeRequest(pods=[POD.message()])

        assert session.receive(request("Synchronize", first)) == []
        assert nri_pb2.SynchronizeResponse.FromString(
            said(session)[1].payload
        ) == nri_pb2.SynchronizeResponse(more=True)
        [whole] = session.receive(request("Synchronize", last, call=3))
        assert isinstance(whole, Synchronize)
        assert [one.known and one.known.pod for one in whole.containers] == [POD.uid]

    def test_a_second_synchronisation_starts_afresh(self, session: Session) -> None:
        full = nri_pb2.SynchronizeRequest(pods=[POD.message()])

        session.receive(request("Synchronize", full))
        assert session.receive(request("Synchronize", nri_pb2.SynchronizeRequest(), call=3)) == [
            Synchronize(3, (), ())
        ]
