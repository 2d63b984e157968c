"""The deployments of a StreamFlow file: what connectors and Slurm would refuse.

``references`` checks how deployments are named and wrapped, ``configurations`` the
configuration of each, ``slurm`` those on Slurm, and ``site_file`` the QPUs that a site
describes for QRMI.

Imports: checking, connectors, net, protocol, qpu, service/device, slurm.
"""
