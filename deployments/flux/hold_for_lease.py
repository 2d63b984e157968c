"""Holds jobs with ``--setattr=sfq.qpu=NAME`` until ``sfq flux gate`` has their lease.

In ``/etc/flux/cli/plugins``, or in a folder of ``FLUX_CLI_PLUGINPATH``.
"""

from flux.cli.plugin import CLIPlugin

KEYS = ("sfq", "sfq.qpu")


class HoldForLease(CLIPlugin):
    """Sets the urgency of flux submit, run, batch and alloc."""

    def preinit(self, args):
        for text in args.setattr or ():
            # A ^ precedes the key of a value in a file.
            key = text.partition("=")[0].lstrip("^").removeprefix("attributes")
            if key.removeprefix(".system.").removeprefix("system.") in KEYS:
                args.urgency = "hold"
