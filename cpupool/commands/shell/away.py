"""The API server's facts about a node and its pods, for commands that do not run on the node.

Only the node itself knows the CPUs of a container. The API server has the container's request, the
node's labels, the pool files, and the agent's Events about the pod. A user who may use the node's
proxy also gets the kubelet's configuration.
"""

from __future__ import annotations

import argparse
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.commands.shell.beside import needs
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.options import typed
from cpupool.commands.shell.reasons import Explanation, amount, pool_facts, system_pods
from cpupool.commands.shell.services import add_kubeconfig, api_server
from cpupool.config import pool_selection, poolconfig, settings
from cpupool.config.poolconfig import Source
from cpupool.config.settings import AgentSettings
from cpupool.core import quantity
from cpupool.core.assignments import Step
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, ManifestError, refuse_errors
from cpupool.core.names import POLICY_CPUS, Names
from cpupool.core.pools import NodePools, PoolKind
from cpupool.host.installed_policies import find_policy
from cpupool.kube import views
from cpupool.kube.client import APIError
from cpupool.kube.config_map import ConfigMapName
from cpupool.kube.connection import APIConnection
from cpupool.kube.node_topology import served
from cpupool.kube.resources import CONFIG_MAPS, EVENTS, NODE_TOPOLOGIES, NODES, PODS
from cpupool.manager.served_requests import outside_pools, together
from cpupool.policies.built_in import kind
from cpupool.wire.json_text import Fields
from cpupool.wire.node_topology import observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cpupool.config.pool_file import PoolFile
    from cpupool.core.errors import Problem
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.kube.resources import APIPath
    from cpupool.kube.views import Body, SentEvent
    from cpupool.wire.node_topology import Observed

OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_PAGE: Final = 500
_ON_NODE: Final = (
    "which of these CPUs it has is known on its node: run `cpupool explain` in the agent's pod"
    " there"
)
_NAMESPACE: Final = "cpupool"
"""The namespace in which the manifests install cpupool."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the API server and the ConfigMap."""
    add_kubeconfig(parser)
    parser.add_argument(
        "--configmap",
        metavar="[NAMESPACE/]NAME",
        type=_config_map,
        default=_config_map(AgentSettings().configmap),
        help="the ConfigMap with the pool files, for --kubeconfig (default: %(default)s)",
    )
    needs(parser, "--configmap --node-name", "--kubeconfig --context")


def is_asked(arguments: argparse.Namespace) -> bool:
    """Return whether the command line names an API server."""
    return bool(arguments.kubeconfig or arguments.context)


def away(arguments: argparse.Namespace) -> Away:
    """Return the API server that the command line names.

    Raises:
        UsageError: it cannot be used.
    """
    server = api_server("", arguments.kubeconfig, arguments.context)
    return Away(APIConnection(server), Names(arguments.resource_domain), arguments.configmap)


def _config_map(text: str) -> ConfigMapName:
    namespace, _, name = typed(settings.config_map)(text).rpartition("/")
    if not name:
        raise argparse.ArgumentTypeError("no ConfigMap is named; write NAMESPACE/NAME")
    return ConfigMapName(namespace or _NAMESPACE, name)


@dataclass(frozen=True, slots=True)
class Away:
    """The facts about pods that an API server has.

    Attributes:
        connection: asks it.
        names: the public strings, with the resource domain.
        config_map: the ConfigMap with the pool files.
    """

    connection: APIConnection
    names: Names
    config_map: ConfigMapName

    def explain(self, asked: str) -> tuple[Explanation, ...]:
        """Explain a container, or each container of a pod, as far as the API server knows.

        Args:
            asked: `POD`, `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`.

        Raises:
            UsageError: there is no such pod or container, several pods have the name, or the pool
                files cannot be used.
            APIError: the API server does not answer, or refuses.
            ManifestError: it shows something that cannot be read.
        """
        body = self._pod(asked)
        pod = views.pod(body, self.names)
        wanted = asked.split("/")[2:]
        containers = [found for found in pod.containers if not wanted or [found.name] == wanted]
        if not containers:
            has = ", ".join(found.name for found in pod.containers)
            raise UsageError(
                f"{pod.namespace}/{pod.name} has no container {wanted[0]!r}; use {has}"
            )
        node = views.node_name(body)
        file = self._pool_file(node) if node else None
        where = self._where(node, file)
        events = self._events(pod.namespace, pod.uid)
        return tuple(_explanation(pod, found, file, where, events) for found in containers)

    def labels(self, node: str) -> Mapping[str, str]:
        """Return a node's labels.

        Raises:
            UsageError: there is no such node.
            APIError: the API server does not answer, or refuses.
        """
        return views.node(self._node(node)).labels

    def kubelet_version(self, node: str) -> str:
        """Return the version of a node's kubelet, as `v1.33.2`.

        Raises:
            UsageError: there is no such node.
            APIError: the API server does not answer, or refuses.
        """
        info = Fields.of(self._node(node)).within("status").within("nodeInfo")
        return info.get("kubeletVersion", str)

    def kubelet_cpus(self, node: str) -> int | None:
        """Return how many CPUs a node's kubelet counts; None if it has not reported it.

        Raises:
            UsageError: there is no such node.
            APIError: the API server does not answer, or refuses.
            QuantityError: the number is none.
        """
        text = Fields.of(self._node(node)).within("status").within("capacity").get("cpu", str, "")
        return int(quantity.parse(text)) if text else None

    def pool_files(self) -> dict[str, bytes]:
        """Return the texts of the pool files by name.

        Raises:
            UsageError: there is no such ConfigMap.
            APIError: the API server does not answer, or refuses.
        """
        held = self.config_map
        path = CONFIG_MAPS.object(held.name, held.namespace)
        shown = views.config_map(
            self._existing(path, f"ConfigMap {held}", "kubectl get configmaps -A")
        )
        return {name: text for name, text in shown.items() if poolconfig.is_pool_file(name)}

    def kubelet_configuration(self, node: str) -> Body:
        """Return the answer of a node's kubelet about its configuration.

        Raises:
            APIError: the API server or the kubelet does not answer, or refuses.
        """
        return self.connection.get(NODES.object(node, subresource="proxy/configz"))

    def node_topology(self, node: str) -> tuple[str, Observed | None]:
        """Return the version of a node's NodeResourceTopology, and the object if there is one.

        The version is empty where the API server serves none.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        version = served(self.connection)
        if not version:
            return "", None
        try:
            body = self.connection.get(NODE_TOPOLOGIES[version].object(node))
        except APIError as error:
            if error.status != 404:
                raise
            return version, None
        return version, observed(body)

    def pods(self, node: str) -> Sequence[Body]:
        """Return the pods of a node.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return objects(self.connection, PODS.collection(), fields=f"spec.nodeName={node}")

    def _node(self, name: str) -> Body:
        return self._existing(NODES.object(name), f"node {name}", "kubectl get nodes")

    def _existing(self, path: APIPath, title: str, command: str) -> Body:
        try:
            return self.connection.get(path)
        except APIError as error:
            if error.status != 404:
                raise
            raise absent(title, command) from error

    def _pod(self, asked: str) -> Body:
        parts = asked.split("/")
        if not all(map(OBJECT_NAME.fullmatch, parts)) or len(parts) > 3:
            raise UsageError(f"{asked!r} names no pod; write NAMESPACE/POD[/CONTAINER]")
        namespace, name = parts[:2] if len(parts) > 1 else ("", asked)
        title, command = f"pod {asked!r} in this cluster", "kubectl get pods -A"
        if namespace:
            return self._existing(PODS.object(name, namespace), title, command)
        found = objects(self.connection, PODS.collection(), fields=f"metadata.name={name}")
        if len(found) == 1:
            return found[0]
        if not found:
            raise absent(title, command)
        pods = ", ".join(map("/".join, map(object_name, found)))
        raise UsageError(f"{asked!r} is the name of several pods; say which: {pods}")

    def _pool_file(self, node: str) -> PoolFile | None:
        labels = self.labels(node)
        found = itertools.starmap(Source.of, sorted(self.pool_files().items()))
        problems: list[Problem] = []
        try:
            files = poolconfig.parse_all(found, self.names, problems, find_policy=find_policy)
            refuse_errors(problems)
            return pool_selection.select(files, labels)
        except ConfigError as error:
            raise UsageError(error) from error

    def _where(self, node: str, file: PoolFile | None) -> str:
        if not node:
            return "it is on no node yet; see `kubectl describe pod`"
        if file is None:
            return f"it is on {node}, for whose labels {self.config_map} has no pool file"
        return f"it is on {node}, whose labels choose {file.name} of {self.config_map}"

    def _events(self, namespace: str, uid: str) -> Sequence[SentEvent]:
        about = f"involvedObject.uid={uid}"
        bodies = objects(self.connection, EVENTS.collection(namespace), fields=about)
        events = filter(None, map(views.sent_event, bodies))
        return sorted(events, key=lambda event: event.at)


def objects(
    connection: APIConnection, collection: APIPath, *, fields: str = "", labels: str = ""
) -> Sequence[Body]:
    """Return the objects of a collection that have these fields and labels, one page at most.

    Raises:
        APIError: the API server does not answer, or refuses.
        ManifestError: it shows no list.
    """
    asked = {"fieldSelector": fields, "labelSelector": labels, "limit": str(_PAGE)}
    page = connection.page(collection, {key: value for key, value in asked.items() if value})
    items = page.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ManifestError(collection.resource, "items", "is no list of objects")
    return items


def object_name(body: Body) -> tuple[str, str]:
    """Return the namespace, empty for an object of none, and the name of an object.

    Raises:
        JSONRefused: it has none.
    """
    metadata = Fields.of(body).within("metadata")
    return metadata.get("namespace", str, ""), metadata.get("name", str)


def absent(title: str, command: str, near: Sequence[str] = ()) -> UsageError:
    """Return the error for an object that the API server does not have.

    Args:
        title: the object.
        command: shows the objects that there are.
        near: names that may be meant.
    """
    hint = f"did you mean {' or '.join(near)}? Else " if near else ""
    return UsageError(f"there is no {title}; {hint}look at `{command}`")


def _explanation(
    pod: Pod,
    container: Container,
    file: PoolFile | None,
    where: str,
    events: Sequence[SentEvent],
) -> Explanation:
    pools = file.pools if file else NodePools.of()
    requests = container.requests
    if own := _own(pools, pod, container):
        requests = {POLICY_CPUS: own, **requests}
    missing = [resource for resource in container.requests if pools.behind(resource) is None]
    behind = [
        *map(pools.behind, container.requests),
        *(pools.of_kind(PoolKind.DEFAULT) if own or not requests else ()),
    ]
    cpus = CPUSet.union(pool.cpus for pool in behind if pool)
    if pod.is_one_of(pools.cpu_manager.system_pods):
        cpus = pools.cpu_manager.system_pods.cpus
    steps = [*_requested(pod, requests, pools, where, cpus)]
    steps += [
        Step("event", f"{event.at}: {event.reason}: {event.message}", cpus) for event in events
    ]
    if requests and not missing:
        steps.append(Step("cpuManager" if own else "devices", _ON_NODE, cpus))
    right = not missing and not any(event.warning for event in events)
    name = f"{pod.namespace}/{pod.name}/{container.name}"
    return Explanation(name, tuple(steps), None, right, cpus)


def _own(pools: NodePools, pod: Pod, container: Container) -> int:
    """Return how many CPUs a container, or its pod, gets of the CPU manager policy."""
    if kind(pools.cpu_manager).reads_classes:
        told = pod.orchestration
        return together(pod) if told and told.owns and not told.fault else 0
    manager = pools.cpu_manager
    if not (manager.chooses and outside_pools(container)) or pod.is_one_of(manager.system_pods):
        return 0
    if _has_bubble(pools, pod):
        return pod.level_cpus if all(map(outside_pools, pod.containers)) else 0
    return manager.eligible.cpus(container) or (container.level_cpus if manager.pod_level else 0)


def _has_bubble(pools: NodePools, pod: Pod) -> bool:
    return pools.cpu_manager.bubbles and pod.level_cpus > 0


def _requested(
    pod: Pod, requests: Mapping[Resource, int], pools: NodePools, where: str, cpus: CPUSet
) -> Iterator[Step]:
    if not requests:
        why = "it requests no pool, so it runs on the default pool"
        if pod.is_one_of(pools.cpu_manager.system_pods):
            why = f"it requests no pool, and {system_pods(pools.cpu_manager)}"
        yield Step("request", why, cpus)
        yield Step("node", where, cpus)
        return
    as_whole = kind(pools.cpu_manager).reads_classes or _has_bubble(pools, pod)
    named = " and ".join(
        f"{many} whole CPUs for its pod"
        if as_whole and resource == POLICY_CPUS
        else amount(resource, many, pod.qos.value if pod.qos else "")
        for resource, many in requests.items()
    )
    yield Step("request", f"it requests {named}", cpus)
    yield Step("node", where, cpus)
    for resource in requests:
        pool = pools.behind(resource)
        if resource == POLICY_CPUS:
            why = f"the policy {pools.cpu_manager.named} gives it CPUs of its own"
            yield Step("cpuManager", why, cpus)
        elif pool is None:
            yield Step("pool", f"this node has no pool {resource}", CPUSet())
        else:
            yield Step("pool", ", ".join(pool_facts(resource, pool)), pool.cpus)
