"""Reports of QPU usage: the columns that identify a row, and the sums of each row.

Each sum is a field of :class:`UsageSums`; the service's store has an expression for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, TypeAlias

from sf_quantum.files import JSON

By: TypeAlias = Literal[
    "user",
    "project",
    "user-project",
    "month",
    "month-user-project",
    "lease",
    "slurm-job",
    "slurm-account",
    "step",
]
#: the columns that identify a report's rows
KEYS: Mapping[By, tuple[str, ...]] = {
    "user": ("user",),
    "project": ("project",),
    "user-project": ("user", "project"),
    "month": ("month",),
    "month-user-project": ("month", "user", "project"),
    "lease": (
        *("lease", "user", "project"),
        *("slurm_job_id", "slurm_cluster", "slurm_account"),
    ),
    "slurm-job": ("slurm_job_id", "user", "slurm_cluster", "slurm_account"),
    "slurm-account": ("slurm_account", "slurm_cluster"),
    "step": ("user", "run", "step"),
}


def _describe(schema: dict[str, JSON], class_: type) -> None:
    schema["description"] = inspect.getdoc(class_)


def _description(text: str) -> dict[str, str]:
    """Return the metadata of a field, with its description in the OpenAPI document."""
    return {"description": text}


@dataclass(frozen=True)
class UsageSums:
    """Jobs that have ended, and their times in seconds."""

    # Pydantic reads this for the service's OpenAPI document.
    __pydantic_config__: ClassVar[Mapping[str, object]] = {
        "extra": "forbid",
        "json_schema_extra": _describe,
    }

    jobs: int
    completed: int
    failed: int
    cancelled: int
    qpu_seconds: float = field(
        metadata=_description(
            "QPU time, as billed or modelled, without interrupted attempts."
        )
    )
    seconds: float = field(
        metadata=_description("Actual time of these attempts on the device.")
    )
    wait_seconds: float = field(
        metadata=_description(
            "Seconds from submission to the last start, summed over the jobs."
        )
    )
    mean_wait_seconds: float
    longest_wait_seconds: float
    lost_attempts: int = field(
        metadata=_description(
            "Attempts that were pre-empted, or interrupted because the QPU "
            "was closed or the service stopped or died. Their jobs ran again, "
            "and are not charged for these attempts."
        )
    )
    lost_qpu_seconds: float = field(
        metadata=_description(
            "QPU time of the lost attempts; 0 for attempts that ended because "
            "the service died, since their time is unknown."
        )
    )
    lost_seconds: float = field(
        metadata=_description("Actual time of the lost attempts on the device.")
    )
    cost: float | None = field(
        metadata=_description(
            "Cost of `qpu_seconds`, in the site's unit, with the price at the "
            "end of each job; null if the device had no price."
        )
    )


@dataclass(frozen=True)
class UsageRow(UsageSums):
    """The sums of one user, project, month, lease, Slurm job or account, or workflow step.

    Columns that do not identify the rows are null, as are columns that the jobs do not have.
    """

    month: str | None = field(
        default=None,
        metadata=_description(
            "The month in which the jobs ended, in UTC, such as 2026-11."
        ),
    )
    user: str | None = None
    project: str | None = None
    lease: str | None = None
    slurm_job_id: str | None = None
    slurm_cluster: str | None = field(
        default=None,
        metadata=_description(
            "The cluster of the Slurm job; null: the service's own cluster."
        ),
    )
    slurm_account: str | None = field(
        default=None,
        metadata=_description(
            "The account of the Slurm job, as Slurm reports if the service "
            "can query Slurm, or otherwise as the client reports."
        ),
    )
    run: str | None = field(
        default=None, metadata=_description("The name of a run's journal.")
    )
    step: str | None = field(
        default=None,
        metadata=_description(
            "The step of the workflow, or another purpose of the jobs."
        ),
    )


#: the names of the columns with sums, in order
SUMS = tuple(sum_.name for sum_ in fields(UsageSums))
