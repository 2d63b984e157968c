"""Serialized BQMs: how they are written, checked and sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from sf_quantum.errors import InputError
from sf_quantum.files import JSON

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

_VECTORS = ("linear_biases", "quadratic_biases", "quadratic_head", "quadratic_tail")


class FieldError(InputError):
    """A field of a problem is invalid.

    :param field: the path of the field, such as ``bqm.linear_biases[3]``
    :param detail: what is wrong, and what would be right
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


def document(
    labels: Sequence[JSON],
    linear: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    quadratic: Sequence[float],
    vartype: str,
    offset: float = 0.0,
) -> dict[str, JSON]:
    """Write a BQM as ``BinaryQuadraticModel.to_serializable`` does, without dimod.

    :param labels: the labels of the n variables
    :param linear: the n linear biases
    :param pairs: the m interactions, as pairs of positions in ``labels``
    :param quadratic: the m quadratic biases
    :param vartype: ``BINARY`` or ``SPIN``
    """
    return {
        "type": "BinaryQuadraticModel",
        "version": {"bqm_schema": "3.0.0"},
        "use_bytes": False,
        "index_type": "int32",
        "bias_type": "float64",
        "num_variables": len(labels),
        "num_interactions": len(pairs),
        "variable_labels": [*labels],
        "variable_type": vartype,
        "offset": offset,
        "info": {},
        "linear_biases": [*linear],
        "quadratic_biases": [*quadratic],
        "quadratic_head": [head for head, _ in pairs],
        "quadratic_tail": [tail for _, tail in pairs],
    }


def check(bqm: JSON, field: str = "bqm") -> dict[str, JSON]:
    """Check a BQM in the form that ``BinaryQuadraticModel.to_serializable`` writes.

    Needs neither dimod nor numpy, whose imports cost more than solving a small problem.

    :param field: the name of the BQM in errors
    :returns: the same BQM
    :raises FieldError: if it is not a BQM, has no variables, or has a bias that is not
        a finite number
    """
    if not isinstance(bqm, dict) or bqm.get("type") != "BinaryQuadraticModel":
        raise FieldError(
            field, "expected a BQM as dimod's to_serializable() writes it, in JSON"
        )
    if bqm.get("use_bytes") is not False:
        raise FieldError(f"{field}.use_bytes", "expected false: JSON holds no bytes")
    if bqm.get("variable_type") not in ("BINARY", "SPIN"):
        raise FieldError(f"{field}.variable_type", "expected BINARY or SPIN")
    _check_version(bqm.get("version"), f"{field}.version")
    labels = _check_labels(bqm.get("variable_labels"), f"{field}.variable_labels")
    vectors = {name: _list(bqm.get(name), f"{field}.{name}") for name in _VECTORS}
    _check_finite([bqm.get("offset")], f"{field}.offset", single=True)
    for name in ("linear_biases", "quadratic_biases"):
        _check_finite(vectors[name], f"{field}.{name}")
    _check_length(vectors["linear_biases"], labels, f"{field}.linear_biases")
    for name in ("quadratic_head", "quadratic_tail"):
        _check_length(
            vectors[name], len(vectors["quadratic_biases"]), f"{field}.{name}"
        )
        _check_indices(vectors[name], labels, f"{field}.{name}")
    pairs = zip(vectors["quadratic_head"], vectors["quadratic_tail"], strict=True)
    if any(head == tail for head, tail in pairs):
        raise FieldError(f"{field}.quadratic_tail", "a variable interacts with itself")
    return bqm


def size(bqm: Mapping[str, JSON]) -> int:
    """Count the variables of a BQM that :func:`check` accepted."""
    return len(_list(bqm["variable_labels"], "variable_labels"))


def sample(
    sampler: Sampler, bqm: Mapping[str, JSON], parameters: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Run a sampler on a serialized BQM.

    :param parameters: the sampler's keyword arguments; those that are ``None`` are omitted
    :returns: the serialized sample set
    :raises InputError: if the sampler does not accept one of the parameters
    """
    from dimod import BinaryQuadraticModel

    own = given(sampler, parameters)
    model = BinaryQuadraticModel.from_serializable(bqm)
    serialized: dict[str, JSON] = sampler.sample(model, **own).to_serializable()
    return serialized


def given(sampler: Sampler, parameters: Mapping[str, JSON]) -> dict[str, JSON]:
    """Omit the parameters that are ``None``.

    :raises InputError: if the sampler does not accept one of the others
    """
    own: dict[str, JSON] = {
        name: value for name, value in parameters.items() if value is not None
    }
    refused = sorted(own.keys() - sampler.parameters.keys())
    if refused:
        sampler_class = type(getattr(sampler, "child", sampler)).__name__
        raise InputError(
            f"{refused[0]}: not a parameter of {sampler_class} "
            f"(expected one of {', '.join(sorted(sampler.parameters))})"
        )
    return own


def _check_version(version: JSON, field: str) -> None:
    schema = version.get("bqm_schema") if isinstance(version, dict) else None
    if not isinstance(schema, str) or not schema.startswith("3."):
        raise FieldError(field, "expected bqm_schema 3.x")


def _check_labels(labels: JSON, field: str) -> int:
    names = [_label(label, field) for label in _list(labels, field)]
    if not names:
        raise FieldError(field, "the problem has no variables")
    if len(set(names)) < len(names):
        raise FieldError(field, "two variables have the same label")
    return len(names)


def _label(label: JSON, field: str) -> str | int | float | tuple[str, ...]:
    if isinstance(label, str | int | float):
        return label
    if isinstance(label, list):
        return tuple(repr(_label(part, field)) for part in label)
    raise FieldError(field, "a label is neither a string nor a number")


def _list(value: JSON, field: str) -> list[JSON]:
    if not isinstance(value, list):
        raise FieldError(field, "expected a list")
    return value


def _check_length(values: list[JSON], expected: int, field: str) -> None:
    if len(values) != expected:
        raise FieldError(field, f"has {len(values)} entries, expected {expected}")


def _check_finite(values: list[JSON], field: str, *, single: bool = False) -> None:
    # the common case, checked for every submission: no loop in Python
    floats = {*map(type, values)} == {float}
    if floats and all(map(math.isfinite, cast("list[float]", values))):
        return
    for index, value in enumerate(values):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(_float(value)):
            where = field if single else f"{field}[{index}]"
            raise FieldError(where, f"expected a finite number, not {value!r:.40}")


def _float(value: JSON) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.inf


def _check_indices(values: list[JSON], labels: int, field: str) -> None:
    if {*map(type, values)} == {int}:
        numbers = cast("list[int]", values)
        if min(numbers) >= 0 and max(numbers) < labels:
            return
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < labels:
            raise FieldError(
                f"{field}[{index}]",
                f"expected the index of a variable, from 0 to {labels - 1}",
            )
