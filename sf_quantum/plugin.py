"""The plugin that StreamFlow loads, and the types that StreamFlow files can name."""

from __future__ import annotations

from streamflow.ext.plugin import StreamFlowPlugin

from sf_quantum.candidates.filter import CandidateFilter
from sf_quantum.connectors import (
    streamflow_commands,
    streamflow_links,
    streamflow_names,
    streamflow_outputs,
)
from sf_quantum.connectors.emulator import EmulatorConnector
from sf_quantum.connectors.nodes import NodesConnector
from sf_quantum.connectors.rest import RestConnector
from sf_quantum.connectors.slurm.connector import SlurmConnector
from sf_quantum.connectors.ssh import RenewingSSHConnector
from sf_quantum.journal.scheduler import JournalScheduler


class QuantumPlugin(StreamFlowPlugin):
    """The plugin ``sf_quantum``."""

    def register(self) -> None:
        """Register the connectors, the filter and the scheduler, and patch StreamFlow."""
        for module in (
            streamflow_commands,
            streamflow_links,
            streamflow_names,
            streamflow_outputs,
        ):
            for owner, name, replacement in module.REPLACEMENTS:
                setattr(owner, name, replacement)
        self.register_binding_filter("sfq.candidate", CandidateFilter)
        self.register_connector("sfq.emulator", EmulatorConnector)
        self.register_connector("sfq.nodes", NodesConnector)
        self.register_connector("sfq.rest", RestConnector)
        self.register_connector("sfq.slurm", SlurmConnector)
        self.register_connector("sfq.ssh", RenewingSSHConnector)
        self.register_scheduler("sfq.journal", JournalScheduler)
