"""Experiments in linear optics: single photons, a circuit, detectors."""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

#: Maximum length of a circuit's text; 24 modes and 552 components need 9,000 characters.
MAX_CHARACTERS = 2**20
# Upper bound of the number of heralds: the longest input state has fewer modes.
MAX_KEYS = 500
Detected: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=1)]


def _refuse_many_keys(content: JsonValue) -> JsonValue:
    """Refuse too many keys, since the response describes each invalid key in 1 kB."""
    if isinstance(content, dict) and len(content) > MAX_KEYS:
        raise ValueError(f"more than {MAX_KEYS} keys")
    return content


_Herald: TypeAlias = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,3})$")]


class PhotonicExperiment(BaseModel):
    """Photons in the modes of a circuit of linear optics, in Perceval's notations.

    An input counts as a shot only if at least the required number of photons reaches the
    detectors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    circuit: str = Field(
        max_length=MAX_CHARACTERS,
        description="Perceval's `serialize(circuit)`, of a circuit without variables.",
    )
    input_state: str = Field(
        max_length=1000,
        pattern=r"^\|[01](,[01])*>$",
        description="The number of photons in each mode, at most one, including "
        "heralded modes: `|1,0,1>`.",
    )
    min_detected_photons: int | None = Field(
        default=None,
        ge=0,
        strict=True,
        description="The number of modes without a herald that must detect a photon; "
        "by default the number of photons.",
    )
    heralds: Annotated[dict[_Herald, Detected], BeforeValidator(_refuse_many_keys)] = (
        Field(
            default_factory=dict,
            description="The number of photons (0 or 1) that a mode must detect, by mode. "
            "The result contains only the other modes.",
        )
    )
    postselect: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[0-9A-Za-z\[\](), &|^!=<>]*$",
        description="A condition on all modes, including those with heralds, in the "
        "notation of Perceval's `PostSelect`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_key_count(cls, content: JsonValue) -> JsonValue:
        return _refuse_many_keys(content)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.photons:
            raise ValueError("input_state: has no photon")
        if unknown := [mode for mode in self.heralded if mode >= self.modes]:
            raise ValueError(f"heralds: there is no mode {unknown[0]}")
        if self.needed > self.photons:
            detail = f"{self.needed} detected photons, with those of heralds"
            raise ValueError(f"min_detected_photons: {detail}, of {self.photons}")
        return self

    @property
    def modes(self) -> int:
        return self.input_state.count(",") + 1

    @property
    def photons(self) -> int:
        """The number of photons in the input."""
        return self.input_state.count("1")

    @property
    def heralded(self) -> dict[int, int]:
        """The required number of photons in each heralded mode, by the mode's number."""
        return {int(mode): photons for mode, photons in self.heralds.items()}

    @property
    def needed(self) -> int:
        """The number of photons that must be detected, including those at the heralds."""
        if self.min_detected_photons is None:
            return self.photons
        return self.min_detected_photons + sum(self.heralds.values())
