"""The device that the service drives, with its calibrations, errors and simulators.

A device is a subclass of :class:`~sf_quantum.service.device.interface.Device` with an entry
point in the group ``sf_quantum.devices``, whose name selects the device in the service's
configuration. ``interface`` defines the interface of every device; ``emulator`` and
``vendor`` implement it. ``processes`` runs the service's computations within limits.
``problems`` and ``circuits`` read a job's payload. ``readings`` holds calibrations and
measured errors, and ``drift`` raises an alarm if they drift. ``quality_problem`` builds the
problem of quality jobs, ``operations`` defines changes of settings by operators, and
``foreign`` limits the size of data from vendors.

Imports: net, protocol, qpu, samplers, service/domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sf_quantum.registry import Registry

if TYPE_CHECKING:
    from sf_quantum.service.device.interface import Device

GROUP = "sf_quantum.devices"
_registry: Registry[type[Device]] = Registry(GROUP, "device type")
#: the types of installed devices, sorted
names = _registry.names
#: function that returns the class of a device type
load = _registry.load
