"""The rules of admission, from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.commands.shell.options import add_resource_domain
from cpupool.core.names import Names
from cpupool.webhook.admission.rules import CFSQuotas, RequiredAgent, Rules

if TYPE_CHECKING:
    import argparse


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the rules, for `rules`."""
    parser.add_argument(
        "--cfs-quotas",
        choices=[choice.value for choice in CFSQuotas],
        default=CFSQuotas.ALL.value,
        help="which containers get a cpu limit: all that request a pool, or only those with shared"
        " CPUs and no exclusive ones (default: %(default)s)",
    )
    parser.add_argument(
        "--require-agent",
        choices=[choice.value for choice in RequiredAgent],
        default=RequiredAgent.NONE.value,
        help="which pods the container runtime must not start while the agent is away: those with"
        " exclusive CPUs of a pool, or also Guaranteed pods with whole CPUs; the runtime's default"
        " validator for NRI must be on (default: %(default)s)",
    )
    parser.add_argument(
        "--schedulers",
        metavar="ACCOUNT[,ACCOUNT]",
        default=",".join(sorted(Rules().schedulers)),
        help="the user names that may assign CPUs by the annotation resource-status, where the"
        " policy of a pool file reads it (default: %(default)s)",
    )
    add_resource_domain(parser)


def rules(arguments: argparse.Namespace) -> Rules:
    """Return the rules of the command line; the pool files and namespaces are not known."""
    return Rules(
        Names(arguments.resource_domain),
        cfs_quotas=CFSQuotas(arguments.cfs_quotas),
        required_agent=RequiredAgent(arguments.require_agent),
        schedulers=frozenset(filter(None, arguments.schedulers.split(","))),
    )
