"""Labels and annotations by which Katalyst, and the QRM proposal, describe a pod to plugins.

Source: kubewharf/katalyst-api, pkg/consts, and the proposal *QoS Resource Manager*. The proposal
has a pod's role and type in annotations of other names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.workloads import ContainerKind, PodDescription
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.core.workloads import Pod

POD_ROLE: Final = "katalyst.kubewharf.io/pod_role"
POD_TYPE: Final = "katalyst.kubewharf.io/pod_type"
PROPOSED_ROLE: Final = "kubernetes.io/pod-role"
PROPOSED_TYPE: Final = "kubernetes.io/resource-type"
MAIN_CONTAINER: Final = "kubernetes.io/main-container-name"
QOS_LEVEL: Final = "katalyst.kubewharf.io/qos_level"
RECLAIMED_MILLI: Final = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
"""The resource that reclaimed pods request, in thousandths of a CPU."""
RECLAIMED_MEMORY: Final = "resource.katalyst.kubewharf.io/reclaimed_memory"
"""The resource of Katalyst's examples beside it, which no plugin of ours offers."""
NIC_NAME: Final = "qrm.katalyst.kubewharf.io/nic_name"
"""The annotation by which a plugin says which NIC a container has."""
SKIP_ADMIT: Final = "katalyst.kubewharf.io/skip_qrm_admit"
DOMAIN: Final = "katalyst.kubewharf.io/"
MEMORY, CPU, NETWORK = (f"{DOMAIN}{part}_enhancement" for part in ("memory", "cpu", "network"))
_BINARY: Final = ("true", "false")
_ANY: Final = ()
ENHANCEMENTS: Final[Mapping[str, Mapping[str, Collection[str]]]] = {
    MEMORY: {
        "numa_binding": _BINARY,
        "numa_exclusive": _BINARY,
        "rss_overuse_threshold": _ANY,
        "oom_priority": _ANY,
    },
    CPU: {
        "cpuset_pool": _ANY,
        "numa_share": _BINARY,
        "align_by_socket": _BINARY,
        "distribute_evenly_across_numa": _BINARY,
        "full_pcpus_pairing": _BINARY,
        "numa_number": _ANY,
        "numa_ids": _ANY,
        "suppression_tolerance_rate": _ANY,
        "cpu_burst_policy": ("default", "closed", "static", "dynamic"),
        "cpu_burst_threshold": _ANY,
        "cpu_burst_percent": _ANY,
    },
    NETWORK: {
        "namespace_type": (
            "host_ns",
            "host_ns_preferred",
            "anti_host_ns",
            "anti_host_ns_preferred",
        ),
        "topology_affinity_restricted": _BINARY,
    },
}
"""Annotation → its keys, with the words that each knows; none for any text."""
MOST_KEYS: Final = 32
"""The search for the key that was meant takes time for each unknown key."""
NAMES: Final = (
    *(QOS_LEVEL, *ENHANCEMENTS, POD_ROLE, POD_TYPE, SKIP_ADMIT),
    *dict.fromkeys(f"{DOMAIN}{key}" for fields in ENHANCEMENTS.values() for key in fields),
)
"""The annotations that say how a pod is placed; a key of an enhancement may stand alone."""


class QoSLevel(Enum):
    """Katalyst's class of a pod."""

    SHARED = "shared_cores"
    DEDICATED = "dedicated_cores"
    RECLAIMED = "reclaimed_cores"
    SYSTEM = "system_cores"


def qos_level(pod: Pod) -> QoSLevel:
    """Return the class of a pod; shared for one without a known class."""
    return _level(pod.description.annotations)


def _level(annotations: Mapping[str, str]) -> QoSLevel:
    written = annotations.get(QOS_LEVEL, "")
    return next((level for level in QoSLevel if level.value == written), QoSLevel.SHARED)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A word in an annotation that Katalyst does not know.

    Attributes:
        annotation: the annotation.
        key: the key in its object; empty for the whole annotation.
        word: the word.
        known: the words that could stand there; empty if the annotation is no JSON object of a few
            texts.
        is_key: whether the key itself is not known.
    """

    annotation: str
    key: str
    word: str
    known: Collection[str] = ()
    is_key: bool = False


def enhancement(annotations: Mapping[str, str], name: str) -> Mapping[str, str] | None:
    """Return the object in an enhancement, without the domain in its keys; None if it is none.

    An object with more than `MOST_KEYS` is none of Katalyst's.
    """
    try:
        read = json_text.load(annotations.get(name) or "{}")
    except JSONRefused:
        return None
    if not isinstance(read, dict) or not all(isinstance(each, str) for each in read.values()):
        return None
    if len(read) > MOST_KEYS:
        return None
    return {key.removeprefix(DOMAIN): word for key, word in read.items()}


def unknown_level(annotations: Mapping[str, str]) -> Iterator[Unknown]:
    """Yield the class of a pod if Katalyst knows none of this name."""
    levels = tuple(level.value for level in QoSLevel)
    if (word := annotations.get(QOS_LEVEL, "")) and word not in levels:
        yield Unknown(QOS_LEVEL, "", word, levels)


def unknown_words(annotations: Mapping[str, str], names: Iterable[str]) -> Iterator[Unknown]:
    """Yield what Katalyst does not know in some enhancements, also where their keys stand alone."""
    for name in names:
        fields = ENHANCEMENTS[name]
        if (read := enhancement(annotations, name)) is None:
            yield Unknown(name, "", annotations[name])
            continue
        for key, word in read.items():
            if key not in fields:
                yield Unknown(name, key, key, tuple(fields), is_key=True)
            elif fields[key] and word not in fields[key]:
                yield Unknown(name, key, word, fields[key])
        for key, words in fields.items():
            alone = annotations.get(f"{DOMAIN}{key}", "")
            if words and alone and alone not in words:
                yield Unknown(f"{DOMAIN}{key}", "", alone, words)


def described(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    of_daemon_set: bool = False,
    unclear: str = "",
) -> PodDescription:
    """Return what plugins learn of a pod, and whether it waits for them in any case.

    So does a pod of each class but that of shared cores, where Katalyst's own kubelet ignores a
    plugin that fails. A pod without a class, but with a role or a type for plugins, is one of the
    proposal's, where no container starts before its plugins have answered. Of a DaemonSet's pods
    only those of the system wait: plugins are not asked for the others.

    Args:
        labels: the pod's.
        annotations: the pod's.
        of_daemon_set: whether a DaemonSet made it.
        unclear: why another annotation does not say what it requests; empty if all do.
    """
    level = _level(annotations)
    proposed = bool(pod_role(labels, annotations) or pod_type(annotations))
    return PodDescription(
        labels,
        annotations,
        left_out=of_daemon_set and level is not QoSLevel.SYSTEM,
        starts_early=annotations.get(SKIP_ADMIT) == "true",
        awaits_all=level is not QoSLevel.SHARED or (proposed and not annotations.get(QOS_LEVEL)),
        unclear=unclear or _unclear_level(annotations),
    )


def _unclear_level(annotations: Mapping[str, str]) -> str:
    """Return that Katalyst does not know a pod's class; empty if it does, or the pod has none."""
    for found in unknown_level(annotations):
        return f"{found.annotation} is {found.word[:60]!r}, not one of {', '.join(found.known)}"
    return ""


def pod_role(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return the role of a pod for plugins; empty for none."""
    named = labels.get(POD_ROLE) or annotations.get(POD_ROLE)
    return named or annotations.get(PROPOSED_ROLE, "")


def pod_type(annotations: Mapping[str, str]) -> str:
    """Return the type of a pod for plugins; empty for none."""
    return annotations.get(POD_TYPE) or annotations.get(PROPOSED_TYPE, "")


def main_container(pod: Pod, annotations: Mapping[str, str]) -> str:
    """Return the name of a pod's main container: the annotated one, or the first that lasts."""
    apps = (each.name for each in pod.containers if each.kind is ContainerKind.APP)
    return annotations.get(MAIN_CONTAINER) or next(apps, "")
