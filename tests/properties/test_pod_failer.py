"""Whatever the API server answers in between, each pod that does not fit fails in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hypothesis import given
from hypothesis import strategies as st

from cpupool.agent.pod_failer import PodFailer
from cpupool.core.cpu_manager import CPUManager, Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.kube.client import APIServer
from cpupool.kube.pod_status import PodStatus
from cpupool.manager.manager import Manager
from cpupool.telemetry.health import Health
from tests import builders
from tests.apiserver import FakeAPIServer
from tests.machines import MACHINES
from tests.searching import examples

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

FAIL: Final = CPUManager("static", CPUSet.of(0), on_misfit=Misfit.FAIL)
POOLS: Final = NodePools.of(Pool.named("default", "0-7"), cpu_manager=FAIL)
MINUTE_S: Final = 60.0
REFUSALS: Final = st.tuples(
    st.sampled_from([404, 409, 410, 422, 429, 500, 503]),
    st.integers(1, 6),
    st.sampled_from([{}, {"Retry-After": "3"}, {"Retry-After": "soon"}, {"Retry-After": "9" * 20}]),
    st.sampled_from([None, b"", b"[]", b"\xff", b'{"metadata": 3}', b"<html>"]),
)


def misfit(name: str) -> Pod:
    """Make a pod of nine CPUs that has a sandbox, and no container yet."""
    return builders.pod(name, builders.container(cpu=9000, running=False))


def shown(pod: Pod) -> dict[str, Any]:
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    return {"metadata": metadata, "status": {"phase": "Pending"}}


def failed(api: FakeAPIServer, pod: Pod) -> bool:
    kept = api.kept(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
    return bool(kept["status"]["phase"] == "Failed")


@examples(60)
@given(storm=st.lists(REFUSALS, min_size=1, max_size=8), minutes=st.integers(0, 5))
def test_each_misfit_fails_once_the_api_server_lets_it(
    storm: list[tuple[int, int, dict[str, str], bytes | None]], minutes: int
) -> None:
    pods = [replace(misfit(name), created=name) for name in ("a", "b", "c")]
    manager = Manager()
    manager.reconfigure(POOLS, MACHINES["arm_no_smt"].topology())
    manager.adopt(())
    manager.observe(pods=pods)
    manager.observe_containers(
        RuntimeContainer(ContainerID(f"{pod.name}-box"), pod.cgroup_uid, "default", pod.name)
        for pod in pods
    )
    now_s = 0.0
    with FakeAPIServer() as api:
        api.set_pods(map(shown, pods))
        status = PodStatus(APIServer.at(api.url))
        role = PodFailer(manager, status, after_s=0.0, health=Health(), now_s=lambda: now_s)

        def step() -> float:
            """Let the role write, and the watch show what it wrote."""
            pause_s = role.step()
            manager.observe(pods=[replace(pod, finished=failed(api, pod)) for pod in pods])
            return pause_s

        for code, times, headers, body in storm:
            api.refuse(code, "Refused", times=times, headers=headers, body=body)
            end_s = now_s + minutes * MINUTE_S
            while now_s < end_s:
                now_s += step()
        refused = sum(times for _, times, _, _ in storm)
        while not all(failed(api, pod) for pod in pods):
            assert now_s < (refused + len(storm)) * 10 * MINUTE_S, "it tries no more"
            now_s += step()
        asked = api.count("patch", "pods/status")
        now_s += 10 * MINUTE_S
        step()
        assert api.count("patch", "pods/status") == asked, "a pod that has failed is left alone"
