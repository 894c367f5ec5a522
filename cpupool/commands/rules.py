"""The rules of admission, as the commands that go by them are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.commands import add_resource_domain
from cpupool.core.names import Names
from cpupool.wire.pod_rules import CFSQuotas, Rules

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from cpupool.wire.pod_rules import LargestPool


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add `--cfs-quotas` and `--resource-domain`, for `rules`."""
    parser.add_argument(
        "--cfs-quotas",
        choices=[choice.value for choice in CFSQuotas],
        default=CFSQuotas.ALL.value,
        help="which containers get a cpu limit: all that request a pool, or only those with shared"
        " CPUs and no exclusive ones (default: %(default)s)",
    )
    add_resource_domain(parser)


def rules(arguments: argparse.Namespace, pools: Mapping[str, LargestPool] | None = None) -> Rules:
    """Give the rules of the command line, with the pools where they are known."""
    quotas = CFSQuotas(arguments.cfs_quotas)
    return Rules(Names(arguments.resource_domain), pools, quotas)
