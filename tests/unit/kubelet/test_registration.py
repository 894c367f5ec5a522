from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.api.deviceplugin_pb2 import DevicePluginOptions
from cpupool.core.errors import RemoteProtocolError
from cpupool.kubelet.registration import register
from tests.kubelets import RegisteringKubelet

if TYPE_CHECKING:
    from pathlib import Path


def _register(folder: Path) -> None:
    register(
        folder / "kubelet.sock",
        endpoint="cpupool-exclusive_a.sock",
        resource="nokia.k8s.io/exclusive_a",
        options=DevicePluginOptions(get_preferred_allocation_available=True),
    )


def test_the_kubelet_gets_the_version_socket_resource_and_options(folder: Path) -> None:
    kubelet = RegisteringKubelet(folder)
    kubelet.start()
    try:
        _register(folder)
    finally:
        kubelet.stop()
    (request,) = kubelet.registered
    assert request.version == "v1beta1"
    assert request.endpoint == "cpupool-exclusive_a.sock"
    assert request.resource_name == "nokia.k8s.io/exclusive_a"
    assert request.options.get_preferred_allocation_available
    assert not request.options.pre_start_required


def test_a_refusal_names_the_resource_and_the_reason(folder: Path) -> None:
    kubelet = RegisteringKubelet(folder)
    kubelet.refusals = 1
    kubelet.start()
    try:
        with pytest.raises(
            RemoteProtocolError, match=r"registering nokia.k8s.io/exclusive_a on .*not ready"
        ):
            _register(folder)
        _register(folder)
    finally:
        kubelet.stop()
    assert len(kubelet.registered) == 1


def test_an_absent_kubelet_is_one_clear_error(folder: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=r"UNAVAILABLE.*; check that the kubelet runs"):
        _register(folder)


def test_a_socket_that_nothing_listens_on_is_one_clear_error(folder: Path) -> None:
    (folder / "kubelet.sock").touch()
    with pytest.raises(RemoteProtocolError, match="UNAVAILABLE"):
        _register(folder)
