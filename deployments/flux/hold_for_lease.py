"""Holds jobs with ``--setattr=sfq.qpu=NAME`` until ``sfq flux gate`` has their lease.

In ``/etc/flux/cli/plugins``, or in a folder of ``FLUX_CLI_PLUGINPATH``.
"""

from flux.cli.plugin import CLIPlugin


class HoldForLease(CLIPlugin):
    """Sets the urgency of flux submit, run, batch and alloc."""

    def preinit(self, args):
        keys = [text.partition("=")[0] for text in args.setattr or ()]
        if "sfq.qpu" in keys or "system.sfq.qpu" in keys:
            args.urgency = "hold"
