"""``sfq pbs``: leases for jobs of OpenPBS that request a QPU (deployments/pbs)."""

from __future__ import annotations

import argparse

from sf_quantum.cli.batch import gating
from sf_quantum.qpu.leasing.gating.pbs import Pbs


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each action."""
    parser.epilog = (
        "It runs on a host with PBS's commands, as root or as an operator of PBS, who has to "
        "be root or an admin for the QPU service, since the leases are those of the jobs' users."
    )
    actions = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    gating.add_gate(actions, Pbs)


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    return gating.run(args)
