"""``sfq flux``: leases for held jobs of a Flux instance."""

from __future__ import annotations

import argparse

from sf_quantum.cli.batch import gating
from sf_quantum.qpu.leasing.gating.flux import Flux


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each action."""
    parser.epilog = (
        "It runs as the owner of the instance. If others have jobs there, the QPU service "
        "has to know the owner as root or an admin, since the leases are those of the "
        "jobs' users."
    )
    actions = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    gating.add_gate(actions, Flux)


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    return gating.run(args)
