"""The connection of D-Wave's client: endpoint, token, and the solver's name or features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, parse_json
from sf_quantum.qpu.vendors.variables import DWAVE_ENDPOINT, DWAVE_TOKEN

_SOLVER = "DWAVE_API_SOLVER"
# The variables of D-Wave's client, with the names of its options.
VARIABLES = {
    DWAVE_ENDPOINT: "endpoint",
    DWAVE_TOKEN: "token",
    _SOLVER: "solver",
}
REQUIRED = (DWAVE_ENDPOINT, DWAVE_TOKEN)


@dataclass(frozen=True)
class Connection:
    """The options of a connection.

    :param endpoint: URL that ends in ``/sapi/v2``
    :param solver: name of the solver, or the features that it must have, in JSON
    """

    endpoint: str
    token: str = field(repr=False)
    solver: str | None = None

    @classmethod
    def from_variables(cls, qpu: str, variables: Mapping[str, str | None]) -> Self:
        """Read the variables of D-Wave's client.

        :raises InputError: if the endpoint or the token is missing
        """
        for variable in REQUIRED:
            if not variables.get(variable):
                raise InputError(f"{variable} is not set for QPU {qpu!r}")
        values = {VARIABLES[key]: variables.get(key) for key in VARIABLES}
        return cls(**{key: value for key, value in values.items() if value})

    @property
    def variables(self) -> dict[str, str]:
        """The variables of D-Wave's client."""
        values = {name: getattr(self, key) for name, key in VARIABLES.items()}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def features(self) -> JSON:
        """The criteria that select the solver, in the format of D-Wave's client."""
        solver = self.solver or ""
        if not solver.lstrip().startswith("{"):  # a name, not features
            return {"name": solver} if solver else None
        try:
            return parse_json(solver)
        except ValueError as error:
            raise InputError(f"{_SOLVER}: not a name and not JSON") from error

    @property
    def is_named(self) -> bool:
        """Whether the solver is selected by its name."""
        features = self.features
        return isinstance(features, dict) and "name" in features

    @property
    def options(self) -> dict[str, JSON]:
        """The options of D-Wave's client, which then does not read its own files."""
        options: dict[str, JSON] = {"endpoint": self.endpoint, "token": self.token}
        options |= {"config_file": False, "client": "qpu"}
        features = self.features
        return options if features is None else {**options, "solver": features}
