"""What plugins for resources learn of a pod: its labels and annotations, and what it requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core.quantity import Quantity
from cpupool.core.workloads import Pod, PodDescription
from cpupool.kube import views
from cpupool.kube.fields import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.names import Names
    from cpupool.kube.views import Body

_DAEMON_SET: Final = "DaemonSet"
_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


def pod(body: Body, names: Names) -> Pod:
    """Read one pod with its description.

    Raises:
        ManifestError: a field that is read is missing or holds something else than it should.
    """
    read, top = views.pod(body, names), Field.of(body)
    metadata, requested = top["metadata"], dict(_requested(top["spec"]))
    return replace(
        read,
        containers=tuple(
            replace(container, quantities=requested[container.name])
            for container in read.containers
        ),
        description=PodDescription(
            metadata["labels"].texts(),
            metadata["annotations"].texts(),
            any(owner["kind"].value == _DAEMON_SET for owner in metadata["ownerReferences"]),
        ),
    )


def _requested(spec: Field) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each container with what it requests.

    Without a request its limit counts, as the API server sets it.
    """
    for listed in _LISTS:
        for found in spec[listed]:
            read = {
                resource: Quantity.read(amount.value, amount.path).number
                for part in ("limits", "requests")
                for resource, amount in found["resources"][part].entries()
                if amount.value is not None
            }
            amounts = {resource: float(number) for resource, number in read.items() if number}
            yield found["name"].text(), amounts
