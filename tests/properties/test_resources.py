"""A pod's cpu request is the scheduler's, at the webhook, in the policy and on the node."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.quantity import Quantity
from cpupool.kube import views
from cpupool.manager.manager import Manager
from cpupool.webhook.admission.decision import Denied, admit
from cpupool.webhook.admission.pod_requests import PodRequests
from cpupool.webhook.admission.rules import Rules
from tests.architecture.test_koordinator_policies import CLASSES, PRIORITY, QOS
from tests.machines import Machine
from tests.searching import examples

Body = dict[str, Any]

MACHINE = Machine(sockets=2, cores=16, threads=2)
DEFAULT = Pool.named("default", "0-23,32-55")
POOLS = NodePools.of(DEFAULT, cpu_manager=CPUManager("koordinator", CPUSet.parse("0,32")))
OWNABLE = 46
WHOLE = "owns whole CPUs"

CPU = st.sampled_from(["0", "250m", "500m", "0.75", "1", "1500m", "2", "3.0", "4e0", "17"])
MEMORY = st.sampled_from(["1Gi", "2Gi"])


def amounts(draw: st.DrawFn) -> Body:
    """Draw resources: often equal requests and limits, else any of the four amounts."""
    values = {"cpu": draw(CPU), "memory": draw(MEMORY)}
    shape = draw(st.sampled_from(["equal", "equal", "limits", "requests", "cpu", "any", "none"]))
    if shape == "equal":
        return {"requests": values, "limits": values}
    if shape in {"limits", "requests"}:
        return {shape: values}
    if shape == "cpu":
        return {"limits": {"cpu": values["cpu"]}}
    if shape == "none":
        return {}
    parts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.just(values["cpu"]))
    return {"requests": draw(parts), "limits": draw(parts)}


@st.composite
def pods(draw: st.DrawFn) -> Body:
    """Draw an LSE pod: containers that end, that last, and the pod's own amounts."""
    spec: Body = {
        "containers": [
            {"name": f"app{n}", "resources": amounts(draw)} for n in range(draw(st.integers(1, 3)))
        ]
    }
    kinds = draw(st.lists(st.sampled_from(["", "Always"]), max_size=4))
    if kinds:
        spec["initContainers"] = [
            {"name": f"init{n}", "resources": amounts(draw)}
            | ({"restartPolicy": kind} if kind else {})
            for n, kind in enumerate(kinds)
        ]
    if draw(st.booleans()):
        spec["resources"] = amounts(draw)
    if draw(st.booleans()):
        spec["overhead"] = draw(st.fixed_dictionaries({"memory": MEMORY}, optional={"cpu": CPU}))
    labels = {QOS: "LSE", PRIORITY: "koord-prod"}
    metadata = {"name": "p", "uid": "p-uid", "labels": labels}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


def stored(body: Body) -> Body:
    """Return what the API server makes of a pod: each part gets the requests that it lacks."""
    body = copy.deepcopy(body)
    spec = body["spec"]
    listed = parts(body)
    for one in listed:
        for name, amount in one["resources"].get("limits", {}).items():
            one["resources"].setdefault("requests", {}).setdefault(name, amount)
    own = spec.get("resources") or {}
    for name, amount in own.get("limits", {}).items():
        asked = any(name in one["resources"].get("requests", {}) for one in listed)
        default = f"{most_at_once(body, name)}m" if asked else amount
        own.setdefault("requests", {}).setdefault(name, default)
    return body


def parts(body: Body) -> list[Body]:
    """Return the containers in the order of their start."""
    return [*body["spec"].get("initContainers", []), *body["spec"]["containers"]]


def milli(amount: str) -> int:
    return Quantity.read(amount).milli


def most_at_once(body: Body, name: str) -> int:
    """Play a pod's life: what its containers use together, at the start of each."""
    running, moments = 0, [0]
    for one in parts(body):
        uses = milli(one["resources"].get("requests", {}).get(name, "0"))
        running += uses
        moments.append(running)
        if one["name"].startswith("init") and "restartPolicy" not in one:
            running -= uses
    return max(moments)


def scheduled(body: Body) -> int:
    """Return the cpu that the scheduler counts for a stored pod."""
    spec = body["spec"]
    own = (spec.get("resources") or {}).get("requests", {})
    pod = milli(own["cpu"]) if "cpu" in own else most_at_once(body, "cpu")
    return pod + milli(spec.get("overhead", {}).get("cpu", "0"))


def owned(body: Body) -> int:
    """Return how many CPUs of its own the running pod has on an empty node."""
    ids = [{"name": one["name"], "containerID": "x://" + one["name"]} for one in parts(body)]
    body = {**body, "status": {"containerStatuses": ids}}
    manager = Manager()
    manager.reconfigure(POOLS, TOPOLOGY)
    manager.observe(pods=(views.pod(body, Names()),))
    manager.adopt(())
    return len(manager.snapshot().resolution.grants.cpus)


TOPOLOGY = MACHINE.topology()


def part(name: str, cpu: str, **fields: Any) -> Body:
    return {"name": name, "resources": {"limits": {"cpu": cpu}}, **fields}


def of(*containers: Body, **spec: Any) -> Body:
    labels = {QOS: "LSE", PRIORITY: "koord-prod"}
    metadata = {"name": "p", "uid": "p-uid", "labels": labels}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [*containers], **spec}}


SIDECAR = part("init0", "1", restartPolicy="Always")


@examples(200)
@given(pods())
@example(of(part("a", "1500m"), initContainers=[SIDECAR, part("init1", "2")]))
@example(of(part("a", "500m"), initContainers=[part("init1", "2"), SIDECAR]))
@example(of(part("a", "1"), resources={"limits": {"cpu": "4"}}, overhead={"cpu": "500m"}))
@example(of({"name": "a", "resources": {}}, resources={"limits": {"cpu": "4", "memory": "1Gi"}}))
def test_every_place_counts_the_cpu_that_the_scheduler_counts(body: Body) -> None:
    in_cluster = stored(body)
    counted = scheduled(in_cluster)
    for form in (body, in_cluster):
        assert views.pod(form, Names()).request_milli == counted
        assert PodRequests.read(form, Names()).resources.request_milli == counted

    decisions = [admit(form, Rules(koordinator=True)) for form in (body, in_cluster)]
    refused = [decision.message if isinstance(decision, Denied) else "" for decision in decisions]
    whole = counted > 0 and counted % 1000 == 0
    assert [WHOLE in why for why in refused] == [not whole] * 2
    assert bool(refused[0]) is bool(refused[1]) is bool(CLASSES.denials(object=in_cluster))

    # The node serves equal requests and limits and others alike: only the webhook refuses these.
    has = counted // 1000 if whole and counted // 1000 <= OWNABLE else 0
    assert owned(body) == owned(in_cluster) == has
