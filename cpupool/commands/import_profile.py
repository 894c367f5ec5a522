"""`cpupool import`: pools and kubelet settings from what another project has for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands import (
    UsageError,
    add_command,
    add_topology,
    door,
    input_file,
    open_machine,
    read_file,
)
from cpupool.config import performance_profile
from cpupool.core.cpu_manager import NONE
from cpupool.core.errors import ConfigError, HostFileError, Problem, Severity, refuse_errors
from cpupool.core.names import POOL_FILE_PREFIX, POOL_FILE_SUFFIX

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from cpupool.commands import Commands
    from cpupool.config.performance_profile import PerformanceProfile

_EXAMPLES = """\
examples:
  cpupool import performance-profile profile.yaml --topology recorded.tar.gz
  cpupool import performance-profile profile.yaml --topology this --output imported
  oc get performanceprofile NAME -o yaml > profile.yaml

spec.cpu.isolated becomes the pool exclusive_isolated, spec.cpu.shared the pool shared_mixed and
spec.cpu.reserved the pool default. With --topology, which a machine with SMT needs,
exclusive_isolated lists one CPU of each core. What is left to do is said on standard error.

Exit code 0: it is printed, or written; 1: the files were not written; 2: the command line is wrong,
or the profile cannot be used.
"""
_PERFORMANCE_PROFILE: Final = "performance-profile"


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "import",
        summary,
        "Makes a pool file and kubelet settings from an OpenShift PerformanceProfile.",
        _EXAMPLES,
    )
    parser.add_argument(
        "kind",
        choices=(_PERFORMANCE_PROFILE,),
        help="what the file holds",
    )
    parser.add_argument(
        "file", metavar="FILE", type=input_file, help="the PerformanceProfile, as YAML or JSON"
    )
    add_topology(parser, "a machine of the nodes that the profile is for", None)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object instead")
    shape.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="write the pool file and the settings into this folder; existing files stay",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Print or write the pool file and the kubelet settings.

    Raises:
        UsageError: the profile is refused, the machine cannot be read, or a file is there already.
        HostFileError: a file cannot be written.
    """
    topology = open_machine(arguments.topology) if arguments.topology else None
    text = read_file(arguments.file)
    try:
        profile = performance_profile.parse(str(arguments.file), text)
        notes = refuse_errors(performance_profile.check(profile, topology))
    except ConfigError as error:
        raise UsageError(error) from error
    pools = performance_profile.pool_file(profile, topology)
    pool_file = f"{POOL_FILE_PREFIX}{profile.name}{POOL_FILE_SUFFIX}"
    instead = str(profile.beside_default(topology))
    if arguments.json:
        document = _as_json(profile, pool_file, pools, instead)
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        kubelet = _kubelet(profile, pool_file, instead)
        if arguments.output:
            written = {pool_file: pools, f"kubelet-{profile.name}.yaml": kubelet}
            _write(arguments.output, written, out)
        else:
            out.write(f"# {pool_file}\n{pools}---\n{kubelet}")
    _tell([*notes, _reservation(profile, instead)])
    return 0


def _tell(problems: Iterable[Problem]) -> None:
    if sys.stderr:
        sys.stderr.writelines(f"{problem}\n" for problem in problems)


def _reservation(profile: PerformanceProfile, instead: str) -> Problem:
    path = "spec.cpu.reserved"
    return Problem(
        f"with reservedSystemCPUs {profile.reserved_system_cpus}, as the Node Tuning Operator sets"
        " it, the scheduler counts the cpu of the isolated CPUs; cpupool's webhook removes this cpu"
        " from pods with pools, and other pods get it, more than the default pool has",
        f"reserve {instead} if cpupool gives out the isolated CPUs",
        Severity.WARNING,
        path,
        location=profile.locate(path),
    )


def _as_json(
    profile: PerformanceProfile, pool_file: str, pools: str, instead: str
) -> Mapping[str, object]:
    return {
        "pool_file": {"name": pool_file, "text": pools},
        "mixed_cpus": profile.mixed is not None,
        "kubelet": _settings(profile),
        "reserved_beside_default": instead,
    }


def _settings(profile: PerformanceProfile) -> dict[str, str]:
    return {"cpuManagerPolicy": NONE, "reservedSystemCPUs": str(profile.reserved_system_cpus)}


def _kubelet(profile: PerformanceProfile, pool_file: str, instead: str) -> str:
    settings = _settings(profile)
    kept = "reserved and shared" if profile.mixed else "reserved"
    return f"""\
# For {pool_file}: merge this into the kubelet's configuration.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

# cpupool gives out the isolated CPUs. If the kubelet must give them out, write static, and remove
# the pools exclusive_isolated and default from the pool file: cpupool then adds the shared CPUs.
cpuManagerPolicy: {settings["cpuManagerPolicy"]}

# The profile's {kept} CPUs, as the Node Tuning Operator sets it. This is right if the
# kubelet gives out the isolated CPUs, or if pods request as much cpu as CPUs of exclusive_isolated.
reservedSystemCPUs: "{settings["reservedSystemCPUs"]}"

# cpupool's webhook removes that cpu from pods with pools, and the scheduler gives it to other pods:
# more than the default pool has. Then reserve all CPUs outside the default pool instead, as
# `cpupool kubelet-config` prints for the pool file and its --check requires:
# reservedSystemCPUs: "{instead}"
"""


def _write(folder: Path, files: Mapping[str, str], out: TextIO) -> None:
    paths = {folder / name: text for name, text in files.items()}
    try:
        if there := [path for path in paths if path.exists()]:
            raise UsageError(f"{there[0]} is there already; name another folder with --output")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            door.tell(str(path), out)
    except OSError as error:
        raise HostFileError(
            str(error.filename or folder),
            f"cannot be written ({error.strerror})",
            "name another folder with --output",
        ) from error
