"""The variables with which a job finds its QPUs, in the format of QRMI's SPANK plugin."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from sf_quantum.errors import InputError
from sf_quantum.qpu import Qpu, load
from sf_quantum.qpu.sfq import service_variables

RESOURCES = ("QRMI_JOB_QPU_RESOURCES", "SLURM_JOB_QPU_RESOURCES")
TYPES = ("QRMI_JOB_QPU_TYPES", "SLURM_JOB_QPU_TYPES")
JOB_ID, JOB_UID = "QRMI_JOB_ID", "QRMI_JOB_UID"
# Suffix of the variable with a lease's token; the QPU's name precedes it.
TOKEN = "QRMI_JOB_ACQUISITION_TOKEN"
NO_QPU = (
    "the environment names no QPU: run this as a step on a quantum location, or under "
    "sfq lease"
)


def job_environment(leases: Iterable[tuple[Qpu, str]]) -> dict[str, str]:
    """Make the variables of a job's QPUs.

    :param leases: each QPU with the job's acquisition token
    """
    held = list(leases)
    variables: dict[str, str] = {}
    for qpu, token in held:
        variables |= qpu.environment(token)
    variables[RESOURCES[0]] = ",".join(qpu.name for qpu, _ in held)
    variables[TYPES[0]] = ",".join(qpu.type for qpu, _ in held)
    return variables


def job_ids(
    otherwise: str, variables: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Make the variables that identify a job and its user, without a QPU's prefix.

    :param otherwise: id of a job outside of a batch system
    """
    ids = (variables.get(key) for key in (JOB_ID, "SLURM_JOB_ID"))
    return {
        JOB_UID: variables.get(JOB_UID) or str(os.getuid()),
        JOB_ID: next(filter(None, ids), otherwise),
    }


def from_environment(variables: Mapping[str, str] = os.environ) -> Qpu | None:
    """Make the job's side of the first QPU of the environment.

    :returns: the QPU; ``None`` on a classical location, where none of the variables is set
    :raises InputError: if only some variables are set: a lost variable must not silently
        cause a classical run
    """
    resources, types = listed(variables, RESOURCES), listed(variables, TYPES)
    if resources is None and types is None:
        suffix = f"_{service_variables.URL}"
        orphan = next((key for key in variables if key.endswith(suffix)), None)
        if orphan is not None:
            raise InputError(f"{orphan} is set but {RESOURCES[0]} is not")
        return None
    if not resources:
        raise InputError(f"{TYPES[0]} is set but {RESOURCES[0]} names no QPU")
    if not types:
        raise InputError(f"{RESOURCES[0]} is set but {TYPES[0]} names no type")
    if len(resources) != len(types):
        raise InputError(
            f"{TYPES[0]} names {len(types)} types for the {len(resources)} QPUs "
            f"of {RESOURCES[0]}"
        )
    return load(types[0]).from_environment(resources[0], variables)


def leased(variables: Mapping[str, str] = os.environ) -> Qpu:
    """Make the QPU of the environment, for a program that requires a QPU.

    :raises InputError: as :func:`from_environment`, and if the environment names no QPU
    """
    if (qpu := from_environment(variables)) is None:
        raise InputError(NO_QPU)
    return qpu


def listed(variables: Mapping[str, str], keys: tuple[str, str]) -> list[str] | None:
    """Read a comma-separated variable by the first of its names that is set."""
    value = next((variables[key] for key in keys if key in variables), None)
    if value is None:
        return None
    return [word.strip() for word in value.split(",") if word.strip()]


def types_by_name(variables: Mapping[str, str]) -> dict[str, str]:
    """Read the type of each QPU of the environment; the first if a QPU is named twice."""
    resources, types = listed(variables, RESOURCES), listed(variables, TYPES)
    pairs = [*zip(resources or [], types or [], strict=False)]
    return dict(reversed(pairs))


def required(name: str, variables: Mapping[str, str], key: str) -> str:
    """Read a variable that a job needs to reach its QPU.

    :param key: name of the variable, without the prefix of the QPU's name
    :raises InputError: if the variable is missing
    """
    if not (value := variables.get(f"{name}_{key}")):
        message = f"{name}_{key} is not set, though QPU {name!r} is in the environment"
        raise InputError(message)
    return value
