from __future__ import annotations

import copy
from typing import Any

import pytest

from cpupool.core.cpu_manager import CPUManager, Eligible
from cpupool.core.names import STATIC_POD_MIRROR, Names
from cpupool.core.pools import NodePools, Pool
from cpupool.webhook.admission.decision import Admitted, admit
from cpupool.webhook.admission.json_patch import patch
from cpupool.webhook.admission.rules import LargestPool, RequiredAgent, Rules, largest_pools
from tests.pods import container, pod, process
from tests.unit.webhook.admission.asked import (
    ANNOTATED,
    LIMITS,
    POOLS,
    RULES,
    SHARED_QUOTAS,
    STARTER,
    UNKNOWN,
    admitted,
    asking,
    denial,
    native,
    only,
    processes,
    warnings,
)

# What a pod becomes.


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(container()), id="no requests"),
        pytest.param(
            pod(container(env=[{"name": "EXCLUSIVE_CPUS", "value": "0"}])), id="variables"
        ),
        pytest.param(pod(container(pools={"exclusive-a": "0"})), id="a request of nothing"),
        pytest.param(pod(container(resources={"limits": {"example.com/x": "1"}})), id="a device"),
        pytest.param({"metadata": None, "spec": None}, id="nulls"),
        pytest.param({}, id="nothing at all"),
        pytest.param(
            pod(container(pools={"exclusive-a": "oops"}))
            | {"metadata": {"annotations": {"kubernetes.io/config.mirror": "abc"}}},
            id="the mirror of a static pod",
        ),
    ],
)
def test_a_pod_that_asks_for_nothing_stays_the_same_object(body: Any) -> None:
    assert admit(body, RULES) == Admitted(body)
    assert admitted(body) is body


@pytest.mark.parametrize(
    ("pools", "rules", "limit"),
    [
        pytest.param({"shared-a": "160"}, RULES, "160m", id="shared: what is requested"),
        pytest.param({"shared-a": "1k"}, RULES, "1000m", id="shared: as the API writes 1000"),
        pytest.param({"shared-a": "100", "shared-b": "60"}, RULES, "160m", id="two shared pools"),
        pytest.param({"exclusive-a": "2"}, RULES, "2100m", id="exclusive: 100m more"),
        pytest.param({"exclusive-a": 2}, UNKNOWN, "2100m", id="a number of YAML"),
        pytest.param({"exclusive-a": "2", "exclusive-b": "1"}, RULES, "3100m", id="two exclusive"),
        pytest.param(
            {"exclusive-a": "2", "shared-a": "100"},
            RULES,
            "5000m",
            id="both: the whole shared pool",
        ),
        pytest.param(
            {"exclusive-a": "2", "shared-a": "1", "shared-b": "1"},
            RULES,
            "6000m",
            id="both of both",
        ),
        pytest.param(
            {"exclusive-a": "2", "shared-a": "100"}, UNKNOWN, None, id="both: unknown size"
        ),
        pytest.param({"exclusive-a": "2"}, SHARED_QUOTAS, None, id="quotas for shared only"),
        pytest.param(
            {"exclusive-a": "2", "shared-a": "1"}, SHARED_QUOTAS, None, id="both of these"
        ),
        pytest.param({"shared-a": "160"}, SHARED_QUOTAS, "160m", id="shared of these"),
    ],
)
@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_the_cpu_limit_is_cpu_poolers_and_the_request_nothing(
    pools: dict[str, str], rules: Rules, limit: str | None, part: str
) -> None:
    body = pod(container("x"))
    body["spec"][part] = [container(pools=pools)]
    resources = only(admitted(body, rules), part)["resources"]
    assert resources["requests"].pop("cpu") == "0m"
    assert resources["limits"].pop("cpu", None) == limit
    assert resources == container(pools=pools)["resources"]


@pytest.mark.parametrize(
    ("pools", "value"),
    [
        ({"exclusive-a": "1"}, "exclusive"),
        ({"shared-a": "1"}, "shared"),
        ({"shared-a": "1", "exclusive-a": "1"}, "exclusive&shared"),
    ],
)
def test_a_container_gets_the_names_of_its_pools(pools: dict[str, str], value: str) -> None:
    variable = {"name": "CPU_POOLS", "value": value}
    assert only(admitted(pod(container(pools=pools))))["env"] == [variable]
    own = {"name": "A", "value": "b"}
    assert only(admitted(pod(container(pools=pools, env=[own]))))["env"] == [own, variable]
    assert only(admitted(pod(container(pools=pools, env=None))))["env"] == [variable]


def test_a_container_with_the_starter_gets_its_name() -> None:
    named = {"name": "CONTAINER_NAME", "value": "main"}
    started = container(pools={"exclusive-a": "1"}, command=["app"])
    assert only(admitted(pod(started)))["env"][1:] == [named]
    listed = pod(container(pools={"exclusive-a": "1"}), processes=processes(process()))
    assert only(admitted(listed))["env"][1:] == [named]

    own = {"name": "CONTAINER_NAME", "value": "mine"}
    assert own in only(admitted(pod({**started, "env": [own]})))["env"]
    assert named not in only(admitted(pod({**started, "env": [own]})))["env"]
    alone = container(pools={"shared-a": "1"}, command=["app"])
    assert named not in only(admitted(pod(alone)))["env"]


def test_a_command_with_exclusive_cpus_is_started_by_the_starter_as_it_is() -> None:
    asked = container(
        pools={"exclusive-a": "1", "shared-a": "1"}, command=["/app", "$(HOME)"], args=["$$", "--"]
    )
    made = only(admitted(pod(asked)))
    assert made["command"] == [STARTER]
    assert made["args"] == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A", "--shared", "shared-a"),
        *("--", "/app", "$(HOME)", "$$", "--"),
    ]


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_an_annotated_container_starts_its_processes_to_the_letter(part: str) -> None:
    listed = processes(process("/app", "$(HOME)"), process("b", pool="shared-a", cpus=50))
    body = pod(processes=[{**listed[0], "supervise": "any"}])
    body["spec"][part] = [container(pools={"exclusive-a": "1", "shared-a": "50"}, args=["x"])]
    made = only(admitted(body), part)
    assert made["command"] == [STARTER]
    assert made["args"] == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A", "--shared", "shared-a", "--supervise", "any"),
        *("--process", "0:CPUPOOL_CPUS_EXCLUSIVE_A:1:2", "/app", "$$(HOME)"),
        *("--process", "1:shared:0:1", "b"),
    ]


def test_where_the_starter_does_not_belong_a_command_stays() -> None:
    shared = container(pools={"shared-a": "1"}, command=["/app"], args=["a"])
    made = only(admitted(pod(shared)))
    assert (made["command"], made["args"]) == (["/app"], ["a"])


def test_exclusive_cpus_without_a_command_are_a_warning() -> None:
    body = pod(container(pools={"exclusive-a": "1"}, args=["a"]))
    assert warnings(body) == (
        (
            "spec.containers[0].command: there is none, so nothing makes the process wait for its"
            " exclusive CPUs; write the image's entry point here"
        ),
    )
    assert "command" not in only(admitted(body))


def test_what_does_not_change_is_the_same_object() -> None:
    body = pod(
        container("a"), container("b", pools={"exclusive-a": "1"}, command=["x"]), volumes=[{}]
    )
    before = copy.deepcopy(body)
    made = admitted(body)
    assert body == before
    assert made["spec"]["volumes"] is body["spec"]["volumes"]
    assert made["spec"]["containers"][0] is body["spec"]["containers"][0]
    assert made["metadata"] is body["metadata"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(container(pools={"exclusive-a": "1"}, command=["x"])), id="a command"),
        pytest.param(pod(container(pools={"shared-a": "1"}, command=["x"])), id="shared"),
        pytest.param(
            pod(
                container(pools={"exclusive-a": "1"}, command=["x"]), processes=processes(process())
            ),
            id="processes",
        ),
        pytest.param(
            pod(container(pools={"exclusive-a": "1"}, command=[STARTER, "--", STARTER, "--", "x"])),
            id="the starter by hand",
        ),
        pytest.param(pod(container(resources=native(2, 4, shared_a="1"))), id="native cpu"),
    ],
)
def test_admitting_the_result_again_changes_nothing(body: Any) -> None:
    once = admitted(body)
    assert admitted(once) == once
    assert patch(once, admitted(once)) == []
    assert not any("cpu of" in warning for warning in warnings(once))


def test_amounts_as_the_api_server_writes_them_are_ours() -> None:
    resources = native("0", "2", exclusive_a="1", shared_b="7")
    assert only(admitted(pod(container(resources=resources))))["resources"] == resources


def test_native_cpu_is_replaced_with_a_warning() -> None:
    body = pod(container(resources=native("500m", 4, shared_a="160")))
    assert only(admitted(body))["resources"] == native("0m", "160m", shared_a="160")
    assert warnings(body) == (
        (
            "spec.containers[0].resources.requests.cpu: the cpu of 500m is replaced by 0m, as"
            " pools are requested, too; remove it"
        ),
        (
            "spec.containers[0].resources.limits.cpu: the cpu of 4 is replaced by 160m, as pools"
            " are requested, too; remove it"
        ),
    )


def test_a_native_limit_goes_where_quotas_are_for_shared_cpus_only() -> None:
    body = pod(container(resources=native(None, "4", exclusive_a="1"), command=["x"]))
    made = only(admitted(body, SHARED_QUOTAS))
    assert made["resources"] == native("0m", None, exclusive_a="1")
    assert "the cpu of 4 is removed" in warnings(body, SHARED_QUOTAS)[0]


def test_a_shared_pool_of_unknown_size_is_a_warning() -> None:
    body = pod(container(pools={"exclusive-a": "1", "shared-a": "1"}, command=["x"]))
    assert warnings(body, UNKNOWN) == (
        (
            "spec.containers[0].resources: it gets no cpu limit, because the webhook does not know"
            " the size of its shared pool; give the webhook the pool files"
        ),
    )


@pytest.mark.parametrize(
    ("pool", "rules", "warned"),
    [
        pytest.param("exclusive-a", RULES, True, id="singleThreaded in every file"),
        pytest.param("exclusive-b", RULES, False, id="multiThreaded in a file"),
        pytest.param("exclusive-a", UNKNOWN, False, id="unknown"),
    ],
)
def test_siblings_that_a_pool_does_not_give_are_a_warning(
    pool: str, rules: Rules, warned: bool
) -> None:
    body = pod(
        container(pools={pool: "2"}),
        processes=processes(process(pool=pool, cpus=3), process(pool=pool)),
    )
    text = (
        f"{ANNOTATED}[0].processes: they have 4 CPUs of {pool} together, which is singleThreaded:"
        " with the 2 that container main requests the process starter fails; request more, or pin"
        " fewer"
    )
    assert warnings(body, rules) == ((text,) if warned else ())


def test_limits_alone_are_requests_too() -> None:
    asked = container(resources={"limits": {"nokia.k8s.io/shared-a": "5"}})
    assert only(admitted(pod(asked)))["resources"] == {
        "requests": {"cpu": "0m"},
        "limits": {"nokia.k8s.io/shared-a": "5", "cpu": "5m"},
    }


@pytest.mark.parametrize("rules", [RULES, UNKNOWN], ids=["pools known", "pools unknown"])
def test_a_device_in_the_domain_is_left_to_its_plugin(rules: Rules) -> None:
    device = {"sriov_vfio_ens1f0": "1", "cpupool2": "lots"}
    asked = pod(container(pools=device, env=[{"name": "EXCLUSIVE_CPUS", "value": "1"}]))
    assert admitted(asked, rules) == asked
    assert warnings(asked, rules) == ()

    beside = only(admitted(pod(container(pools={**device, "shared-a": "5"})), rules))
    assert beside["resources"] == {
        part: {"nokia.k8s.io/shared-a": "5", "cpu": cpu}
        | {f"nokia.k8s.io/{name}": amount for name, amount in device.items()}
        for part, cpu in (("requests", "0m"), ("limits", "5m"))
    }


@pytest.mark.parametrize("rules", [RULES, UNKNOWN], ids=["pools known", "pools unknown"])
@pytest.mark.parametrize("name", ["exlusive-a", "default"])
def test_a_device_with_nearly_a_pools_name_is_a_warning(name: str, rules: Rules) -> None:
    asked = pod(container(pools={name: "1"}))
    assert admitted(asked, rules) == asked
    assert warnings(asked, rules) == (
        (
            f"{LIMITS}[nokia.k8s.io/{name}]: this is taken for another plugin's device, as its name"
            " does not begin with exclusive or shared; correct it if a pool is meant"
        ),
    )


@pytest.mark.parametrize("rules", [RULES, UNKNOWN], ids=["pools known", "pools unknown"])
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nokia.k8.io/exclusive-a", "nokia.k8s.io/exclusive-a"),
        ("nokia.k8s.com/shared-a", "nokia.k8s.io/shared-a"),
        ("workload.openshift.com/enable-shared-cpus", "workload.openshift.io/enable-shared-cpus"),
    ],
)
def test_a_pool_of_nearly_the_domain_is_a_warning(typed: str, meant: str, rules: Rules) -> None:
    asked = pod(container(resources={"limits": {typed: "1"}}))
    assert admitted(asked, rules) == asked
    domain, _, _ = meant.partition("/")
    assert warnings(asked, rules) == (
        (
            f"{LIMITS}[{typed}]: this is taken for another plugin's device, as its domain is not"
            f" {domain}; did you mean {meant}?"
        ),
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nokia.k8s.oi/cpus", "nokia.k8s.io/cpus"),
        ("nokia.k8s.com/cpu-load-balancing", "nokia.k8s.io/cpu-load-balancing"),
        ("nokia.k8s.oi/cpu-notice-seconds", "nokia.k8s.io/cpu-notice-seconds"),
        ("nokia.k8.io/cpu-moves", "nokia.k8s.io/cpu-moves"),
        ("cpu-moves", "nokia.k8s.io/cpu-moves"),
        ("cpupool.io/cpu-moves", "nokia.k8s.io/cpu-moves"),
        ("nokia.k8s.io/cpu-notice-second", "nokia.k8s.io/cpu-notice-seconds"),
        ("nokia.k8s.io/cpumoves", "nokia.k8s.io/cpu-moves"),
        ("nokia.k8s.io/CPU-moves", "nokia.k8s.io/cpu-moves"),
        ("nokia.k8s.io/cpus-chosen", ""),
        ("nokia.k8s.io/cpus-exclusive", ""),
        ("nokia.k8s.io/ipus-x", ""),
        ("cpu-load-balancing.crio.io", ""),
        ("nokia.k8s.oi/other", ""),
        ("example.com/cpus", ""),
        ("cpus", ""),
        ("nokia.k8s.io/cpus-per-container", ""),
    ],
)
def test_an_annotation_that_is_nearly_ours_is_a_warning(typed: str, meant: str) -> None:
    asked = pod(container(pools={"exclusive-a": "1"}))
    asked["metadata"]["annotations"] = {typed: "disable"}
    found = [text for text in warnings(asked, RULES) if "metadata.annotations" in text]
    told = (
        f"metadata.annotations[{typed}]: cpupool does not read this annotation; did you mean"
        f" {meant}?"
    )
    assert found == [told] * bool(meant)


def test_another_domain_has_its_own_names() -> None:
    rules = Rules(Names("example.com"), POOLS)
    assert admitted(pod(container(pools={"exclusive-a": "x"}), processes="]"), rules)
    listed = {"limits": {"example.com/exclusive-z": "1"}}
    assert "exclusive-z" in denial(pod(container(resources=listed)), rules)


def test_without_pool_files_a_pools_name_still_has_its_form() -> None:
    message = denial(pod(container(pools={"shared-": "1"})), UNKNOWN)
    assert (
        message
        == f"{LIMITS}[nokia.k8s.io/shared-]: no pool can have this name; use the name of a pool"
    )


def test_an_unreadable_native_cpu_is_replaced_as_any() -> None:
    body = pod(container(resources=native("0", "lots", shared_a="5")))
    assert only(admitted(body))["resources"] == native("0", "5m", shared_a="5")
    assert "the cpu of lots is replaced by 5m" in warnings(body)[0]


def test_a_body_may_be_as_deep_as_the_json_parser_takes() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = [deep]
    made = admitted({**pod(asking()), "status": deep})
    assert made["status"] is deep
    while deep:
        deep = deep.pop()


def test_a_pool_counts_with_the_file_that_gives_it_most() -> None:
    files = [
        NodePools.of(Pool.named("shared-a", "1-3"), Pool.named("default", "0")),
        NodePools.of(Pool.named("shared-a", "1"), Pool.named("exclusive-a", "2-7")),
        NodePools.of(Pool.named("exclusive-a", "2", multi_threaded=True)),
        NodePools.of(Pool.named("exclusive-a", "3"), Pool.named("exclusive-b", "4")),
    ]
    assert largest_pools(files) == {
        "shared-a": LargestPool(3),
        "exclusive-a": LargestPool(6, multi_threaded=True),
        "exclusive-b": LargestPool(1),
    }


# The runtime creates nothing without the agent.

REQUIRED = "required-plugins.noderesource.dev"
WHOLE = {"cpu": "2", "memory": "1Gi"}


def owning(amounts: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Make a pod of one container with these native limits and requests."""
    resources = {"limits": amounts or WHOLE, "requests": amounts or WHOLE}
    return pod(container(resources=resources), **fields)


def required(
    body: dict[str, Any], which: RequiredAgent, eligible: Eligible = Eligible.POD
) -> str | None:
    rules = Rules(pools=POOLS, required_agent=which, eligible=eligible)
    once = admitted(body, rules)
    assert admitted(once, rules) == once
    annotations = once.get("metadata", {}).get("annotations") or {}
    return annotations.get(REQUIRED)


@pytest.mark.parametrize(
    ("body", "exclusive", "guaranteed"),
    [
        pytest.param(pod(asking()), True, True, id="an exclusive pool"),
        pytest.param(pod(container(pools={"shared-a": "5"})), False, False, id="a shared pool"),
        pytest.param(owning(), False, True, id="whole CPUs"),
        pytest.param(owning({**WHOLE, "cpu": "1500m"}), False, False, id="parts of CPUs"),
        pytest.param(owning({"cpu": "2"}), False, False, id="not Guaranteed"),
        pytest.param(pod(container()), False, False, id="nothing"),
        pytest.param(
            pod(asking(), priorityClassName="system-cluster-critical"), True, True, id="class"
        ),
        pytest.param(
            pod(asking(), priorityClassName="system-node-critical"), False, False, id="of the node"
        ),
        pytest.param(
            owning(priorityClassName="system-node-critical"), False, False, id="whole, of the node"
        ),
    ],
)
def test_pods_with_cpus_of_their_own_require_the_agent(
    body: dict[str, Any], *, exclusive: bool, guaranteed: bool
) -> None:
    assert required(body, RequiredAgent.NONE) is None
    assert required(body, RequiredAgent.EXCLUSIVE) == ('["cpupool"]' if exclusive else None)
    assert required(body, RequiredAgent.GUARANTEED) == ('["cpupool"]' if guaranteed else None)


@pytest.mark.parametrize(
    ("body", "eligible"),
    [
        pytest.param(owning(), True, id="whole CPUs"),
        pytest.param(owning({"cpu": "2"}), True, id="not Guaranteed"),
        pytest.param(owning({"cpu": "1500m"}), False, id="parts of CPUs"),
        pytest.param(
            pod(container(resources={"limits": {"cpu": "3"}, "requests": {"cpu": "2"}})),
            False,
            id="another limit",
        ),
        pytest.param(owning({"cpu": "2"}, resources={"limits": {"cpu": "4"}}), False, id="pod's"),
    ],
)
def test_so_do_pods_with_an_eligible_container(body: dict[str, Any], *, eligible: bool) -> None:
    assert required(body, RequiredAgent.EXCLUSIVE, Eligible.CONTAINER) is None
    guaranteed = required(body, RequiredAgent.GUARANTEED, Eligible.CONTAINER)
    assert guaranteed == ('["cpupool"]' if eligible else None)


@pytest.mark.parametrize(
    ("level", "requires"),
    [
        pytest.param({"limits": {"cpu": "4", "memory": "8Gi"}}, True, id="Guaranteed"),
        pytest.param({"limits": {"cpu": "4"}}, False, id="Burstable"),
    ],
)
def test_so_do_pods_that_may_have_a_bubble(level: dict[str, Any], *, requires: bool) -> None:
    body = pod(container(), resources=level)
    for pod_level in (False, True):
        manager = CPUManager("static", 1, pod_level=pod_level)
        files = [NodePools.of(cpu_manager=each) for each in (CPUManager(), manager)]
        rules = Rules(required_agent=RequiredAgent.GUARANTEED).knowing(files)
        annotations = admitted(body, rules).get("metadata", {}).get("annotations") or {}
        assert (REQUIRED in annotations) == (requires and pod_level)


def test_one_pool_file_with_eligible_containers_is_enough() -> None:
    managers = [CPUManager("static", 1, eligible=each) for each in Eligible]
    files = [NodePools.of(cpu_manager=manager) for manager in (*managers, CPUManager())]
    assert Rules().knowing(files).eligible is Eligible.CONTAINER
    assert Rules().knowing(files[:1]).knowing([]).eligible is Eligible.POD


@pytest.mark.parametrize("key", [REQUIRED, f"{REQUIRED}/pod", f"{REQUIRED}/container.main"])
def test_an_authors_own_list_stays(key: str) -> None:
    body = pod(asking())
    body["metadata"] = {"annotations": {key: "[other]"}}
    made = admitted(body, Rules(pools=POOLS, required_agent=RequiredAgent.EXCLUSIVE))
    assert made["metadata"] == body["metadata"]


def test_a_mirror_of_a_static_pod_and_a_pod_with_resources_of_its_own_require_nothing() -> None:
    mirror, pod_level = owning(), owning()
    mirror["metadata"] = {"annotations": {STATIC_POD_MIRROR: "hash"}}
    pod_level["spec"]["resources"] = {"limits": {"cpu": "4"}}
    assert required(mirror, RequiredAgent.GUARANTEED) is None
    assert required(pod_level, RequiredAgent.GUARANTEED) is None


def test_an_amount_that_cannot_be_read_is_left_to_the_api_server() -> None:
    assert required(owning({"cpu": "two", "memory": "1Gi"}), RequiredAgent.GUARANTEED) is None
