"""The registration of a device plugin with the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.api.deviceplugin_pb2 import DevicePluginOptions, Empty, RegisterRequest
from cpupool.rpc.channel import dialled

if TYPE_CHECKING:
    from pathlib import Path

VERSION: Final = "v1beta1"
"""The only version of the device plugin API that kubelets take."""


def register(
    kubelet_socket: Path,
    *,
    endpoint: str,
    resource: str,
    options: DevicePluginOptions,
    timeout_s: float = 2.0,
) -> None:
    """Ask the kubelet to use a plugin; it then dials the plugin's socket by itself.

    Args:
        kubelet_socket: `device-plugins/kubelet.sock`.
        endpoint: the base name of the plugin's socket, in the same folder.
        resource: the extended resource that it provides.
        options: the calls that the plugin wants to get.
        timeout_s: how long to wait for the response.

    Raises:
        RemoteProtocolError: the kubelet is not there, does not answer, or refuses.
    """
    request = RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    with dialled(kubelet_socket, f"registering {resource}") as channel:
        channel.call("/v1beta1.Registration/Register", request, Empty, timeout_s)
