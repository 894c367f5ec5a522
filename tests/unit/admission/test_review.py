"""Admission: every rule of the contract with its message, and what a pod becomes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from cpupool.admission.decision import Admitted, Denied, admit, admit_update
from cpupool.admission.review import answer, patch
from cpupool.admission.rules import CFSQuotas, LargestPool, Rules, largest_pools
from cpupool.core.errors import ManifestError, RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from tests.pods import ANNOTATION, container, pod, process, review, stored

POOLS = {
    "exclusive-a": LargestPool(6),
    "exclusive-b": LargestPool(2, multi_threaded=True),
    "shared-a": LargestPool(3),
    "shared-b": LargestPool(1),
}
RULES = Rules(pools=POOLS)
UNKNOWN = Rules()
SHARED_QUOTAS = Rules(pools=POOLS, cfs_quotas=CFSQuotas.SHARED)
STARTER = "/opt/cpupool/process-starter"
ANNOTATED = f"metadata.annotations[{ANNOTATION}]"
LIMITS = "spec.containers[0].resources.limits"


def admitted(body: Any, rules: Rules = RULES) -> Any:
    decision = admit(body, rules)
    assert isinstance(decision, Admitted), decision
    return decision.body


def warnings(body: Any, rules: Rules = RULES) -> tuple[str, ...]:
    decision = admit(body, rules)
    assert isinstance(decision, Admitted), decision
    return decision.warnings


def denial(body: Any, rules: Rules = RULES) -> str:
    decision = admit(body, rules)
    assert isinstance(decision, Denied), decision
    return decision.message


def only(body: Any, part: str = "containers") -> dict[str, Any]:
    (one,) = body["spec"][part]
    return dict(one)


def native(requests: Any = None, limits: Any = None, **pools: str) -> dict[str, Any]:
    """Make resources with native cpu beside pools."""
    asked = {f"nokia.k8s.io/{name.replace('_', '-')}": amount for name, amount in pools.items()}
    return {
        "requests": {**asked, **({} if requests is None else {"cpu": requests})},
        "limits": {**asked, **({} if limits is None else {"cpu": limits})},
    }


def processes(*listed: Any, name: str = "main") -> list[dict[str, Any]]:
    return [{"container": name, "processes": listed}]


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
def test_a_container_is_told_which_pools_it_has(pools: dict[str, str], value: str) -> None:
    variable = {"name": "CPU_POOLS", "value": value}
    assert only(admitted(pod(container(pools=pools))))["env"] == [variable]
    own = {"name": "A", "value": "b"}
    assert only(admitted(pod(container(pools=pools, env=[own]))))["env"] == [own, variable]
    assert only(admitted(pod(container(pools=pools, env=None))))["env"] == [variable]


def test_a_container_with_the_starter_is_told_its_name() -> None:
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


def test_what_nobody_asked_to_change_is_the_same_object_and_the_pod_is_left_alone() -> None:
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


# What is refused.


def asking(**fields: Any) -> dict[str, Any]:
    return container(**{"pools": {"exclusive-a": "1"}, "command": ["x"], **fields})


def variable(name: str, **value: Any) -> dict[str, Any]:
    return {"name": name, **value}


def limited(amounts: dict[str, Any], requests: dict[str, Any] | None = None) -> dict[str, Any]:
    named = [
        {f"nokia.k8s.io/{pool}": amount for pool, amount in one.items()}
        for one in (amounts, amounts if requests is None else requests)
    ]
    return pod(container(command=["x"], resources={"limits": named[0], "requests": named[1]}))


BOTH = {"exclusive-a": "2", "shared-a": "100"}
DENIALS = [
    pytest.param(
        limited({}, {"exclusive-a": "2"}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: its limit is missing, its request 2; make both the"
        " same",
        id="no limit",
    ),
    pytest.param(
        limited({"shared-a": "1k"}, {"shared-a": "999"}),
        f"{LIMITS}[nokia.k8s.io/shared-a]: its limit is 1000, its request 999; make both the same",
        id="limit and request differ",
    ),
    pytest.param(
        limited({"exclusive-a": "500m"}, {}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: '500m' is not a quantity: an extended resource is"
        " asked for in whole numbers; an exclusive pool counts cores, a shared one milli-CPUs",
        id="half a core",
    ),
    pytest.param(
        limited({"exclusive-a": "two"}, {}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: 'two' is not a quantity: write a number, as 2, 500m"
        " or 1k; an exclusive pool counts cores, a shared one milli-CPUs",
        id="no quantity",
    ),
    pytest.param(
        limited({"exclusive-a": []}, {}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: 'list' is not a quantity: write a number, as 2, 500m"
        " or 1k; an exclusive pool counts cores, a shared one milli-CPUs",
        id="no text",
    ),
    pytest.param(
        limited({"exclusive-q": "1"}),
        f"{LIMITS}[nokia.k8s.io/exclusive-q]: no pool file has an exclusive or shared pool"
        " exclusive-q; use exclusive-a or exclusive-b or shared-a or shared-b",
        id="an unknown pool",
    ),
    pytest.param(
        limited({"exclusive-a": "1", "shared-q": "5"}),
        f"{LIMITS}[nokia.k8s.io/shared-q]: no pool file has an exclusive or shared pool shared-q;"
        " use exclusive-a or exclusive-b or shared-a or shared-b",
        id="an unknown shared pool, whose size the limit would be made of",
    ),
    pytest.param(
        pod(asking(env=[variable("A"), variable("EXCLUSIVE_CPUS", value="1")])),
        "spec.containers[0].env[1]: EXCLUSIVE_CPUS is set by cpupool alone; remove it",
        id="EXCLUSIVE_CPUS",
    ),
    pytest.param(
        pod(container(env=[variable("SHARED_CPUS", valueFrom={})]), asking()),
        "spec.containers[0].env[0]: SHARED_CPUS is set by cpupool alone; remove it",
        id="SHARED_CPUS of a neighbour",
    ),
    pytest.param(
        pod(asking(), initContainers=[container(env=[variable("CPUPOOL_CPUS_EXCLUSIVE_A")])]),
        "spec.initContainers[0].env[0]: CPUPOOL_CPUS_EXCLUSIVE_A is set by cpupool alone; remove"
        " it",
        id="a pool's variable",
    ),
    pytest.param(
        pod(asking(env=[variable("CPU_POOLS", value="shared")])),
        "spec.containers[0].env[0]: CPU_POOLS is set by cpupool alone, and is 'exclusive' here;"
        " remove it",
        id="another CPU_POOLS",
    ),
    pytest.param(
        pod(asking(env=[variable("CPU_POOLS", valueFrom={"fieldRef": {}})])),
        "spec.containers[0].env[0]: CPU_POOLS is set by cpupool alone, and is 'exclusive' here;"
        " remove it",
        id="CPU_POOLS from elsewhere",
    ),
    pytest.param(
        pod(asking(), container("b", env=[variable("CPU_POOLS", value="exclusive")])),
        "spec.containers[1].env[0]: CPU_POOLS is set by cpupool alone, and is not set here; remove"
        " it",
        id="CPU_POOLS without a pool",
    ),
    pytest.param(
        pod(asking(), resources={"limits": {"cpu": "1"}}),
        "spec.resources.limits.cpu: the pod is limited to 1 cpu, and its container main gets the"
        " limit 1100m for its pools; raise it to 1100m at least, or remove it",
        id="a limit of the whole pod",
    ),
    pytest.param(
        pod(asking(), resources={"limits": {"cpu": "one"}}),
        "spec.resources.limits.cpu: 'one' is not a quantity: write a number, as 2, 500m or 1k;"
        " correct it",
        id="an unreadable limit of the whole pod",
    ),
    pytest.param(
        pod(asking(command=[STARTER], args=["--process", "0:all:0:1", "x"])),
        "spec.containers[0].command: this is the process starter with arguments that admission has"
        " not written; write the application's own command",
        id="the starter without its annotation",
    ),
    pytest.param(
        pod(container(), processes="[}"),
        f"{ANNOTATED}: this is not JSON: Expecting value: line 1 column 2 (char 1); correct it",
        id="an annotation that is no JSON",
    ),
    pytest.param(
        pod(asking(), processes=[]),
        f"{ANNOTATED}: it names no container; name one, or remove the annotation",
        id="an annotation for nothing",
    ),
    pytest.param(
        pod(asking(), processes=processes(process(), name="other")),
        f"{ANNOTATED}[0].container: the pod has no container or init container other; correct the"
        " name",
        id="no such container",
    ),
    pytest.param(
        pod(asking(), container("b"), processes=processes(process(), name="b")),
        f"{ANNOTATED}[0]: container b requests no exclusive or shared pool; request the pools of"
        " its processes",
        id="no requests",
    ),
    pytest.param(
        pod(asking(), processes=processes(process(), process(pool="shared-a"))),
        f"{ANNOTATED}[0].processes[1].pool: container main does not request shared-a; request it,"
        " or use exclusive-a",
        id="a pool that is not requested",
    ),
    pytest.param(
        pod(
            asking(pools=BOTH),
            processes=processes(*[process(pool="shared-a", cpus=cpus) for cpus in (60, 41)]),
        ),
        f"{ANNOTATED}[0].processes: they have 101 milli-CPUs of shared-a together, and container"
        " main requests 100; make both the same",
        id="too much shared",
    ),
    pytest.param(
        pod(asking(pools=BOTH), processes=processes(process())),
        f"{ANNOTATED}[0].processes: they have 0 milli-CPUs of shared-a together, and container main"
        " requests 100; make both the same",
        id="nothing shared",
    ),
    pytest.param(
        pod(asking(), processes=processes(process(cpus=1), process(cpus=2))),
        f"{ANNOTATED}[0].processes: they have 3 CPUs of exclusive-a together, and the 1 cores that"
        " container main requests have 2 at most; request more, or pin fewer",
        id="more than twice the exclusive cores",
    ),
    pytest.param(
        pod(
            asking(pools={"exclusive-a": "1", "exclusive-b": "4"}),
            processes=processes(process(cpus=3), process(pool="exclusive-b")),
        ),
        f"{ANNOTATED}[0].processes: they have 3 CPUs of exclusive-a together, and the 1 cores that"
        " container main requests have 2 at most; request more, or pin fewer",
        id="more of one pool than it has, though another has more",
    ),
    pytest.param(
        pod(asking(), processes=processes(process("a", "x" * 131_072))),
        f"{ANNOTATED}[0].processes[0].args[0]: it has 131072 bytes, and the kernel takes arguments"
        " of 131071; shorten it, or pass a file",
        id="an argument too long",
    ),
]


@pytest.mark.parametrize(("body", "message"), DENIALS)
def test_what_is_against_a_rule_is_refused_with_its_place_and_a_remedy(
    body: Any, message: str
) -> None:
    assert denial(body) == message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(asking(env=[variable("CPUPOOL_START_TIMEOUT", value="5")])), id="timeout"),
        pytest.param(pod(asking(env=[variable("CPU_POOLS", value="exclusive")])), id="CPU_POOLS"),
        pytest.param(pod(asking(), resources={"limits": {"cpu": "1100m"}}), id="pod-level limit"),
        pytest.param(pod(asking(), resources={"requests": {"cpu": "1"}}), id="pod-level request"),
        pytest.param(pod(asking(), processes=processes(process(cpus=2))), id="both threads"),
        pytest.param(
            pod(
                asking(pools={"exclusive-a": "1", "exclusive-b": "1"}),
                processes=processes(process(), process(pool="exclusive-b", cpus=2)),
            ),
            id="processes in two exclusive pools",
        ),
        pytest.param(
            pod(
                asking(pools={**BOTH, "exclusive-b": "1"}),
                processes=processes(process(pool="shared-a", cpus=100)),
            ),
            id="two exclusive pools and nothing pinned",
        ),
    ],
)
def test_what_is_just_within_a_rule_is_admitted(body: Any) -> None:
    assert admitted(body)


def test_annotations_beyond_the_apis_limit_are_refused_by_us() -> None:
    body = pod(asking())
    room = 256 * 1024 - len("k")
    body["metadata"]["annotations"] = {"k": "é" * (room // 2) + "x" * (room % 2)}
    assert admitted(body)
    body["metadata"]["annotations"]["k"] += "x"
    message = (
        "metadata.annotations: the annotations have 262145 bytes, and Kubernetes takes 262144;"
        " shorten them"
    )
    assert denial(body) == message
    body["metadata"]["annotations"] = {ANNOTATION: "[" * (256 * 1024 + 1 - len(ANNOTATION))}
    assert "nested too deep" in denial(body)
    body["metadata"]["annotations"] = {ANNOTATION: "[" * (256 * 1024 + 1)}
    assert denial(body) == message.replace("262145", "262162")


def test_an_annotation_of_nothing_but_mistakes_is_refused() -> None:
    text = f"[{'{},' * 80_000}{{}}]"
    assert denial(pod(asking(), processes=text)).startswith("160002 problems:\n1. ")


def test_a_message_names_eight_pools() -> None:
    rules = Rules(pools={f"shared-{number}": LargestPool(1) for number in range(10)})
    assert denial(pod(asking()), rules).endswith(
        "shared-4 or shared-5 or shared-6 or shared-7 or one of 2 others"
    )


def test_all_problems_are_in_one_message() -> None:
    body = pod(
        container(
            "a",
            pools={"exclusive-a": "1.5"},
            env=[variable("SHARED_CPUS"), variable("CPU_POOLS", value="exclusive")],
        ),
        container("b", pools={"shared-q": "5"}),
        processes=[*processes(process(), name="a"), {"container": "c"}],
    )
    assert denial(body).splitlines() == [
        "4 problems:",
        (
            f"1. {LIMITS}[nokia.k8s.io/exclusive-a]: '1.5' is not a quantity: an extended resource"
            " is asked for in whole numbers; an exclusive pool counts cores, a shared one"
            " milli-CPUs"
        ),
        f"2. {ANNOTATED}[1].processes: there is no process; list at least one",
        "3. spec.containers[0].env[0]: SHARED_CPUS is set by cpupool alone; remove it",
        (
            "4. spec.containers[1].resources.limits[nokia.k8s.io/shared-q]: no pool file has an"
            " exclusive or shared pool shared-q; use exclusive-a or exclusive-b or shared-a or"
            " shared-b"
        ),
    ]


def test_a_message_shows_twenty_problems() -> None:
    lines = denial(pod(asking(), processes=[{}] * 30)).splitlines()
    assert (lines[0], len(lines), lines[-1]) == ("60 problems:", 22, "and 40 more")


def test_warnings_are_as_short_and_few_as_the_api_passes_on() -> None:
    names = Names("d" * 190 + ".io")
    body = pod(asking(resources={"limits": {names.resource("exclusive-a"): 1}}))
    unknown = {f"{place:063}": 1 for place in range(30)}
    text = json.dumps([{**processes(process())[0], **unknown}])
    body["metadata"]["annotations"] = {names.processes: text}
    found = warnings(body, Rules(names))
    assert len(found) == 16
    assert {len(warning) for warning in found} == {256}
    assert all(warning.endswith("...") for warning in found)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "there is no pod"),
        ([], "not an object"),
        ({"spec": []}, "spec: this is not an object"),
        ({"spec": {"containers": {}}}, "spec.containers: this is not a list"),
        ({"spec": {"containers": [1]}}, r"spec.containers\[0\]: this is not an object"),
        ({"metadata": {"annotations": {"a": 1}}}, r"annotations\[a\]: this is not text"),
        (pod(container(command="x")), r"\[0\].command: this is not a list"),
        (pod(container(args=[1])), r"\[0\].args\[0\]: this is not text"),
        (pod(container(env=[1])), r"\[0\].env\[0\]: this is not an object"),
        (pod(container(env=[{"name": 1}])), r"\[0\].env\[0\].name: this is not text"),
        (pod(container(resources={"limits": {1: 2}})), "not an object with texts for keys"),
        (pod(asking(), resources=[]), "spec.resources: this is not an object"),
    ],
)
def test_what_is_no_pod_is_told_with_its_place(body: Any, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        admit(body, RULES)
    response = answer(review(body), RULES)["response"]
    assert not response["allowed"]


# Updates.


def test_an_update_is_refused_for_what_it_brings_only() -> None:
    bad = pod(asking(env=[variable("SHARED_CPUS")]))
    labelled = {**bad, "metadata": {**bad["metadata"], "labels": {"a": "b"}}}
    assert admit_update(labelled, bad, RULES) == Admitted(labelled)

    debugger = container("debug", env=[variable("EXCLUSIVE_CPUS")])
    debugged = {**bad, "spec": {**bad["spec"], "ephemeralContainers": [debugger]}}
    decision = admit_update(debugged, bad, RULES)
    assert isinstance(decision, Denied)
    assert decision.message == (
        "spec.ephemeralContainers[0].env[0]: EXCLUSIVE_CPUS is set by cpupool alone; remove it"
    )


def test_an_update_completes_nothing_and_tells_that_processes_stay() -> None:
    old = pod(asking(), processes=processes(process("a")))
    new = pod(asking(), processes=processes(process("b")))
    assert admit_update(new, old, RULES) == Admitted(
        new, (f"{ANNOTATED}: read when a pod is created; create this one anew",)
    )
    assert admit_update(old, old, RULES) == Admitted(old)


def test_the_annotation_may_go_that_a_command_was_compiled_from() -> None:
    admitted = admit(pod(asking(), processes=processes(process("a"))), RULES)
    assert isinstance(admitted, Admitted)
    bare = {**admitted.body, "metadata": {**admitted.body["metadata"], "annotations": {"a": "b"}}}
    decision = admit_update(bare, admitted.body, RULES)
    assert isinstance(decision, Admitted)
    assert decision.body == bare


# The envelope.


def response_to(document: Any, **options: bool) -> dict[str, Any]:
    reviewed = answer(document, RULES, **options)
    response = reviewed.pop("response")
    assert reviewed == {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    assert response.pop("uid") == "u-1"
    return dict(json.loads(json.dumps(response)))


def test_the_patch_leads_to_what_admission_made() -> None:
    body = pod(
        asking(env=[variable("A/~")], resources=native(1, 4, exclusive_a="1")),
        container("b", pools={"shared-a": "5"}),
        container("c"),
        initContainers=[asking()],
    )
    response = response_to(review(body))
    assert response.pop("warnings")
    assert stored(body, response) == admitted(body) != body
    assert response.keys() == {"allowed", "patchType", "patch"}


def test_a_pod_that_asks_for_nothing_gets_no_patch() -> None:
    assert response_to(review(pod(container()))) == {"allowed": True}


def test_a_webhook_that_only_checks_sends_no_patch() -> None:
    assert response_to(review(pod(asking())), mutate=False) == {"allowed": True}
    assert not response_to(review(limited({"exclusive-a": "x"})), mutate=False)["allowed"]


def test_a_denial_is_a_status_of_kubernetes() -> None:
    body, message = DENIALS[0].values
    assert response_to(review(body)) == {
        "allowed": False,
        "status": {"code": 422, "reason": "Invalid", "message": message},
    }


BAD = limited({"exclusive-a": "x"})


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(review(None, "DELETE", old=BAD), id="deleting"),
        pytest.param(review(BAD, "CONNECT"), id="connecting"),
        pytest.param(review(BAD, subResource="binding"), id="binding"),
        pytest.param(review(BAD, "UPDATE", subResource="status"), id="the kubelet's status"),
        pytest.param(review(BAD, kind={"group": "", "kind": "Node"}), id="another kind"),
        pytest.param(review(BAD, kind={"group": "x", "kind": "Pod"}), id="another group"),
        pytest.param(review(BAD, kind=None), id="no kind"),
        pytest.param(review(BAD, "UPDATE", old=BAD), id="an update of the same"),
    ],
)
def test_other_requests_are_let_through(document: Any) -> None:
    assert response_to(document) == {"allowed": True}


@pytest.mark.parametrize("subresource", ["", "ephemeralcontainers"])
def test_updates_are_checked(subresource: str) -> None:
    document = review(BAD, "UPDATE", old=pod(container()), subResource=subresource)
    assert not response_to(document)["allowed"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "no AdmissionReview of admission.k8s.io/v1"),
        ([], "no AdmissionReview"),
        ({"kind": "AdmissionReview"}, "no AdmissionReview"),
        (review({}) | {"apiVersion": "admission.k8s.io/v1beta1"}, "admissionReviewVersions"),
        (review({}) | {"request": None}, "no request with a uid"),
        (review({}, uid=1), "no request with a uid"),
    ],
)
def test_what_is_no_review_is_refused(document: Any, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        answer(document, RULES)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a/~": 1}, {}, [{"op": "remove", "path": "/a~1~0"}]),
        ({}, {"a": None}, [{"op": "add", "path": "/a", "value": None}]),
        ([1, 2], [1], [{"op": "replace", "path": "", "value": [1]}]),
        (["ab", 2], ["ab", 3], [{"op": "replace", "path": "/1", "value": 3}]),
        ([1], [2, 3], [{"op": "replace", "path": "", "value": [2, 3]}]),
        ([1], {}, [{"op": "replace", "path": "", "value": {}}]),
    ],
)
def test_a_patch_says_what_is_different(before: Any, after: Any, changes: Any) -> None:
    assert patch(before, after) == changes
    assert patch(before, copy.deepcopy(before)) == []


def test_an_amount_that_is_replaced_stays_in_its_place() -> None:
    amounts = {"cpu": "2", "nokia.k8s.io/exclusive-a": "1", "memory": "1Gi"}
    body = pod(container(command=["app"], resources={"limits": amounts, "requests": amounts}))
    decision = admit(body, Rules())
    assert isinstance(decision, Admitted)
    made = decision.body["spec"]["containers"][0]["resources"]
    assert [list(made[part]) for part in ("limits", "requests")] == [list(amounts)] * 2
