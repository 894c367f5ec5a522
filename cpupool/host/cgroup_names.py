"""The names of the cgroups of kubepods, pods and containers.

The kubelet's cgroup driver names everything down to the pod (kubernetes:
pkg/kubelet/cm/cgroup_manager_linux.go): plain names with `cgroupfs`, nested slices with `systemd`,
where a name's own dashes become underscores. The runtime names the cgroups in the pod.
"""

from __future__ import annotations

import re
from typing import Final

_KIND_ROOT: Final = "/kubelet"
_SERVICES: Final = (".service", ".socket", ".mount", ".swap")
_QOS_LEVEL: Final = re.compile(r"(?:.+-)?(?:burstable|besteffort)(?:\.slice)?")
_POD: Final = re.compile(r".+-pod(?P<escaped>[^-]+)\.slice|pod(?P<plain>.+)(?<!\.slice)")
_CONTAINER: Final = re.compile(r"(?:(?:cri-containerd|crio|docker)-)?([0-9a-f]{64})(?:\.scope)?")


def kubepods(cgroup_root: str) -> tuple[str, ...]:
    """Return the places where the cgroup of all pods can be, relative to the hierarchy's base.

    Args:
        cgroup_root: the kubelet's `--cgroup-root`, as `/` or `/kubelet`; empty for `/` and
            `/kubelet`, which kind sets.
    """
    roots = (cgroup_root,) if cgroup_root else ("/", _KIND_ROOT)
    return tuple(place for root in roots for place in _both_drivers(root))


def is_cgroup(name: str) -> bool:
    """Return whether a name is a cgroup's, not one of the kernel's files `<controller>.<file>`."""
    return "." not in name or name.endswith((".slice", ".scope"))


def is_service(name: str) -> bool:
    """Return whether a name is that of a cgroup which systemd makes for a service or the like.

    Such a name looks like a file of the kernel, and no pod or container has one.
    """
    return name.endswith(_SERVICES)


def is_qos_level(name: str) -> bool:
    """Return whether a directory below kubepods holds the pods of one QoS class.

    Guaranteed pods have no such level.
    """
    return _QOS_LEVEL.fullmatch(name) is not None


def pod_id(name: str) -> str | None:
    """Return the UID or the static pod's config hash in a pod's directory name; else None.

    A UID has no underscores of its own, so the underscores of a slice were dashes.
    """
    match = _POD.fullmatch(name)
    if match is None:
        return None
    return match["plain"] or match["escaped"].replace("_", "-")


def container_id(name: str) -> str:
    """Return the container id in a directory's name, or the whole name where it has none.

    CRI-O's monitor, `crio-conmon-<id>`, is not the container that it watches: the id is its whole
    name, so it gets none of the container's CPUs.
    """
    match = _CONTAINER.fullmatch(name)
    return match[1] if match else name


def _both_drivers(cgroup_root: str) -> tuple[str, str]:
    plain = [*(part for part in cgroup_root.split("/") if part), "kubepods"]
    escaped = [part.replace("-", "_") for part in plain]
    slices = ("-".join(escaped[: depth + 1]) + ".slice" for depth in range(len(escaped)))
    return "/".join(plain), "/".join(slices)
