"""The node that `doctor` and `support-bundle` look at: this one, or a recorded one."""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from cpupool.commands.checks.topology_checks import InCluster
from cpupool.commands.shell import away
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file
from cpupool.commands.shell.options import (
    METRICS_PORT,
    NODE_NAME,
    POOL_FOLDER,
    add_node_labels,
    add_resource_domain,
    add_setting,
    add_trees,
)
from cpupool.config import kubelet_config
from cpupool.core.errors import HostFileError
from cpupool.core.names import Names
from cpupool.host import recording, usable_cpus
from cpupool.host.kubelet_file import KubeletConfigFile, KubeletFiles
from cpupool.host.processes import command_lines, daemons
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.kube import views
from cpupool.manager import status_json
from cpupool.wire import checkpoint_checksum, json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.commands.shell.away import Away
    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.core.topology import CPUTopology
    from cpupool.kube.views import Body
    from cpupool.manager.report import NodeStatus

READY: Final = "readyz"
METRICS: Final = "metrics"
_AGENT: Final = f"http://127.0.0.1:{METRICS_PORT}"
_TIMEOUT_S: Final = 3.0
_LONGEST_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A support bundle.

    Attributes:
        folder: where it was unpacked.
        made_s: when it was made, in seconds since 1970.
    """

    folder: Path
    made_s: float


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as an API server knows it.

    Attributes:
        name: its name.
        server: the API server.
    """

    name: str
    server: Away

    def topology(self) -> InCluster:
        """Ask for its NodeResourceTopology.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return InCluster(self.name, *self.server.node_topology(self.name))

    def kubelet_version(self) -> str:
        """Ask for the version of its kubelet.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return self.server.kubelet_version(self.name)

    def kubelet_cpus(self) -> int | None:
        """Ask how many CPUs its kubelet counts; None if the kubelet has not reported it.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return self.server.kubelet_cpus(self.name)

    def pods(self) -> Sequence[Body]:
        """Ask for its pods.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return self.server.pods(self.name)


@dataclass(frozen=True, slots=True)
class NodeSources:
    """The places of a node's facts.

    Attributes:
        root: its trees.
        config: its pool file, or the folder of pool files.
        kubelet_files: where the kubelet's configuration is.
        agent: the agent's address, or where its recorded answers are.
        names: the public strings, with the resource domain.
        labels: the node's labels; None where they are not given.
        bundle: its support bundle; None for a node that can be asked.
        titles: the users' names of files that are not where users know them.
        cluster: the node in its cluster; None where no API server is named.
    """

    root: HostRoot
    config: Path
    kubelet_files: KubeletFiles
    agent: str
    names: Names
    labels: Mapping[str, str] | None
    bundle: Bundle | None = None
    titles: Mapping[Path, str] = field(default_factory=dict)
    cluster: ClusterNode | None = None

    @property
    def kubelet_config(self) -> Path:
        """The file with the kubelet's configuration; the usual one where none is named."""
        return self.kubelet_files.path or self.root.kubelet_config

    def shown(self, path: Path) -> str:
        """Name a file as the user knows it."""
        if path in self.titles:
            return self.titles[path]
        if self.bundle is not None and path.is_relative_to(self.bundle.folder):
            return str(path.relative_to(self.bundle.folder))
        return str(path)

    def ask_agent(self, what: str) -> str | None:
        """Ask the agent for READY or METRICS; None where it gives no answer."""
        if self.bundle is not None:
            return _text(Path(self.agent, what))
        address = urlsplit(f"{self.agent}/{what}")
        connection = HTTPConnection(address.netloc, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", address.path)
            return connection.getresponse().read(_LONGEST_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def usable(self) -> CPUTopology:
        """Return the machine without the CPUs that its cgroups keep from containers.

        Raises:
            HostFileError: the machine cannot be read.
        """
        return usable_cpus.usable(
            Sysfs.at(self.root.sysfs), self.root.cgroup, self.root.cgroup_root
        )

    def topology(self) -> InCluster | None:
        """Ask the API server for the node's NodeResourceTopology; None where none is named.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return None if self.cluster is None else self.cluster.topology()

    def kubelet_version(self) -> str | None:
        """Ask the API server for the kubelet's version; None where none is named.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return None if self.cluster is None else self.cluster.kubelet_version()

    def kubelet_cpus(self) -> int | None:
        """Ask the API server how many CPUs the kubelet counts; None where none is named.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return None if self.cluster is None else self.cluster.kubelet_cpus()

    def pods(self) -> Sequence[Body] | None:
        """Ask the API server for the node's pods; None where none is named.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        return None if self.cluster is None else self.cluster.pods()

    def command_lines(self, *programs: str) -> list[tuple[str, ...]] | None:
        """Return the command lines of some programs of the node; None where none can be seen.

        Raises:
            APIError: the API server does not answer, or refuses.
        """
        node_pods = self.pods()
        proc, found = self.root.proc, None
        if self.bundle is None:
            running = [words for program in programs for words in command_lines(proc, program)]
            found = running if running or any(daemons(proc)) else None
        if node_pods is not None:
            named = (views.command_lines(body, each) for body in node_pods for each in programs)
            found = [*(found or ()), *chain.from_iterable(named)]
        return found

    def sockets(self, folders: Iterable[str]) -> tuple[list[tuple[str, int]], list[str]]:
        """Return the sockets in some folders, each with its owner; and the missing folders.

        Args:
            folders: as the agent names them.
        """
        found: list[tuple[str, int]] = []
        missing: list[str] = []
        for folder in folders if self.bundle is None else ():
            path = Path(folder)
            there = path if path.is_relative_to(self.root.base) else self.root.base / folder[1:]
            try:
                found += [
                    (f"{folder}/{each.name}", each.lstat().st_uid)
                    for each in sorted(there.iterdir())
                    if each.is_socket()
                ]
            except (OSError, ValueError):
                # The second: no folder can be called so.
                missing.append(folder)
        return found, missing

    def memory_manager(self) -> str | None:
        """Return the policy of the kubelet's memory manager; None where it cannot be seen.

        Raises:
            CPUPoolError: a file that names it cannot be read.
        """
        if (state := read(self.root.memory_manager_state)) is not None:
            return checkpoint_checksum.policy("the kubelet's memory_manager_state", state)
        config = self.kubelet()
        return config.known_memory_manager if config else None

    def kubelet(self) -> KubeletConfig | None:
        """Return the configuration that the kubelet uses; None where it is not known.

        Raises:
            CPUPoolError: a part of it cannot be read.
        """
        path = self.kubelet_config
        elsewhere = self.bundle is not None or path in self.titles
        if not elsewhere and (path.is_file() or not path.exists()):
            # This names the right that is missing.
            read(path)
            files = KubeletFiles.of(self.root, path, self.kubelet_files.folder)
            return KubeletConfigFile(files, host=self.root).read()
        text = read(path)
        return None if text is None else kubelet_config.parse(self.shown(path), text)

    def runtime_configurations(self) -> Iterator[Mapping[str, Any]]:
        """Yield the configuration files of the container runtime that can be read."""
        folder = self.root.base / "etc"
        fragments = sorted((folder / "crio/crio.conf.d").glob("*.conf"))
        for file in (folder / "containerd/config.toml", folder / "crio/crio.conf", *fragments):
            # TOML that is nested too deep is no ValueError.
            with suppress(OSError, ValueError, RecursionError):
                yield tomllib.loads(file.read_text("utf-8"))

    def status(self) -> tuple[NodeStatus, float] | None:
        """Read the agent's status, and its age in seconds; None without a file.

        Raises:
            HostFileError: the file cannot be read, or is of another version.
        """
        path = self.root.status
        text = read(path)
        if text is None:
            return None
        now_s = self.bundle.made_s if self.bundle else time.time()
        age_s = now_s - path.stat().st_mtime
        try:
            return status_json.from_json(json_text.load(text, unique=True)), age_s
        except JSONRefused as error:
            raise HostFileError(
                str(path), f"it is no status file of this version: {error}", "restart the agent"
            ) from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say where the node's facts are."""
    parser.add_argument(
        "--config",
        metavar="PATH",
        type=Path,
        help="the node's pool file, or the folder with poolconfig-<name>.yaml files"
        f" (default: {POOL_FOLDER})",
    )
    add_node_labels(parser)
    add_resource_domain(parser)
    parser.add_argument(
        "--kubelet-config",
        metavar="FILE",
        type=input_file,
        help="the kubelet's configuration (default: what the running kubelet's --config names, or"
        " config.yaml in its folder)",
    )
    add_setting(parser, "kubelet-config-dir")
    parser.add_argument(
        "--agent",
        metavar="URL",
        type=_agent,
        default=_AGENT,
        help="where the agent answers /readyz (default: %(default)s)",
    )
    add_trees(parser)


def this_node(arguments: argparse.Namespace) -> NodeSources:
    """Return the node that the command line names.

    Raises:
        UsageError: a file or folder that it names is not there.
    """
    root = HostRoot.under(arguments.host_root, arguments.cgroup_root)
    if not root.sysfs.is_dir():
        raise UsageError(f"--host-root {arguments.host_root}: there is no sys in it; name another")
    return NodeSources(
        root=root,
        config=_named(arguments.config) or POOL_FOLDER,
        kubelet_files=KubeletFiles(_named(arguments.kubelet_config), arguments.kubelet_config_dir),
        agent=arguments.agent,
        names=Names(arguments.resource_domain),
        labels=arguments.node_labels,
    )


def recorded_node(arguments: argparse.Namespace, archive: Path, folder: Path) -> NodeSources:
    """Unpack a support bundle into a folder.

    Raises:
        UsageError: it is none, or a file or folder that the command line names is not there.
    """
    try:
        recorded = recording.extract(archive, folder)
    except HostFileError as error:
        raise UsageError(error) from error
    root = HostRoot.under(folder, arguments.cgroup_root)
    return NodeSources(
        root=root,
        config=_named(arguments.config) or folder / recording.POOL_FILES,
        kubelet_files=KubeletFiles(_named(arguments.kubelet_config)),
        agent=str(folder / recording.AGENT),
        names=Names(arguments.resource_domain),
        labels=arguments.node_labels,
        bundle=Bundle(folder, recorded.timestamp()),
    )


def of_cluster(node: NodeSources, arguments: argparse.Namespace, folder: Path) -> NodeSources:
    """Return a node with the facts of the API server that the command line does not give.

    Args:
        node: where the other facts are.
        arguments: names the API server and the node.
        folder: an empty folder, for the pool files and the kubelet's configuration.

    Raises:
        UsageError: no node is named, or the API server has no such node or ConfigMap.
        CPUPoolError: the API server does not answer, or refuses.
    """
    name = arguments.node_name
    if not name:
        raise UsageError(f"the node has no name; give --node-name, or set {NODE_NAME}")
    server = away.away(arguments)
    config, kubelet_files = node.config, node.kubelet_files
    titles = dict(node.titles)
    if arguments.config is None:
        config = folder / "pools"
        config.mkdir()
        titles[config] = f"ConfigMap {server.config_map}"
        for file, text in server.pool_files().items():
            (config / file).write_bytes(text)
    if arguments.kubelet_config is None:
        configz = folder / "configz"
        configz.write_text(json.dumps(server.kubelet_configuration(name)))
        titles[configz] = f"configz of {name}"
        kubelet_files = replace(kubelet_files, path=configz)
    labels = server.labels(name) if node.labels is None else node.labels
    return replace(
        node,
        config=config,
        kubelet_files=kubelet_files,
        labels=labels,
        titles=titles,
        cluster=ClusterNode(name, server),
    )


def _named(path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise UsageError(f"{path}: no such file or folder; name one that is there")
    return path


def _agent(text: str) -> str:
    try:
        address = urlsplit(text)
        usable = address.scheme == "http" and address.hostname and address.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write it as {_AGENT}")
    return text.rstrip("/")


def read(path: Path) -> bytes | None:
    """Read a file of the node; None where there is no such file.

    Raises:
        HostFileError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise HostFileError(str(path), str(error.strerror), "run this as root") from error


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None
