"""Checks of the requested solver, and refusals in the form that D-Wave's client reads."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import JSONResponse

from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Topology
from sf_quantum.service.device.interface import Device
from sf_quantum.service.domain.errors import Refused

# prefix by which the client recognises an offline solver
OFFLINE = "Solver is offline: "


def refused(error: Refused) -> Response:
    """Write a refusal in SAPI's form, with status 400 for every invalid request."""
    return JSONResponse(content(error), _status(error), error.headers)


def content(error: Refused) -> dict[str, JSON]:
    """Describe the refusal of a request, or of one problem in a request."""
    message = f"{error.field}: {error.detail}" if error.field else error.detail
    offline = OFFLINE if error.status == 503 else ""
    return {"error_code": _status(error), "error_msg": f"{offline}{message}"}


def _status(error: Refused) -> int:
    return 400 if error.status == 422 else error.status


def check_known(device: Device) -> None:
    """Refuse with 503 if the service has just started and the QPU has not reported yet."""
    status = device.status
    if not status.online and device.description.technology == "unknown":
        why = f"{device.name} is not known yet: {status.reason}"
        raise Refused(503, why, headers={"Retry-After": "1"})


def graph(device: Device) -> Topology:
    """Return the graph of an annealer; refuse other devices with 404."""
    check_known(device)
    if (graph := device.description.graph) is None:
        raise Refused(404, f"{device.name} is not an annealer and has no solver")
    return graph


def check_solver(device: Device, name: str, graph_id: str | None = None) -> None:
    """Refuse a request for another solver, or for a graph that has changed, with 404."""
    id_ = graph(device).id
    if name != device.name:
        raise Refused(404, f"no solver {name!r}; the solver is {device.name!r}")
    if graph_id not in (None, id_):
        detail = (
            f"solver {device.name!r} has graph {id_}, not {graph_id!r}: fetch the solver "
            "again"
        )
        raise Refused(404, detail)
