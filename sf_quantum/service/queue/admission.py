"""Whether a job can run on the device as it is now."""

from __future__ import annotations

import asyncio

from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.drift import DriftWatch
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Submission
from sf_quantum.threads import in_thread


async def check(device: Device, watch: DriftWatch, asked: Submission) -> None:
    """Refuse what the device cannot run.

    :raises Refused: 422, naming the field
    """
    what = asked.kind, asked.content, asked.parameters
    try:
        _check_calibration(device, watch, asked.calibrated_within)
        if asked.written is not None:
            device.check_asked(asked.kind, asked.parameters)
        elif asked.kind == "problem":
            device.check(*what)
        else:
            # a thread of its own: many that take their turns must not use up
            # those that find out who is calling
            await asyncio.wrap_future(in_thread(lambda: device.check(*what)))
    except FieldError as error:
        raise Refused(422, error.detail, error.field) from error


def _check_calibration(device: Device, watch: DriftWatch, within: float | None) -> None:
    if within is None:
        return
    age = device.calibrations.age_seconds
    if age > within:
        detail = f"the device was calibrated {age:,.0f} s ago"
        raise FieldError("calibrated_within", detail)
    watch.look(device)
    if watch.alarms:
        drifting = " and ".join(watch.alarms)
        raise FieldError("calibrated_within", f"the device drifts: {drifting}")
