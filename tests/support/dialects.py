"""All dialects of the service in one OpenAPI document, and requests of them that succeed.

The service's own document has neither SAPI nor IQM's API, which their vendors define. Here
they have the bodies that the service reads, and links: what one answer has, other requests
are sent. So a stateful test follows a job from its submission to its deletion.
"""

from __future__ import annotations

import base64
import json
import secrets
import struct
from collections.abc import Iterator, Mapping
from typing import cast

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from sf_quantum.files import JSON, mapping
from sf_quantum.service import metrics
from sf_quantum.service.dialects import dialect
from sf_quantum.service.dialects.iqm.circuits import CircuitJob
from sf_quantum.service.dialects.sapi.solver import Problem
from sf_quantum.service.page import routes as page
from tests.support.folders import DATA
from tests.support.service import example_bqm

#: paths whose answers the document does not describe
VENDORS = ("/sapi/", "/api/v1/", "/circuits", "/calibration-sets")
SEQUENCE = (DATA / "sequence.json").read_text()
CIRCUIT = (
    'OPENQASM 3.0; include "stdgates.inc"; '
    "gate r(a, b) q { U(a, b - pi / 2, pi / 2 - b) q; } qubit[5] q; bit[1] c; "
    "r(1.5, 0.25) q[0]; c[0] = measure q[0];"
)
#: by technology of the device: the kind of the service's own jobs
KINDS: Mapping[str, str] = {
    "annealer": "problem",
    "superconducting": "circuit",
    "neutral-atom": "sequence",
    "photonic": "photonic",
}
# by the operation that makes something: what of its answer is a parameter of others

_LINKS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "POST /v1/leases": ("201", {"lease_id": "id", "session_id": "id"}),
    "POST /sessions": ("200", {"lease_id": "id", "session_id": "id"}),
    "POST /v1/jobs": ("201", {"job_id": "id"}),
    "POST /jobs": ("200", {"number": "id"}),
    "POST /sapi/v2/problems": ("200", {"name": "id"}),
    "POST /api/v1/jobs/{qc}/{job_type}": ("201", {"job_id": "id"}),
    "POST /circuits": ("201", {"job_id": "id"}),
}
# of what is made by an operation, the paths that take it
_TAKERS: Mapping[str, tuple[str, ...]] = {
    "POST /v1/leases": ("/v1/leases/{lease_id}", "/sessions/{session_id}"),
    "POST /sessions": ("/sessions/{session_id}", "/v1/leases/{lease_id}"),
    "POST /v1/jobs": ("/v1/jobs/{job_id}",),
    "POST /jobs": ("/jobs/{number}",),
    "POST /sapi/v2/problems": ("/sapi/v2/problems/{name}",),
    "POST /api/v1/jobs/{qc}/{job_type}": ("/api/v1/jobs/{job_id}",),
    "POST /circuits": ("/circuits/{job_id}", "/api/v1/jobs/{job_id}"),
}


def document(title: str = "all dialects") -> dict[str, JSON]:
    """Describe all dialects."""
    routes: list[APIRoute] = []
    own = [*page.router.routes, *metrics.router.routes]
    for name in ("v1", "", "warden", "sapi", "iqm"):
        of_vendor = name in ("sapi", "iqm")
        for route in dialect.load(name).routes() if name else own:
            # SAPI's paths also exist with a slash in the end
            again = of_vendor and getattr(route, "path", "").endswith("/")
            if isinstance(route, APIRoute) and not again:
                routes += [route] if of_vendor or route.include_in_schema else []
    hidden = [route for route in routes if not route.include_in_schema]
    for one in hidden:
        one.include_in_schema = True
    try:
        made = get_openapi(title=title, version="1", routes=routes)
    finally:
        for one in hidden:
            one.include_in_schema = False
    told: dict[str, JSON] = json.loads(json.dumps(made))
    paths = mapping(told["paths"])
    _add_bodies(told, paths)
    for operation in _operations(paths):
        # ids of FastAPI are those of functions, of which dialects have the same
        operation[2]["operationId"] = f"{operation[0]} {operation[1]}"
    _add_links(paths)
    return told


def _operations(
    paths: Mapping[str, JSON],
) -> Iterator[tuple[str, str, dict[str, JSON]]]:
    for path, methods in paths.items():
        for method, operation in mapping(methods).items():
            yield method.upper(), path, mapping(operation)


def _add_bodies(told: dict[str, JSON], paths: Mapping[str, JSON]) -> None:
    """Describe the bodies that routes read by themselves."""
    reference = "#/components/schemas/{model}"
    schemas = mapping(mapping(told["components"])["schemas"])
    models: dict[str, JSON] = {}
    described: tuple[type[BaseModel], ...] = (Problem, CircuitJob)
    for model in described:
        schema: dict[str, JSON] = model.model_json_schema(ref_template=reference)
        schemas.update(mapping(schema.pop("$defs", {})))
        schemas[model.__name__] = {**schema}
        models[model.__name__] = {"$ref": reference.format(model=model.__name__)}
    one = models["Problem"]
    bodies: dict[tuple[str, str], JSON] = {
        ("/sapi/v2/problems", "post"): {
            "anyOf": [one, {"type": "array", "items": one, "maxItems": 3}]
        },
        ("/sapi/v2/problems", "delete"): {
            "type": "array",
            "items": {"type": "string"},
        },
        ("/api/v1/jobs/{qc}/{job_type}", "post"): models["CircuitJob"],
        ("/circuits", "post"): models["CircuitJob"],
    }
    for (path, method), body_schema in bodies.items():
        operation = mapping(mapping(paths[path])[method])
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body_schema}},
        }


def _add_links(paths: Mapping[str, JSON]) -> None:
    for maker, (status, taken) in _LINKS.items():
        method, path = maker.split(" ")
        operation = mapping(mapping(paths[path])[method.lower()])
        responses = mapping(operation["responses"])
        answer = mapping(responses.setdefault(status, {"description": "Made."}))
        links: dict[str, JSON] = {}
        for verb, where, other in _operations(paths):
            if not where.startswith(_TAKERS[maker]):
                continue
            names = [name for name in taken if f"{{{name}}}" in where]
            links[f"{verb} {where}"] = {
                "operationId": cast("str", other["operationId"]),
                "parameters": {
                    f"path.{name}": f"$response.body#/{taken[name]}" for name in names
                },
            }
        answer["links"] = links


def body(path: str, technology: str, solver: Mapping[str, JSON]) -> JSON:
    """Return a body that a device of a technology can run; ``None`` if there is none.

    :param solver: as SAPI describes it
    """
    kind = KINDS[technology]
    contents: dict[str, JSON] = {
        "problem": example_bqm(),
        "circuit": CIRCUIT,
        "sequence": SEQUENCE,
    }
    if path == "/v1/jobs" and kind in contents:
        key = secrets.token_hex(8)
        return {
            "idempotency_key": key,
            kind: contents[kind],
            "parameters": {"num_reads": 2},
        }
    if path == "/jobs" and technology == "neutral-atom":
        return {"sequence": SEQUENCE, "shots": 2}
    if path == "/sapi/v2/problems" and solver:
        return _sapi(solver)
    circuits = path == "/circuits" or path.startswith("/api/v1/jobs/{qc}")
    if circuits and technology == "superconducting":
        return _iqm()
    return None


def _sapi(solver: Mapping[str, JSON]) -> JSON:
    """A problem of one coupler."""
    properties = mapping(solver["properties"])
    qubits, couplers = properties["qubits"], properties["couplers"]
    if not isinstance(qubits, list) or not isinstance(couplers, list):
        return None
    used = couplers[0] if isinstance(couplers[0], list) else []
    linear = [1.0 if qubit in used else float("nan") for qubit in qubits]
    return {
        "solver": cast("str", mapping(solver["identity"])["name"]),
        "type": "ising",
        "data": {"format": "qp", "lin": _base64(linear), "quad": _base64([1.0])},
        "params": {"num_reads": 2},
    }


def _base64(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}d", *values)).decode()


def _iqm() -> JSON:
    measure: JSON = {"name": "measure", "locus": ["QB1"], "args": {"key": "m"}}
    turn: JSON = {
        "name": "prx",
        "locus": ["QB1"],
        "args": {"angle": 1.0, "phase": 0.0},
    }
    return {"circuits": [{"name": "c", "instructions": [turn, measure]}], "shots": 2}
