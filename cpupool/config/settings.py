"""The agent's settings: the name, default, parser and help of each, and the file that sets them.

A setting is a flag of `cpupool agent` and a key of its settings file, by the same name. A flag wins
over the file, and the file over the default. Paths are texts here, as the user wrote them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cpupool.config import document
from cpupool.config.document import Origin, Text
from cpupool.config.reader import Reader
from cpupool.core.errors import Problem, refuse_errors
from cpupool.core.names import DEFAULT_DOMAIN, DNS_LABEL, STARTER
from cpupool.core.plugin_facts import ServedAs
from cpupool.core.suggestions import hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SUBDOMAIN: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_CONFIG_MAP: Final = re.compile(rf"({DNS_LABEL.pattern}/)?[a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?")
"""The patterns of Kubernetes (k8s.io/apimachinery/pkg/util/validation)."""
_RESOURCE: Final = r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_RENAMED: Final = (
    rf"(?P<asked>{_RESOURCE})=(?P<served>{_RESOURCE})(:(?P<divisor>[1-9][0-9]{{0,8}}))?"
)
"""Few nodes map a resource: compiled here, the pattern would take 13 ms of every start."""
_OPTION: Final = "option"
_DAY_S: Final = 86_400
_T = TypeVar("_T")


class Publishing(Enum):
    """The extent to which the agent publishes its node's topology."""

    OFF = "off"
    ZONES = "zones"
    """The resources of each NUMA node."""
    KOORDINATOR = "koordinator"
    """The same, with the annotations that Koordinator's scheduler reads."""

    @property
    def annotated(self) -> bool:
        """Whether the agent adds annotations for a scheduler that assigns CPUs."""
        return self is Publishing.KOORDINATOR


class SettingRefused(ValueError):
    """A text that is no value of a setting.

    Attributes:
        what: the fault.
        remedy: what to write instead; empty where `what` says it.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}" if remedy else what)


def seconds(text: str) -> float:
    """Read an interval in seconds.

    Raises:
        SettingRefused: it is no time to wait between two sweeps.
    """
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if 0.1 <= given <= 60:
        return given
    raise SettingRefused(f"{text!r} is not between 0.1 and 60 seconds")


def delay(text: str) -> float:
    """Read a delay in seconds; 0 stands for none.

    Raises:
        SettingRefused: it is no number of seconds up to a day.
    """
    try:
        given = float(text)
    except ValueError:
        given = -1.0
    if 0 <= given <= _DAY_S:
        return given
    raise SettingRefused(f"{text!r} is not between 0 and {_DAY_S} seconds")


def port(text: str) -> int:
    """Read a TCP port; 0 stands for none.

    Raises:
        SettingRefused: it is no port.
    """
    try:
        number = int(text)
    except ValueError:
        number = -1
    if 0 <= number < 2**16:
        return number
    raise SettingRefused(f"{text!r} is no port", "give a number up to 65535, or 0")


def domain(text: str) -> str:
    """Read a resource domain.

    Raises:
        SettingRefused: Kubernetes takes no resource with it.
    """
    if not _SUBDOMAIN.fullmatch(text):
        raise SettingRefused(f"{text!r} is no DNS subdomain", "write it as example.com")
    return text


def config_map(text: str) -> str:
    """Read the name of a ConfigMap, with or without a namespace; empty for none.

    Raises:
        SettingRefused: no ConfigMap can have this name.
    """
    if text and not _CONFIG_MAP.fullmatch(text):
        raise SettingRefused(f"{text!r} is no name of a ConfigMap", "write NAMESPACE/NAME")
    return text


def served_as(text: str) -> dict[str, ServedAs]:
    """Read under which names plugins serve the resources of pods; empty for their own names.

    Raises:
        SettingRefused: it is no such list, or a name in it has two meanings.
    """
    found: dict[str, ServedAs] = {}
    for entry in filter(None, text.split(",")):
        read = re.fullmatch(_RENAMED, entry.strip())
        if read is None:
            raise SettingRefused(
                f"{entry.strip()!r} maps no resource", "write POD=PLUGIN[:DIVISOR]"
            )
        if read["asked"] in found:
            raise SettingRefused(f"{read['asked']} is mapped twice", "keep one of the two")
        found[read["asked"]] = ServedAs(read["served"], int(read["divisor"] or 1))
    for asked, served in found.items():
        own = ServedAs(served.resource)
        if found.get(served.resource, own) != own:
            what = f"{asked} is mapped to {served.resource}, which is mapped, too"
            raise SettingRefused(what, "name the plugin's resource")
    return found


def resource_names(text: str) -> str:
    """Read the text of `served_as`.

    Raises:
        SettingRefused: it is no such list, or a name in it has two meanings.
    """
    served_as(text)
    return text


def switch(text: str) -> bool:
    """Read a switch.

    Raises:
        SettingRefused: it is neither true nor false.
    """
    if text not in {"true", "false"}:
        raise SettingRefused(f"{text!r} is neither true nor false", "write true or false")
    return text == "true"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, as a flag and as a key of the settings file.

    Attributes:
        name: its name for users; the flag has two dashes before it.
        field: its field of `AgentSettings`.
        default: its value where neither a flag nor the file has it.
        help: its effect, with the default.
        metavar: the word that stands for the value in the help.
        parse: reads its value; raises SettingRefused.
        choices: the texts that are values; any where there is none.
        empty: whether the empty text is a value.
    """

    name: str
    field: str
    default: Any
    help: str
    metavar: str | None
    parse: Callable[[str], Any]
    choices: tuple[str, ...]
    empty: bool


def _option(  # the return type is that of the field, as with `field` itself
    name: str,
    default: _T,
    meaning: str,
    *,
    metavar: str | None = None,
    parse: Callable[[str], Any] = str,
    choices: tuple[str, ...] = (),
    empty: bool = False,
) -> _T:
    option = {
        "name": name,
        "help": meaning.format(default=default),
        "metavar": metavar,
        "parse": parse,
        "choices": choices,
        "empty": empty,
    }
    found: _T = field(default=default, metadata={_OPTION: option})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of the agent; the help of each setting describes it."""

    config: str = _option(
        "config",
        "/etc/cpu-pooler",
        "folder with poolconfig-<name>.yaml files; edits are followed (default: {default})",
        metavar="DIR",
    )
    configmap: str = _option(
        "configmap",
        "cpu-pooler-configmap",
        "the ConfigMap that --config shows; the API server reports an edit of it at once;"
        " '' for the folder alone (default: {default}, in the namespace of this pod)",
        metavar="[NAMESPACE/]NAME",
        parse=config_map,
        empty=True,
    )
    node_name: str = _option(
        "node-name",
        "",
        "this node's name in the cluster (default: the variable NODE_NAME)",
        metavar="NAME",
    )
    api_server: str = _option(
        "api-server",
        "",
        "address of the API server, as `kubectl proxy` gives it (default: that of the cluster in"
        " which this is a pod)",
        metavar="URL",
    )
    kubeconfig: str = _option(
        "kubeconfig",
        "",
        "outside a cluster: log in to the API server with this file, as kubectl does (default:"
        " none; with --context the variable KUBECONFIG, else ~/.kube/config)",
        metavar="FILE",
    )
    context: str = _option(
        "context",
        "",
        "which context of the kubeconfig (default: its current one)",
        metavar="NAME",
    )
    resource_domain: str = _option(
        "resource-domain",
        DEFAULT_DOMAIN,
        "the part of the resource names before the slash (default: {default})",
        metavar="DOMAIN",
        parse=domain,
    )
    cgroup_root: str = _option(
        "cgroup-root",
        "",
        "the kubelet's --cgroup-root (default: look in the usual places)",
        metavar="PATH",
        empty=True,
    )
    host_root: str = _option(
        "host-root",
        "/",
        "where the node's file system is mounted (default: {default})",
        metavar="DIR",
    )
    starter: str = _option(
        "starter",
        STARTER,
        "the process starter, which containers of pools get mounted (default: {default})",
        metavar="FILE",
    )
    sweep_interval_s: float = _option(
        "sweep-interval",
        30.0,
        "look at every container at least this often (default: {default})",
        metavar="SECONDS",
        parse=seconds,
    )
    move_pinned: str = _option(
        "move-pinned",
        "auto",
        "when a shared pool changes: always move its containers that also have CPUs of their own;"
        " or (auto) before Linux 6.2, which forgets the pinning of their threads, move them when"
        " they restart (default: {default})",
        choices=("auto", "always"),
    )
    enforcement: str = _option(
        "enforcement",
        "auto",
        "who writes a new container's CPUs: the container runtime before it starts it (nri), the"
        " runtime once it is seen (cri), or cpupool itself (cgroup); auto: nri where there is one,"
        " else cgroup (default: {default})",
        choices=("auto", "nri", "cri", "cgroup"),
    )
    nri_missing_facts: str = _option(
        "nri-missing-facts",
        "hold",
        "a container that requests pools, while its devices are not known or another pod still has"
        " its CPUs: hold, so that the kubelet tries again; or release it into the default pool"
        " until it can have its CPUs (default: {default})",
        choices=("hold", "release"),
    )
    nri_wait_s: float = _option(
        "nri-wait",
        30.0,
        "how long the agent waits at most before it connects to NRI while a pod is being deleted:"
        " the container runtime may start no pod from the connection until that pod has ended; 0"
        " to connect at once (default: {default})",
        metavar="SECONDS",
        parse=delay,
    )
    fail_misfit_after_s: float = _option(
        "fail-misfit-after",
        0.0,
        "with `onMisfit: fail` in the pool file: how long the agent holds a pod that cannot have"
        " CPUs of its own, before it sets the pod's phase to Failed (default: {default}, at once)",
        metavar="SECONDS",
        parse=delay,
    )
    write_resource_status: bool = _option(
        "write-resource-status",
        False,  # noqa: FBT003
        "write the CPUs that the CPU manager policy koordinator chose into the pod's annotation"
        " resource-status, where no scheduler has written it",
        parse=switch,
    )
    node_topology: str = _option(
        "node-topology",
        Publishing.OFF.value,
        "publish what each NUMA node can give in the node's NodeResourceTopology: zones, for the"
        " NodeResourceTopologyMatch plugin of schedulers; koordinator, with the annotations that"
        " koord-scheduler reads, too (default: {default})",
        choices=tuple(each.value for each in Publishing),
    )
    kubelet_config: str = _option(
        "kubelet-config",
        "",
        "the kubelet's configuration, whose Topology Manager's policy is published (default: what"
        " the running kubelet's --config names, or /var/lib/kubelet/config.yaml)",
        metavar="FILE",
    )
    kubelet_config_dir: str = _option(
        "kubelet-config-dir",
        "",
        "the folder of the kubelet's drop-ins, as its --config-dir (default: what the running"
        " kubelet's --config-dir names)",
        metavar="DIR",
    )
    resource_plugins: bool = _option(
        "resource-plugins",
        False,  # noqa: FBT003
        "ask plugins of the QoS Resource Manager for the resources of pods; for the resource cpu,"
        " with `policy: qrm` in the pool file",
        parse=switch,
    )
    resource_plugin_folders: str = _option(
        "resource-plugin-folders",
        "/var/lib/cpupool/resource-plugins,/var/lib/katalyst/plugin-socks",
        "where these plugins make their sockets, below --host-root (default: {default}, our own"
        " folder and Katalyst's)",
        metavar="DIR,...",
    )
    resource_plugin_reconcile_s: float = _option(
        "resource-plugin-reconcile",
        3.0,
        "ask these plugins so often for what each container has now (default: {default})",
        metavar="SECONDS",
        parse=seconds,
    )
    resource_plugin_names: str = _option(
        "resource-plugin-names",
        "",
        "under which name a plugin serves a resource of pods, and by which number its amount is"
        " divided, as resource.katalyst.kubewharf.io/reclaimed_millicpu=cpu:1000 (default: none)",
        metavar="POD=PLUGIN[:DIVISOR],...",
        parse=resource_names,
        empty=True,
    )
    write_node_resources: bool = _option(
        "write-node-resources",
        False,  # noqa: FBT003
        "write what these plugins offer for the node into the node's status, so that pods can"
        " request it",
        parse=switch,
    )
    cri_socket: str = _option(
        "cri-socket",
        "",
        "where the container runtime listens (default: containerd's or CRI-O's usual place)",
        metavar="FILE",
    )
    metrics_port: int = _option(
        "metrics-port",
        9404,
        "port of /healthz, /readyz and /metrics; 0 for none (default: {default})",
        metavar="PORT",
        parse=port,
    )
    log_format: str = _option(
        "log-format",
        "text",
        "how log lines are written (default: {default})",
        choices=("text", "json"),
    )
    verbose: bool = _option("verbose", False, "log the reasons too", parse=switch)  # noqa: FBT003

    @classmethod
    def layered(cls, *layers: Mapping[str, Any]) -> AgentSettings:
        """Make the settings of layers, each from fields to values; a later one wins."""
        return cls(**{name: value for layer in layers for name, value in layer.items()})

    def lacking(self) -> str:
        """Return which setting another one needs; empty if each has what it needs."""
        if self.write_node_resources and not self.resource_plugins:
            return "--write-node-resources writes what plugins say; add --resource-plugins"
        return ""


OPTIONS: Final[Mapping[str, Option]] = {
    option.name: option
    for option in (
        Option(field=each.name, default=each.default, **each.metadata[_OPTION])
        for each in fields(AgentSettings)
    )
}
"""Each setting by its name, in the order of the help."""


def parse(name: str, source: bytes) -> dict[str, Any]:
    """Read a settings file: a YAML map from the names of settings to their values.

    Args:
        name: the file, for messages.
        source: its content.

    Returns:
        The values by the fields of `AgentSettings`; only those that the file has.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    problems: list[Problem] = []
    reader = Reader(problems)
    table = reader.table(document.read(source, Origin(name), problems), OPTIONS)
    found: dict[str, Any] = {}
    for key, value in table.entries.items() if table else ():
        text = reader.text(value) if key in OPTIONS else None
        if text:
            option = OPTIONS[key]
            try:
                found[option.field] = _value(option, text)
            except SettingRefused as error:
                reader.refuse(value, error.what, error.remedy or "write another value")
    refuse_errors(problems)
    return found


def _value(option: Option, written: Text) -> Any:  # noqa: ANN401 - each setting has its own type
    text = written.text
    if written.null or not (text or option.empty):
        value = "a value, or '' for none" if option.empty else "a value"
        raise SettingRefused("this is empty", f"write {value}, or leave the key out")
    if not text.isprintable():
        # No command line has a NUL, and no path has a lone surrogate.
        raise SettingRefused(f"{text!r} has characters that cannot be printed", "remove them")
    if option.choices and text not in option.choices:
        choices = ", ".join(option.choices)
        raise SettingRefused(f"{text!r} is none of {choices}", hint(text, option.choices))
    return option.parse(text)
