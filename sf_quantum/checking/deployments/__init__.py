"""Checks of deployments for errors that connectors or Slurm would report in a run.

``references`` checks how deployments are named and wrapped, ``configurations`` each
deployment's configuration, ``slurm`` the deployments on Slurm, and ``site_file`` the QPUs in
a site's configuration of QRMI.

Imports: checking, connectors, net, protocol, qpu, service/device, slurm.
"""
