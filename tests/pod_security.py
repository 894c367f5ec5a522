"""The levels of the Pod Security Standards, as far as a pod of ours can break them.

Source: k8s.io/pod-security-admission/policy, the checks of the levels baseline and restricted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_syncookies",
}
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}


def beyond_baseline(spec: Mapping[str, Any]) -> list[str]:
    """List what a pod's spec asks for that the level `baseline` forbids."""
    context = spec.get("securityContext") or {}
    listed = [*spec.get("initContainers", ()), *spec["containers"]]
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    found += [f"hostPath {one['name']}" for one in spec.get("volumes", ()) if "hostPath" in one]
    found += [one["name"] for one in context.get("sysctls", ()) if one["name"] not in SYSCTLS]
    for one in (context, *(container.get("securityContext") or {} for container in listed)):
        found += _in_context(one)
    for container in listed:
        found += ["hostPort" for port in container.get("ports", ()) if port.get("hostPort")]
    return found


def _in_context(context: Mapping[str, Any]) -> Iterator[str]:
    if context.get("privileged"):
        yield "privileged"
    yield from {*context.get("capabilities", {}).get("add", ())} - CAPABILITIES
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
    for key in ("seccompProfile", "appArmorProfile"):
        if context.get(key, {}).get("type") == "Unconfined":
            yield key
    if {"user", "role"} & context.get("seLinuxOptions", {}).keys():
        yield "seLinuxOptions"


def beyond_restricted(spec: Mapping[str, Any]) -> list[str]:
    """List what a pod's spec does that the level `restricted` forbids beside `baseline`."""
    pod = spec.get("securityContext") or {}
    found = [
        f"volume {one['name']}"
        for one in spec.get("volumes", ())
        if not {*one} - {"name"} <= RESTRICTED_VOLUMES
    ]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        own = container.get("securityContext") or {}
        both = {**pod, **own}
        capabilities = own.get("capabilities", {})
        fulfilled = {
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": both.get("runAsUser") != 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "capabilities": "ALL" in capabilities.get("drop", ())
            and {*capabilities.get("add", ())} <= {"NET_BIND_SERVICE"},
        }
        found += [f"{container['name']} {key}" for key, kept in fulfilled.items() if not kept]
    return found
