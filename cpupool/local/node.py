"""The embedded node: a small kubelet, a small runtime, and the pods that run on them.

The production roles find the same as on a real node: sockets, a checkpoint, cgroups, processes and
pod bodies. There is no API server; the caller adds pods, and the node itself is the source of pods.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.errors import HostError, ManifestError, PodRefused
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerKind, ContainerRef, Pod, PodUID
from cpupool.host.root import HostRoot
from cpupool.kube import views
from cpupool.local.kubelet import EmbeddedKubelet
from cpupool.local.nri import PluginRefusal
from cpupool.local.pods import ContainerProcess, HostedPod
from cpupool.local.runtime import EmbeddedRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.local.cgroups import Cgroups

SANDBOX: Final = ""
"""The name of a pod's sandbox; no container can have it."""
_SIGKILL_EXIT: Final = 137


class EmbeddedNode:
    """One node. Use it as a context manager: it ends every process and closes every socket.

    Only one thread starts, changes and deletes pods; any thread may read.

    Args:
        folder: stands for `/` of the kubelet and cpupool; its path has at most 40 bytes.
        cgroups: the cgroups of containers.
        names: the resource of each pool.
        sysfs: the node's topology.
        manager: the kubelet's `topologyManagerPolicy`.
        nri: whether the runtime takes an NRI plugin.
        changed: called after each change of a pod, in the thread that makes it.

    Attributes:
        root: the places of the node's folders.
        cgroup_root: the kubelet's `--cgroup-root`.
        kubelet: the small kubelet.
    """

    def __init__(
        self,
        folder: Path,
        cgroups: Cgroups,
        *,
        names: Names | None = None,
        sysfs: Path = Path("/sys"),
        manager: TopologyPolicy = TopologyPolicy.BEST_EFFORT,
        nri: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.root = replace(
            HostRoot.under(folder, cgroups.cgroup_root),
            sysfs=sysfs,
            proc=Path("/proc"),
            cgroup=cgroups.root,
        )
        self.cgroup_root = cgroups.cgroup_root
        self._names = names or Names()
        self.kubelet = EmbeddedKubelet(self.root.kubelet, self._names, manager=manager)
        self._runtime = EmbeddedRuntime(cgroups, folder, self.root.nri_socket if nri else None)
        self._changed = changed
        self._opened = ExitStack()
        self._lock = threading.Lock()
        self._pods: dict[PodUID, HostedPod] = {}

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(self._runtime)
            opened.enter_context(self.kubelet)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def pods(self) -> tuple[Pod, ...]:
        """Return every pod of the node, as a `PodSource`."""
        with self._lock:
            return tuple(hosted.pod for hosted in self._pods.values())

    def bodies(self) -> dict[str, Any]:
        """Return the pods as a PodList, as `kubectl get pods -A -o json` prints it."""
        with self._lock:
            items = [hosted.body for hosted in self._pods.values()]
        return {"apiVersion": "v1", "kind": "PodList", "items": items}

    def processes(self) -> tuple[ContainerProcess, ...]:
        """Return the running processes, each pod's sandbox first."""
        with self._lock:
            return tuple(
                process for hosted in self._pods.values() for process in hosted.processes()
            )

    @property
    def plugged(self) -> bool:
        """Whether the runtime asks an NRI plugin before each container."""
        return self._runtime.plugged

    def held(self) -> dict[PodUID, str]:
        """Return the pods with a container that the NRI plugin refused, with the last reason."""
        with self._lock:
            return {uid: hosted.held for uid, hosted in self._pods.items() if hosted.held}

    def resizing(self) -> dict[PodUID, str]:
        """Return the pods with a resize that is not carried out, each with the last reason."""
        with self._lock:
            return {
                uid: hosted.pending.message if hosted.pending else hosted.failed
                for uid, hosted in self._pods.items()
                if hosted.pending or hosted.failed
            }

    def path_of(self, process: ContainerProcess) -> str:
        """Return a process's cgroup, relative to the hierarchy's base, for `CgroupFS`."""
        return f"{self.cgroup_root}/{process.instance.cgroup}".strip("/")

    def run_pod(
        self, body: views.Body, during_init: Callable[[Pod, str], None] = lambda _pod, _name: None
    ) -> Pod:
        """Admit a pod and start its containers, init containers one after the other.

        If an NRI plugin refuses a container, the pod waits for `try_again`; a kubelet would retry.

        Args:
            body: a manifest without UID and status.
            during_init: called with the pod and the container's name while a plain init container
                runs; the container ends when the call returns.

        Raises:
            ManifestError: the body is not a pod, or the node has a pod with its name.
            PodRefused: the scheduler or the kubelet refuses it; the node does not have the pod.
        """
        hosted = HostedPod(views.created(body, str(uuid.uuid4())), self._names)
        pod = hosted.pod
        if any((pod.namespace, pod.name) == (other.namespace, other.name) for other in self.pods()):
            raise ManifestError(
                f"pod {pod.namespace}/{pod.name}", "metadata.name", "a pod of this name is here"
            )
        self.kubelet.admit(_as_kubelet_knows(pod), hosted.others)
        with self._changing():
            self._pods[pod.uid] = hosted
        try:
            sandbox = self._runtime.start(pod, None, {}, hosted.body["metadata"].get("annotations"))
            with self._changing():
                hosted.running[SANDBOX] = sandbox
            self._start_rest(hosted, during_init)
        except BaseException:
            self.delete_pod(pod.uid)
            raise
        return hosted.pod

    def try_again(self, during_init: Callable[[Pod, str], None] = lambda _pod, _name: None) -> None:
        """Try again what was refused, as the kubelet with its next look at each pod.

        These are containers that the NRI plugin did not let start, and resizes. What `edit_pod` has
        written is seen now, too.
        """
        for uid in self.held():
            if self._start_again(self._pods[uid]):
                self._start_rest(self._pods[uid], during_init)
        for hosted in tuple(self._pods.values()):
            self._carry_out(hosted)

    def delete_pod(self, uid: PodUID) -> None:
        """Stop a pod and forget it."""
        hosted = self._pods[uid]
        self._stop_all(hosted, _SIGKILL_EXIT)
        with self._changing():
            del self._pods[uid]
        self.kubelet.remove_pod(_as_kubelet_knows(hosted.pod).uid)

    def finish_pod(self, uid: PodUID) -> None:
        """End every container of a pod with success; the pod stays listed and holds nothing."""
        self._finish(self._pods[uid], 0, {"phase": "Succeeded"})

    def restart_container(self, uid: PodUID, name: str) -> None:
        """End a container with an error and start it again, with its devices.

        If an NRI plugin refuses it, the container waits for `try_again`.
        """
        hosted = self._pods[uid]
        self._end(hosted, name, 1)
        hosted.again.append(name)
        self._start_again(hosted)

    def add_ephemeral(self, uid: PodUID, container: Mapping[str, Any]) -> None:
        """Start an ephemeral container in a running pod, as `kubectl debug` does.

        Raises:
            ManifestError: it is not a container, or its name is taken.
        """
        hosted = self._pods[uid]
        with self._changing():
            hosted.take(hosted.with_ephemeral(container))
        self._start(hosted, hosted.pod.containers[-1].name)

    def edit_pod(self, uid: PodUID, edited: Callable[[views.Body], views.Body]) -> Pod:
        """Take another body of a running pod in the API server, as after `kubectl label`.

        The kubelet does not look at it: other resources are a wish until `try_again`.

        Raises:
            ManifestError: the new body is not a pod; nothing is changed.
        """
        hosted = self._pods[uid]
        with self._changing():
            hosted.take(edited(hosted.body))
        return hosted.pod

    def resize(self, uid: PodUID, cpus: Mapping[str, str]) -> Pod:
        """Resize containers of a running pod in place, as `kubectl patch --subresource resize`.

        The kubelet takes the new cpu if the node has it, and the runtime carries it out. The pod's
        status says how far that got; what is refused waits for `try_again`.

        Args:
            uid: the pod.
            cpus: container → its cpu as a quantity, in place of each request and limit of cpu that
                it has.

        Raises:
            ManifestError: the API server does not take the resize; nothing is changed.
        """
        hosted = self._pods[uid]
        self.edit_pod(uid, lambda _body: hosted.with_cpus(cpus))
        self._carry_out(hosted)
        return hosted.pod

    def restart_runtime(self) -> None:
        """End and start the runtime again, while the containers run; any thread may call this."""
        self._runtime.restart()

    def admit_again(self) -> dict[PodUID, PodRefused]:
        """Admit every running pod again, as the kubelet does after a restart.

        Returns:
            The pods that the kubelet refused; they have failed.
        """
        refused: dict[PodUID, PodRefused] = {}
        for hosted in [hosted for hosted in self._pods.values() if not hosted.pod.finished]:
            try:
                self.kubelet.admit(_as_kubelet_knows(hosted.as_taken()), hosted.others)
            except PodRefused as error:
                refused[hosted.pod.uid] = error
                failed = {"phase": "Failed", "reason": error.reason, "message": str(error)}
                self._finish(hosted, _SIGKILL_EXIT, failed)
        return refused

    def _carry_out(self, hosted: HostedPod) -> None:
        """Let the kubelet take the resources of a pod's spec, and the runtime carry them out.

        Source: kubernetes pkg/kubelet/kuberuntime, doPodResizeAction: the first error ends it.
        """
        if hosted.pod.finished:
            return
        if hosted.wishes or hosted.pending:
            known = _as_kubelet_knows(hosted.pod)
            pending = self.kubelet.resize(known) if hosted.wishes else None
            with self._changing():
                hosted.allocated(pending)
        for container in hosted.to_resize():
            try:
                self._runtime.update(hosted.running[container.name], container)
            except (PluginRefusal, HostError) as error:
                with self._changing():
                    hosted.not_resized(str(error))
                return
            with self._changing():
                hosted.resized(container.name)

    def _start_rest(self, hosted: HostedPod, during_init: Callable[[Pod, str], None]) -> None:
        """Start the containers that have not started yet, until the NRI plugin refuses one."""
        for container in hosted.pod.containers[hosted.begun :]:
            if not self._starts(hosted, container.name):
                return
            hosted.begun += 1
            if container.kind is ContainerKind.INIT:
                during_init(hosted.pod, container.name)
                self._end(hosted, container.name, 0)

    def _start_again(self, hosted: HostedPod) -> bool:
        """Start the containers of `again`; return whether the NRI plugin refuses none."""
        while hosted.again and self._starts(hosted, hosted.again[0]):
            del hosted.again[0]
        return not hosted.again

    def _starts(self, hosted: HostedPod, name: str) -> bool:
        try:
            self._start(hosted, name)
        except PluginRefusal as error:
            with self._changing():
                hosted.refused(name, str(error))
            return False
        return True

    def _start(self, hosted: HostedPod, name: str) -> None:
        options = self.kubelet.run_options(ContainerRef(_as_kubelet_knows(hosted.pod).uid, name))
        # The kubelet puts the container's own variables after those of device plugins.
        environment = {**options.environment, **hosted.environments[name]}
        pod = hosted.as_taken()
        (container,) = (container for container in pod.containers if container.name == name)
        instance = self._runtime.start(pod, container, environment, options.annotations)
        with self._changing():
            hosted.started(name, instance, options.annotations)

    def _end(self, hosted: HostedPod, name: str, exit_code: int) -> None:
        self._runtime.stop(hosted.running[name])
        with self._changing():
            hosted.ended(name, exit_code)

    def _stop_all(self, hosted: HostedPod, exit_code: int) -> None:
        for name in [name for name in hosted.running if name != SANDBOX]:
            self._end(hosted, name, exit_code)
        sandbox = hosted.running.get(SANDBOX)
        if sandbox:
            self._runtime.stop(sandbox)
            with self._changing():
                del hosted.running[SANDBOX]
        self._runtime.remove_pod(hosted.pod)

    def _finish(self, hosted: HostedPod, exit_code: int, phase: Mapping[str, str]) -> None:
        self._stop_all(hosted, exit_code)
        with self._changing():
            hosted.finished(phase)
        self.kubelet.remove_pod(_as_kubelet_knows(hosted.pod).uid)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            yield
        self._changed()


def _as_kubelet_knows(pod: Pod) -> Pod:
    """Return a pod with the UID that the kubelet uses: for a static pod its config hash."""
    return replace(pod, uid=PodUID(pod.cgroup_uid))
