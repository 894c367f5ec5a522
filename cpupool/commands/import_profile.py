"""`cpupool import`: makes pools and kubelet settings of another project's configuration."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import yaml

from cpupool.commands.shell import door
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, open_machine, read_file
from cpupool.commands.shell.options import add_command, add_topology
from cpupool.config import kubelet_config, kubelet_start, performance_profile, profile_kubelet
from cpupool.config.kubelet_settings import CPU_MANAGER, CPUS, TOPOLOGY_MANAGER, KubeletNeeds
from cpupool.core.errors import ConfigError, HostFileError, Problem, Severity, refuse_errors
from cpupool.core.names import POOL_FILE_PREFIX, POOL_FILE_SUFFIX
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.commands.shell.options import Commands
    from cpupool.config.performance_profile import PerformanceProfile
    from cpupool.core.topology import CPUTopology

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
        snippet = _snippet(profile)
        found = [
            *performance_profile.check(profile, topology),
            *profile_kubelet.notes(profile, snippet),
        ]
        notes = refuse_errors(found)
        settings = profile_kubelet.settings(profile, snippet, topology)
    except ConfigError as error:
        raise UsageError(error) from error
    pools = performance_profile.pool_file(profile, topology)
    pool_file = f"{POOL_FILE_PREFIX}{profile.name}{POOL_FILE_SUFFIX}"
    kubelet = _kubelet(profile, pool_file, settings)
    if arguments.json:
        document = _as_json(profile, pool_file, pools, settings)
        out.write(json.dumps(document, indent=2) + "\n")
    elif arguments.output:
        written = {pool_file: pools, f"kubelet-{profile.name}.yaml": kubelet}
        _write(arguments.output, written, out)
    else:
        out.write(f"# {pool_file}\n{pools}---\n{kubelet}")
    _tell([*notes, _reservation(profile), *_refused(profile, kubelet, topology)])
    return 0


def _snippet(profile: PerformanceProfile) -> Mapping[str, object]:
    """Read the kubelet's settings in the profile's annotation.

    Raises:
        ConfigError: they are no JSON object.
    """
    if not profile.snippet:
        return {}
    what, path = "this is no JSON object", profile_kubelet.SNIPPET_PATH
    try:
        found = json_text.load(profile.snippet)
    except JSONRefused as error:
        what, found = f"{what}: {error}", None
    if isinstance(found, dict):
        return found
    remedy = "write the settings as a JSON object, or remove the annotation"
    raise ConfigError([Problem(what, remedy, path=path, location=profile.locate(path))])


def _tell(problems: Iterable[Problem]) -> None:
    if sys.stderr:
        sys.stderr.writelines(f"{problem}\n" for problem in problems)


def _reservation(profile: PerformanceProfile) -> Problem:
    path = "spec.cpu.reserved"
    return Problem(
        f"the Node Tuning Operator sets reservedSystemCPUs to {profile.reserved_system_cpus}, and"
        " the scheduler then counts the cpu of the isolated CPUs, which cpupool's webhook removes"
        " from pods with pools: other pods get more than the default pool has",
        "reserve the CPUs of the settings, or the operator's if the kubelet gives out the isolated"
        " CPUs",
        Severity.WARNING,
        path,
        location=profile.locate(path),
    )


def _refused(
    profile: PerformanceProfile, kubelet: str, topology: CPUTopology | None
) -> Iterator[Problem]:
    """Yield why no kubelet starts with the settings of the annotation on a known machine."""
    if topology is None:
        return
    needs = KubeletNeeds.of(profile.pools(topology), topology)
    path = profile_kubelet.SNIPPET_PATH
    try:
        found = tuple(kubelet_start.refusals(kubelet_config.parse(path, kubelet), needs))
    except ConfigError as error:
        found = tuple(error.problems)
    where = profile.locate(path)
    for problem in found:
        what = f"{problem.path}: {problem.what}"
        yield Problem(what, problem.remedy, Severity.WARNING, path, location=where)


def _as_json(
    profile: PerformanceProfile, pool_file: str, pools: str, settings: Mapping[str, object]
) -> Mapping[str, object]:
    """Return all as JSON: `kubelet` reserves as the operator does, the other list beside it."""
    return {
        "pool_file": {"name": pool_file, "text": pools},
        "mixed_cpus": profile.mixed is not None,
        "kubelet": {**settings, CPUS: str(profile.reserved_system_cpus)},
        "reserved_beside_default": settings[CPUS],
    }


def _kubelet(profile: PerformanceProfile, pool_file: str, settings: Mapping[str, object]) -> str:
    kept = ["reserved", *(["ovsDpdk"] if profile.ovs_dpdk else [])]
    kept += ["shared"] if profile.mixed else []
    rest = {key: value for key, value in settings.items() if key not in (CPU_MANAGER, CPUS)}
    carried = "\n# The profile's other settings, as the Node Tuning Operator makes them.\n"
    carried += yaml.safe_dump(rest, sort_keys=True)
    if not (profile.dra or profile.topology_policy):
        carried = f"""
# The profile names no numa.topologyPolicy; the Node Tuning Operator then sets this one:
# {TOPOLOGY_MANAGER}: {profile_kubelet.USUAL_TOPOLOGY_POLICY}
{carried if rest else ""}"""
    return f"""\
# For {pool_file}: merge this into the kubelet's configuration.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

# cpupool gives out the isolated CPUs. If the kubelet must give them out, write static, and remove
# the pools exclusive_isolated and default from the pool file: cpupool then adds the shared CPUs.
{CPU_MANAGER}: {settings[CPU_MANAGER]}
{carried}
# All CPUs outside the default pool, as `cpupool kubelet-config` prints for the pool file: cpupool's
# webhook removes the cpu of the isolated CPUs from pods with pools, and the scheduler would give it
# to other pods.
{CPUS}: "{settings[CPUS]}"

# The Node Tuning Operator reserves the profile's CPUs of {", ".join(kept)}. This is right if the
# kubelet gives out the isolated CPUs, or if pods request as much cpu as CPUs of exclusive_isolated:
# {CPUS}: "{profile.reserved_system_cpus}"
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
