"""The CPUs that owners lend to best-effort pods: pods of the class LSR lend, LSE pods do not.

An owner lends its CPUs whether it uses them or not. Under a load of the other pods, best-effort
pods have fewer CPUs (`best_effort.py`), and of lent and shared CPUs the same part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.core.orchestration import QoS
from cpupool.policies.koordinator.best_effort import selected
from cpupool.policies.view import BEST_EFFORT

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from cpupool.policies.view import NodeView


def sharing(pod: Pod) -> Sharing:
    """Return which others run on a pod's own CPUs: best-effort pods, unless it is an LSE pod.

    A scheduler may have assigned CPUs to a pod of any class, which lends them, too.
    """
    told = pod.orchestration
    lends = told is not None and told.owns and told.qos is not QoS.LSE
    return Sharing.BEST_EFFORT if lends else Sharing.NONE


def lent_and_shared(view: NodeView) -> tuple[CPUSet, CPUSet]:
    """Return the CPUs of best-effort pods without a load: lent by their owners, and shared."""
    kept = view.rules.withheld
    lent = CPUSet.union(grant.cpus for grant in view.grants if grant.sharing is Sharing.BEST_EFFORT)
    return (view.cpus & lent & view.topology.online) - kept, view.free - kept


def borrowed(view: NodeView, first: CPUSet) -> CPUSet:
    """Return the CPUs of best-effort pods now.

    Args:
        view: the node, with the number of CPUs that the load leaves to them.
        first: the shared CPUs that they get before any other under a load.
    """
    lent, shared = lent_and_shared(view)
    size = view.sizes.get(BEST_EFFORT)
    if size is None or size.count >= len(lent | shared):
        return lent | shared
    return selected(view.topology, size.count, lent, shared, first & shared)
