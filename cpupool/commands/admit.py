"""`cpupool admit`: shows how the webhook changes a pod, without a cluster."""

from __future__ import annotations

import difflib
import json
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

import yaml
from yaml.representer import SafeRepresenter
from yaml.resolver import BaseResolver

from cpupool.commands.shell.beside import needs
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, read_file, read_text
from cpupool.commands.shell.options import add_command
from cpupool.commands.shell.rules import add_rules, rules
from cpupool.config import poolconfig
from cpupool.config.poolconfig import Source
from cpupool.core import visible
from cpupool.core.errors import ConfigError, HostFileError, ManifestError, refuse_errors
from cpupool.core.names import MIXED_CPUS_ALLOWED, Names
from cpupool.host.installed_policies import find_policy
from cpupool.host.pool_files import read_pool_files
from cpupool.kube import manifests
from cpupool.kube.earlier_admission import EarlierAdmission
from cpupool.webhook.admission import json_patch
from cpupool.webhook.admission.decision import Admitted, Denied, admit

if TYPE_CHECKING or yaml.__with_libyaml__:
    from yaml import CSafeDumper
else:
    CSafeDumper = yaml.SafeDumper

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.commands.shell.options import Commands
    from cpupool.core.errors import Problem
    from cpupool.core.pools import NodePools
    from cpupool.kube.views import Body
    from cpupool.webhook.admission.rules import Rules

_EXAMPLES = """\
examples:
  cpupool admit pod.yaml
  cpupool admit pod.yaml --pool-files configmaps/cpu-pooler-configmap.yaml --diff
  cpupool admit pod.yaml --pool-files /etc/cpu-pooler --cfs-quotas shared

The command prints the pod as the webhook completes it; of a workload it prints one pod of the
template. Warnings are comments before the pod. Without --pool-files the command knows no pools: it
checks only the form of a pool's name, sets no limit for a container with exclusive and shared CPUs,
and ignores OpenShift's resource for shared CPUs and the classes of pods.

A file may have other objects beside the pods, as a chart renders them. PriorityClasses,
RuntimeClasses, LimitRanges and Namespaces count: from them the API server fills in pods before
webhooks see them. Well-known PriorityClasses need no object: docs/user/pods.md lists them.

Exit code 0: every pod in the file is admitted; 1: one is denied; 2: the command line is wrong, or a
file that it names cannot be used.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "admit",
        summary,
        "Shows how the webhook changes a pod: prints the completed pod, or the denial.",
        _EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="POD",
        type=input_file,
        help="a file with Pods in YAML or JSON, with workloads as Deployment or Job, with lists of"
        " them, or - for standard input",
    )
    parser.add_argument(
        "--pool-files",
        metavar="FILE",
        type=input_file,
        nargs="+",
        help="the pools of the cluster: pool files, ConfigMap manifests, or folders with"
        " poolconfig-<name>.yaml files (default: not known)",
    )
    add_rules(parser)
    parser.add_argument(
        "--mixed-cpus-allowed",
        action="store_true",
        help="every namespace has the annotation that OpenShift's resource for shared CPUs needs"
        " (default: none has)",
    )
    parser.add_argument(
        "--as",
        metavar="ACCOUNT",
        dest="account",
        default="",
        help="the user name of who creates the pods, as the webhook sees it (default: not known)",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--diff", action="store_true", help="print only what is changed: nothing, if nothing is"
    )
    shape.add_argument("--json", action="store_true", help="print one JSON object instead")
    needs(parser, "--mixed-cpus-allowed --schedulers", "--pool-files")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Print the webhook's answer about each pod.

    Returns:
        0 where all are admitted.

    Raises:
        UsageError: a file cannot be used.
    """
    going_by = rules(arguments)
    if arguments.pool_files is not None:
        going_by = going_by.knowing(_pools(arguments.pool_files, going_by.names))
    pods, earlier = _read(arguments.file)
    allowed = {MIXED_CPUS_ALLOWED: ""} if arguments.mixed_cpus_allowed else {}
    going_by = replace(
        going_by, namespaces=lambda name: {**earlier.namespaces.get(name, {}), **allowed}
    )
    decisions = _decide(pods, earlier, going_by, arguments)
    if arguments.json:
        listed = [_as_json(*pair) for pair in zip(pods, decisions, strict=True)]
        out.write(json.dumps({"pods": listed}, indent=2) + "\n")
    else:
        write = _diff if arguments.diff else _manifest
        texts = ("".join(write(*pair)) for pair in zip(pods, decisions, strict=True))
        out.write(("" if arguments.diff else "---\n").join(texts))
    return 1 if any(isinstance(decision, Denied) for decision in decisions) else 0


def _read(path: Path) -> tuple[list[Body], EarlierAdmission]:
    try:
        found = manifests.read(str(path), read_text(path), copies=False)
        found.refuse_others_alone()
        earlier = EarlierAdmission.of(found.others)
    except ManifestError as error:
        raise UsageError(error) from error
    if not found.pods:
        raise UsageError(f"{path}: there is no pod in it; name another file")
    return [earlier.limited(pod) for pod in found.pods], earlier


def _decide(
    pods: Iterable[Body], earlier: EarlierAdmission, going_by: Rules, arguments: argparse.Namespace
) -> list[Admitted | Denied]:
    try:
        return [_decision(pod, earlier.added(pod), going_by, arguments.account) for pod in pods]
    except ManifestError as error:
        path = arguments.file
        raise UsageError(str(error) if error.source else f"{path}: {error}") from error


def _decision(
    pod: Body, added: Mapping[str, object], going_by: Rules, account: str
) -> Admitted | Denied:
    """Decide on a pod with the API server's own additions, which the printed pod has again."""
    seen = {**pod, "spec": {**pod["spec"], **added}} if added else pod
    decision = admit(seen, going_by, _namespace(pod), account)
    if isinstance(decision, Denied) or not added:
        return decision
    spec = {key: value for key, value in decision.body["spec"].items() if key not in added}
    return replace(decision, body={**decision.body, "spec": spec})


def _pools(paths: Sequence[Path], names: Names) -> list[NodePools]:
    problems: list[Problem] = []
    try:
        sources = [source for path in paths for source in _sources(path, problems)]
        files = poolconfig.parse_all(sources, names, problems, find_policy=find_policy)
        refuse_errors(problems)
    except (ConfigError, HostFileError) as error:
        raise UsageError(error) from error
    if not files:
        raise UsageError(f"{paths[0]}: there is no pool file in it; name another, or none")
    for file in files:
        if file.unusable and sys.stderr:
            # As the webhook: the pools of the file are good without its policy.
            sys.stderr.write(f"cpupool: warning: {file.unusable}\n")
    return [file.pools for file in files]


def _sources(path: Path, problems: list[Problem]) -> Iterable[Source]:
    if path.is_dir():
        return [Source.of(str(path / name), text) for name, text in read_pool_files(path).items()]
    return poolconfig.sources(str(path), read_file(path), problems)


def _manifest(before: Body, decision: Admitted | Denied) -> Iterator[str]:
    if isinstance(decision, Denied):
        yield _denial(before, decision)
    yield from (f"# warning: {warning}\n" for warning in decision.warnings)
    if isinstance(decision, Admitted):
        yield _yaml(decision.body)


def _diff(before: Body, decision: Admitted | Denied) -> Iterator[str]:
    if isinstance(decision, Denied):
        yield _denial(before, decision)
    yield from (f"# warning: {warning}\n" for warning in decision.warnings)
    if isinstance(decision, Admitted):
        old, new = (_yaml(body).splitlines(keepends=True) for body in (before, decision.body))
        yield from difflib.unified_diff(old, new, _name(before), f"{_name(before)}, admitted")


def _denial(body: Body, decision: Denied) -> str:
    return f"{_name(body)} is denied: {decision.message}\n"


def _as_json(before: Body, decision: Admitted | Denied) -> dict[str, Any]:
    if isinstance(decision, Denied):
        problems = [
            {"path": problem.path, "what": problem.what, "remedy": problem.remedy}
            for problem in decision.problems
        ]
        warnings = list(decision.warnings)
        return {
            "pod": _name(before),
            "admitted": False,
            "problems": problems,
            "warnings": warnings,
        }
    return {
        "pod": _name(before),
        "admitted": True,
        "warnings": list(decision.warnings),
        "patch": json_patch.patch(before, decision.body),
        "body": decision.body,
    }


_NO_TEXT_ELSEWHERE: Final = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+|[-+]?0o[0-7]+|[yYnN]")
"""Plain words that are text to PyYAML, and numbers or booleans to kubectl (sigs.k8s.io/yaml)."""


class _Styles(SafeRepresenter):
    """Writes values so that kubectl reads the same, and texts of several lines as lines."""

    def represent_scalar(self, tag: str, value: str, style: str | None = None) -> yaml.ScalarNode:
        """Choose the style of a scalar."""
        if "\n" in value:
            style = "|"
        elif tag == BaseResolver.DEFAULT_SCALAR_TAG and _NO_TEXT_ELSEWHERE.fullmatch(value):
            style = "'"
        return super().represent_scalar(tag, value, style)


class _Dumper(_Styles, yaml.SafeDumper):
    """PyYAML's emitter."""


class _FastDumper(_Styles, CSafeDumper):
    """libyaml's emitter, ten times as fast, or PyYAML's where it is missing."""


_ESCAPED: Final = "\\U000"
"""The form in which libyaml writes an emoji, whatever `allow_unicode` says."""
_LINE_ENDS: Final = re.compile(r"\\[NLP]")
"""Its form of the line ends that PyYAML writes unchanged, and does not read back as one."""


def _yaml(body: Body) -> str:
    def written(dumper: type[_Dumper | _FastDumper], *, allow_unicode: bool) -> str:
        return yaml.dump(
            body, Dumper=dumper, sort_keys=False, allow_unicode=allow_unicode, width=100
        )

    text = written(_FastDumper, allow_unicode=True)
    if _ESCAPED in text and not _LINE_ENDS.search(text):
        text = written(_Dumper, allow_unicode=True)
    # A program may read the output: a mark that no terminal shows is an escape of YAML's own.
    return text if text == visible.lines(text) else written(_FastDumper, allow_unicode=False)


def _name(body: Body) -> str:
    metadata = body.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    return visible.line(f"{_namespace(body)}/{name}")


def _namespace(body: Body) -> str:
    return str((body.get("metadata") or {}).get("namespace") or "default")
