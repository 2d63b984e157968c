"""What the service drives: the device, its calibration, its errors, its simulators.

A device is a subclass of :class:`~sf_quantum.service.device.protocol.Device` with an entry
point in the group ``sf_quantum.devices``, whose name the service's configuration refers to.
``protocol`` is all that the queue asks of a device: ``emulator`` and ``vendor`` are devices.
``processes`` compute for the service, within limits. ``problems`` and ``circuits`` read the
forms of a job's payload, ``readings`` has calibrations and errors, ``drift`` the alarm on
them, ``quality_problem`` what quality jobs sample, ``operations`` changes of settings by
operators, and ``foreign`` bounds what vendors wrote.

Imports: net, protocol, qpu, samplers, service/domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sf_quantum.registry import Registry

if TYPE_CHECKING:
    from sf_quantum.service.device.protocol import Device

GROUP = "sf_quantum.devices"
_registry: Registry[type[Device]] = Registry(GROUP, "device type")
#: the types of the installed devices, sorted
names = _registry.names
#: the class of a device, by its type
load = _registry.load
