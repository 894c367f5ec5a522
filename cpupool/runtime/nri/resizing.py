"""The resize in an update: the kubelet changes the request of a running container.

The update says how many CPUs the container gets. The pod's spec only has the number that its author
wishes: the kubelet may not have allowed this number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.errors import PlacementError

if TYPE_CHECKING:
    from cpupool.core.grants import Grant
    from cpupool.manager.resolve import Snapshot
    from cpupool.runtime.nri.messages import UpdateContainer


class OwnersUnknown(PlacementError):
    """A resize before the agent knows which CPUs have an owner."""

    passes = True

    def __init__(self) -> None:
        what = "the agent does not know the owners of CPUs yet"
        super().__init__(what, what)


def asked(message: UpdateContainer, now: Snapshot) -> int | None:
    """Return how many CPUs of its own a container is to have now; None if the number stays.

    It is 0 if the update asks for no whole number.

    Raises:
        OwnersUnknown: the container may own CPUs.
    """
    known, count, facts = message.container.known, message.owns, now.facts
    if known is None or count is None or not facts.policy.kind.resizes:
        return None
    if not facts.recovered:
        eligible = facts.pools.cpu_manager.eligible
        if count != known.owns and eligible.cpus(message.container):
            raise OwnersUnknown
        # The agent compares the number with the grants once it knows them.
        return None
    grant = now.resolution.view.chosen.get(known.pod)
    if grant is None or not (grant.resizable(known.name) or _has_part(grant, known.name)):
        return None
    return count if count != len(grant.parts[known.name]) else None


def _has_part(grant: Grant, container: str) -> bool:
    """Return whether a container has a part of a bubble, which no resize changes.

    The kubelet resizes no init container that ends.
    """
    return grant.bubble and container in grant.parts
