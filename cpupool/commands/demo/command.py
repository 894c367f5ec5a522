"""`cpupool demo`: runs a whole node on this machine, with the real agent on it."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cpupool.agent.setup import Setup
from cpupool.commands.demo import koordinator_pods, resizes, samples
from cpupool.commands.demo.samples import Samples
from cpupool.commands.pictures import drawing
from cpupool.commands.shell import cpu_manager, door, pool_files
from cpupool.commands.shell.beside import needs
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, open_machine, read_text
from cpupool.commands.shell.options import (
    add_command,
    add_node_labels,
    add_resource_domain,
    add_shape,
)
from cpupool.commands.shell.services import missing
from cpupool.config import poolconfig
from cpupool.config.poolconfig import Source
from cpupool.core import default_pool
from cpupool.core.cpu_manager import RESERVED
from cpupool.core.errors import ManifestError, PodRefused
from cpupool.core.names import EXCLUSIVE_CPUS, Names
from cpupool.core.pod_resources import CPU
from cpupool.core.suggestions import nearest
from cpupool.host.installed_policies import find_policy
from cpupool.kube import manifests, views
from cpupool.kube.earlier_admission import EarlierAdmission
from cpupool.local import cgroups
from cpupool.local.pods import HostedPod
from cpupool.plugins.demo import (
    BY_LEVEL,
    OFFLINE,
    ONLINE,
    DemoPlugins,
    ForeignPlugins,
    by_role,
)
from cpupool.policies.built_in import CHOOSING, kind
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.policy import QRM
from cpupool.qrm.registration import REGISTRATION_SOCKET
from cpupool.qrm.resource_manager import PluginSettings
from cpupool.telemetry import log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from cpupool.commands.demo.live import Disturbance, LiveNode, ProcessRow
    from cpupool.commands.demo.resizes import Resize
    from cpupool.commands.shell.options import Commands
    from cpupool.config.pool_file import PoolFile
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.kube.views import Body

    _Plugins = DemoPlugins | ForeignPlugins

_TITLES = ("process", "requests", "environment", "belongs on", "runs on", "")
_RECONCILE_S = 0.2
_EXAMPLES = """\
examples:
  cpupool demo
  cpupool demo --cpu-manager static
  cpupool demo --cpu-manager dynamic
  cpupool demo --cpu-manager koordinator
  cpupool demo --qrm
  cpupool demo --config poolconfig-dpdk.yaml --pods cpu-test.yaml
  cpupool demo --qrm --plugin-folder /tmp/plugins --pods pods.yaml
  cpupool demo --json | jq .verified

Exit code 0: every process was where it belongs, before and after; 1: one was not, a pod did not
start, or the node did not come up; 2: the command line is wrong, or a file that it names cannot be
used.
"""


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod that the runtime did not start at once, because the agent refused.

    Attributes:
        pod: its name.
        why: the agent's reason.
        until: the pod whose end has freed the CPUs; empty for a pod that is held to the end.
    """

    pod: str
    why: str
    until: str = ""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "demo",
        summary,
        "Runs a node on this machine: cpupool as in a cluster, and a kubelet and container"
        " runtime that are simulated and speak the real protocols. The demo starts pods, and"
        " compares the CPUs of each process with the CPUs of its pool. Then it moves one process"
        " to wrong CPUs and shows the repair. With a CPU manager policy the runtime asks the"
        " agent before it creates a container: a pod without CPUs is held until another one"
        " ends. With the policy dynamic the demo resizes a pod, and shows what its application"
        " reads. At the end the demo removes everything.",
        _EXAMPLES,
    )
    file = parser.add_mutually_exclusive_group()
    file.add_argument(
        "--config",
        metavar="FILE",
        type=input_file,
        help="a pool file or ConfigMap for this machine (default: pools made from its own CPUs)",
    )
    file.add_argument(
        "--cpu-manager",
        metavar="POLICY",
        type=_cpu_manager,
        help="a pool file with this CPU manager policy and without pools, instead:"
        f" {', '.join(CHOOSING)}, or that of a package; dynamic needs 3 CPUs to show a resize",
    )
    parser.add_argument(
        "--qrm",
        action="store_true",
        help="a pool file with the policy qrm, or that of --config: plugins in a process of their"
        " own decide",
    )
    parser.add_argument(
        "--plugin-folder",
        metavar="DIR",
        type=Path,
        help="instead of our plugins, ask those that make their sockets in this folder, or register"
        f" at {REGISTRATION_SOCKET} there; with --qrm or --config",
    )
    add_node_labels(parser)
    add_resource_domain(parser)
    parser.add_argument(
        "--pods",
        metavar="FILE",
        type=input_file,
        help="pod manifests to run (default: pods for the pool file). Images are not pulled: an"
        " idle process takes each container's place",
    )
    add_shape(parser)
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show the log of the roles, and of plugins, on stderr",
    )
    needs(parser, "--node-labels", "--config")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Run the demo; 0 only if every process was where it belongs, before and after.

    Raises:
        UsageError: a file cannot be used.
        CPUPoolError: a part of the node does not come up.
    """
    log.set_up(logging.INFO if arguments.verbose else logging.ERROR)
    live_node = _live_node()
    machine = open_machine("this")
    names = Names(arguments.resource_domain)
    source, pool_file = _pool_file(arguments, names, machine)
    pools = pool_file.pools
    foreign = _foreign(arguments, pools)
    shown = _samples(arguments, names, pools, machine, foreign=foreign is not None)
    screen = StringIO() if arguments.json else out

    with _interrupts_noted() as check, ExitStack() as stack:

        def tell(line: str) -> None:
            check()
            door.tell(line, screen)
            screen.flush()

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpupool-")))
        config = _mounted(folder / "etc", source)
        plugins = foreign or _own_plugins(folder / "p", pools, machine, verbose=arguments.verbose)
        settings = _asking(stack, plugins, Setup(config))
        place = stack.enter_context(cgroups.opened(folder, "demo", machine.online))
        tell(f"Containers run in {place.described}.")
        labels, chooses = pool_file.node_selector, pools.cpu_manager.chooses
        live = stack.enter_context(
            live_node(folder, place, settings, labels, nri=chooses, check=check, names=names)
        )
        for resource, devices in live.await_pools():
            tell(f"The kubelet knows {resource} with {devices} healthy devices.")
        if chooses:
            live.await_plugin()
            tell("The container runtime asks the agent, by NRI, before it creates a container.")
        _await_plugins(live, plugins, tell)
        refused, held = _start(live, shown, tell)
        live.settled_rows()
        moved = live.disturb()
        held = _await_cpus(live, held, tell)
        _move_border(live, plugins, tell)
        resized = _resize(arguments, live, shown, tell, screen)
        rows = live.settled_rows()
        picture = drawing.node_status(machine, live.status())
        drawing.show(picture, screen)
        drawing.show(drawing.table(_TITLES, map(_cells, rows)), screen)
        _tell_environment(resized, tell)
        waiting = live.node.held()
        _end_owners(live, tell)
        verified = bool(rows) and not (refused or live.astray or waiting)
    if arguments.svg:
        drawing.export_svg(picture, arguments.svg, "cpupool demo")
    if arguments.json:
        document = {
            "cgroups": place.described,
            "processes": [{**asdict(row), "right": row.right} for row in rows],
            "refused": refused,
            "held": [asdict(pod) for pod in held],
            "resizes": [asdict(resize) for resize in resized],
            "left_out": shown.left_out,
            "astray": sorted(live.astray),
            "disturbed": asdict(moved) if moved else None,
            "verified": verified,
        }
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        left_out = (f"Left out: {line}." for line in shown.left_out)
        for line in (*left_out, *_verdict(rows, moved, refused, held, live.astray)):
            door.tell(line, out)
    return 0 if verified else 1


def _asking(stack: ExitStack, plugins: _Plugins | None, settings: Setup) -> Setup:
    """Start the plugins, and return the settings of an agent that asks them."""
    if plugins is None:
        return settings
    stack.enter_context(plugins)
    asked = PluginSettings((plugins.sockets,), reconcile_s=_RECONCILE_S)
    return replace(settings, plugins=asked)


def _live_node() -> type[LiveNode]:
    """Return the class of the node that the demo runs.

    Raises:
        UsageError: the library of the embedded node is not installed.
    """
    try:
        # Imported here, because no node needs this library: it is an extra of its own.
        from cpupool.commands.demo import live  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing(error, "demo") from error
    return live.LiveNode


def _await_plugins(live: LiveNode, plugins: _Plugins | None, tell: Callable[[str], None]) -> None:
    if plugins:
        needed = plugins.resources
        others = live.await_resources(needed) - set(needed)
        tell(f"{plugins.title} answer for {', '.join((*needed, *sorted(others)))}.")


def _move_border(live: LiveNode, plugins: _Plugins | None, tell: Callable[[str], None]) -> None:
    """Let the offline pool of our plugins grow, while its pods run."""
    if not isinstance(plugins, DemoPlugins):
        return
    if not plugins.becomes_night():
        tell("The offline pool cannot grow: the machine has too few CPUs.")
        return
    tell(f"The file of the plugins gives {plugins.offline} CPUs to offline work.")
    for pod in live.node.pods():
        if role := _role(pod):
            size = plugins.offline if role == OFFLINE else plugins.online
            tell(f"Pod {pod.name} moves to CPUs {live.await_answer(pod, size)}.")


def _resize(
    arguments: argparse.Namespace,
    live: LiveNode,
    shown: Samples,
    tell: Callable[[str], None],
    screen: TextIO,
) -> list[Resize]:
    """Resize our pod while it runs, if the policy follows resizes."""

    def draw() -> None:
        drawing.show(drawing.node_containers(shown.machine, live.status()), screen)

    ours = arguments.pods is None and kind(shown.pools.cpu_manager).resizes
    return [*resizes.show(live, shown, tell, draw)] if ours else []


def _start(
    live: LiveNode, shown: Samples, tell: Callable[[str], None]
) -> tuple[list[str], list[HeldPod]]:
    """Start the pods; return why some are refused, and those that are held."""
    for line in shown.left_out:
        tell(f"Left out: {line}.")
    refused, held = [], []
    for body in shown.bodies:
        try:
            pod = live.run_pod(body)
        except PodRefused as error:
            refused.append(str(error))
            tell(f"Pod {error}")
            continue
        if why := live.node.held().get(pod.uid):
            held.append(HeldPod(pod.name, why))
            tell(f"Pod {pod.name} waits in CreateContainerError: {why}")
        else:
            _tell_runs(live, pod, tell)
    return refused, held


def _await_cpus(
    live: LiveNode, held: Iterable[HeldPod], tell: Callable[[str], None]
) -> list[HeldPod]:
    """End pods until the held ones have CPUs; return these with the pod that had to end."""
    until: dict[str, str] = {}
    for ended, started in live.end_until_served():
        tell(f"Pod {ended.name} ends.")
        for pod in started:
            until[pod.name] = ended.name
            _tell_runs(live, pod, tell)
    return [replace(pod, until=until.get(pod.pod, "")) for pod in held]


def _end_owners(live: LiveNode, tell: Callable[[str], None]) -> None:
    """End the pods with CPUs of their own: the others return to these CPUs."""
    for pod in [pod for pod in live.node.pods() if live.own_cpus(pod)]:
        live.end(pod)
        tell(f"Pod {pod.name} ends.")
        tell(live.others())


@contextmanager
def _interrupts_noted() -> Iterator[Callable[[], None]]:
    """Note Ctrl-C, SIGTERM and SIGHUP; give a function that raises KeyboardInterrupt after one.

    The demo calls the function only between two steps, so each step is done or not begun, and the
    end undoes all of them. Another Ctrl-C does not disturb that.
    """
    # No event: a second signal may interrupt the handler while it holds the event's lock.
    noted: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [
        signal.signal(number, lambda caught, _frame: noted.append(caught)) for number in signals
    ]

    def check() -> None:
        if noted:
            raise KeyboardInterrupt

    try:
        yield check
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _pool_file(
    arguments: argparse.Namespace, names: Names, machine: CPUTopology
) -> tuple[Source, PoolFile]:
    if arguments.config is not None:
        return pool_files.choose(arguments.config, arguments.node_labels, names, machine)
    if arguments.cpu_manager and len(machine.online) < 2:
        raise UsageError("--cpu-manager needs two CPUs: one to own and one to share")
    if arguments.cpu_manager and (arguments.qrm or arguments.plugin_folder):
        raise UsageError("--cpu-manager is for a policy without plugins; leave it out")
    if arguments.qrm and len(machine.online) < 2:
        raise UsageError("--qrm needs two CPUs: one for each pool")
    policy = QRM if arguments.qrm else arguments.cpu_manager
    text = samples.pool_file(machine)
    if policy:
        found = cpu_manager.of_package(policy)
        reserves = found is None or RESERVED in found.settings
        text = samples.cpu_manager_file(machine, policy, reserves=reserves)
    source = Source.of("poolconfig-demo.yaml", text)
    return source, poolconfig.parse(source.name, source.text, names, find_policy=find_policy)


def _cpu_manager(text: str) -> str:
    if text in CHOOSING or cpu_manager.of_package(text):
        return text
    hint = f"use {', '.join(CHOOSING)}, or the policy of an installed package"
    if text == QRM:
        hint = "use --qrm instead"
    elif near := nearest(text, CHOOSING):
        hint = f"did you mean {near}?"
    raise argparse.ArgumentTypeError(f"{text!r} is no policy to show here; {hint}")


def _foreign(arguments: argparse.Namespace, pools: NodePools) -> ForeignPlugins | None:
    """Return the plugins of `--plugin-folder`; None for our own, or none."""
    policy = pools.cpu_manager.policy
    if arguments.plugin_folder is None:
        if arguments.qrm and not kind(pools.cpu_manager).asks_plugins:
            raise UsageError(
                f"--qrm: {arguments.config} has the policy {policy}; write cpuManager: {{policy:"
                f" {QRM}, reserved: CPUS}}, or name --plugin-folder for plugins of other resources"
                " than cpu"
            )
        return None
    folder: Path = arguments.plugin_folder.absolute()
    if not (arguments.qrm or arguments.config):
        raise UsageError("--plugin-folder: add --qrm, or a pool file with --config")
    if not folder.is_dir():
        raise UsageError(f"--plugin-folder: {folder} is no folder; make it, and start the plugin")
    if (folder / REGISTRATION_SOCKET).exists():
        raise UsageError(
            f"--plugin-folder: another manager has made {folder / REGISTRATION_SOCKET}; name a"
            " folder of the plugin's own, or remove the socket if no process serves it"
        )
    return ForeignPlugins(folder, (CPU,) if kind(pools.cpu_manager).asks_plugins else ())


def _own_plugins(
    folder: Path, pools: NodePools, machine: CPUTopology, *, verbose: bool
) -> DemoPlugins | None:
    """Return our plugins, for the CPUs of the policy `qrm`; None under another policy."""
    if not kind(pools.cpu_manager).asks_plugins:
        return None
    cpus = default_pool.online(pools, machine)
    if len(cpus) < 2:
        raise UsageError(f"the policy {QRM} has {len(cpus)} CPUs; our plugins need one per pool")
    return DemoPlugins(folder, len(cpus), reserved=machine.online - cpus, verbose=verbose)


def _samples(
    arguments: argparse.Namespace,
    names: Names,
    pools: NodePools,
    machine: CPUTopology,
    *,
    foreign: bool,
) -> Samples:
    """Return the pods to run: those of `--pods`, or pods for the pool file."""
    if arguments.pods is not None:
        return Samples(pools, machine, names, [*_bodies(arguments.pods, names)])
    of_plugins: Iterable[Body] = ()
    if kind(pools.cpu_manager).asks_plugins:
        roles = {"pod1": ONLINE, "pod2": OFFLINE, "pod3": ONLINE}
        of_plugins = samples.of_plugins(BY_LEVEL if foreign else by_role(roles))
    made = Samples.of(pools, machine, names, of_plugins)
    if kind(pools.cpu_manager).reads_classes:
        koordinator_pods.add(made)
    if kind(pools.cpu_manager).resizes:
        resizes.add(made)
    return made


def _mounted(folder: Path, source: Source) -> Path:
    """Lay the pool file where the agent finds it, as the ConfigMap's mount would."""
    folder.mkdir()
    text = source.text
    content = text.encode() if isinstance(text, str) else text
    (folder / "poolconfig-demo.yaml").write_bytes(content)
    return folder


def _bodies(path: Path, names: Names) -> Sequence[Body]:
    """Read the pods to run, and refuse bodies that the node cannot take for pods."""
    text = read_text(path)
    try:
        found = manifests.read(str(path), text)
        found.refuse_others_alone()
        earlier = EarlierAdmission.of(found.others)
        bodies = [earlier.completed(body) for body in found.pods]
        pods = [HostedPod(views.created(body, "not-yet"), names).pod for body in bodies]
    except ManifestError as error:
        raise UsageError(f"--pods: {error}") from error
    if not pods:
        raise UsageError(f"{path}: there is no pod in it; name a file with one")
    called = [f"{pod.namespace}/{pod.name}" for pod in pods]
    if twice := [name for name in called if called.count(name) > 1]:
        raise UsageError(f"{path}: there are two pods {twice[0]} in it; rename one")
    return bodies


def _tell_runs(live: LiveNode, pod: Pod, tell: Callable[[str], None]) -> None:
    """Describe a pod that has started, and which pods had to leave its CPUs."""
    own = live.own_cpus(pod)
    if live.asks_plugins(pod):
        role, cpus = _role(pod), live.await_answer(pod)
        on = f"on CPUs {cpus}" if cpus else "without CPUs of its plugin"
        tell(f"Pod {pod.name}{f' of the role {role}' if role else ''} runs {on}.")
    elif own:
        has = (f"{name or 'it'} has CPUs {cpus} of its own" for name, cpus in own.items())
        tell(f"Pod {pod.name} runs: {', '.join(has)}.")
        tell(live.others())
    else:
        why = live.refusal(pod)
        tell(f"Pod {pod.name} runs{f' on the shared CPUs: {why}' if why else ''}.")


def _tell_environment(resized: Iterable[Resize], tell: Callable[[str], None]) -> None:
    """Say why the environment of a container has other CPUs than its cpuset, if a resize did it."""
    if any(resize.told for resize in resized):
        tell(f"{EXCLUSIVE_CPUS} has the CPUs of a container's creation: no resize changes it.")


def _role(pod: Pod) -> str:
    return katalyst.pod_role(pod.description.labels, pod.description.annotations)


def _cells(row: ProcessRow) -> tuple[str, ...]:
    verdict = "right" if row.right else "WRONG"
    return row.name, row.requested, row.given, row.belongs, row.runs, verdict


def _verdict(
    rows: Sequence[ProcessRow],
    moved: Disturbance | None,
    refused: Sequence[str],
    held: Sequence[HeldPod],
    astray: Collection[str],
) -> list[str]:
    lines = []
    if not rows:
        lines.append("No process was started.")
    elif moved is None:
        lines.append("No container has less than the whole machine, so none could be moved away.")
    elif moved.after_ms is None:
        lines.append(
            f"{moved.name} was moved to CPUs {moved.moved_to}: no repair was seen, and it runs on"
            f" {moved.back_on}."
        )
    else:
        lines.append(
            f"{moved.name} was moved to CPUs {moved.moved_to}, and was back on {moved.back_on}"
            f" after {moved.after_ms:.0f} ms."
        )
    for pod in held:
        end = f"until {pod.until} had ended" if pod.until else "to the end"
        lines.append(f"Pod {pod.pod} was held {end}.")
    if astray:
        lines.append(f"These ran on WRONG CPUs, or still do: {', '.join(sorted(astray))}.")
    elif rows:
        lines.append(f"All {len(rows)} processes run where they belong.")
    if absent := len(refused) + sum(not pod.until for pod in held):
        # The last line says why the demo fails, though no process is on wrong CPUs.
        pods = "1 pod" if absent == 1 else f"{absent} pods"
        lines.append(f"{pods} did not start: see above.")
    return lines
