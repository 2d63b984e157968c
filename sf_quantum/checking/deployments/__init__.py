"""Checks of deployments for errors that connectors or Slurm would report in a run.

``references`` checks how deployments are named and wrapped, ``configurations`` the
configuration of each, ``slurm`` the deployments on Slurm, and ``site_file`` the QPUs that a
site describes for QRMI.

Imports: checking, connectors, net, protocol, qpu, service/device, slurm.
"""
