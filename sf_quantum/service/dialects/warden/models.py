"""The body of warden's jobs."""

from __future__ import annotations

import secrets

from pydantic import BaseModel, Field

from sf_quantum.service.domain.jobs import Submission


class CreateJob(BaseModel):
    """A pulse sequence and its number of shots."""

    sequence: str = Field(description="Pulser's abstract representation, JSON text.")
    shots: int = Field(ge=1, le=100_000, strict=True)

    def submission(self) -> Submission:
        """Convert the body into a submission, with a new key: warden has no keys of jobs."""
        return Submission(
            kind="sequence",
            content=self.sequence,
            parameters={"num_reads": self.shots},
            key=f"warden-{secrets.token_hex(16)}",
            dialect="warden",
        )
