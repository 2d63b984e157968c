"""Serialized BQMs: their reading, writing, checks and sampling."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice, starmap
from operator import lt
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping, read_json

if TYPE_CHECKING:
    from dimod import SampleSet
    from dimod.core.sampler import Sampler

# Larger biases and their sums would overflow in a sampler.
MAX_BIAS = 1e100
# Limit on labels that are numbers, which must fit into 64 bits for dimod.
MAX_NUMBER = 2**63
# Maximum number of labels with the same hash, since each is compared with all others. Only
# labels constructed for this purpose can exceed it.
MAX_SAME_HASH = 64


#: message about a whole number beyond 2**53, to be followed by the closest double
NOT_A_DOUBLE = "is rounded by a double, the type of biases; the closest is"


class FieldError(InputError):
    """A field of a problem is invalid.

    :param field: path of the field, such as ``bqm.linear_biases[3]``
    :param detail: the error, and a valid alternative
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


def read(path: str | Path) -> dict[str, JSON]:
    """Read a problem file in the format of ``sfq qubo``, and check its BQM.

    :raises InputError: if the file is not a problem file, or the BQM is invalid
    """
    content = read_json(path, "problem")
    if "bqm" not in content:
        raise InputError(f"{path}: key 'bqm' is missing; expected a problem file")
    try:
        return {**content, "bqm": check(content["bqm"])}
    except FieldError as error:
        raise InputError(f"{path}: {error}") from error


def read_info(path: str | Path) -> dict[str, JSON]:
    """Read the ``info`` of a samples file.

    :raises InputError: if the file has no samples
    """
    info = read_json(path, "samples").get("info")
    if not isinstance(info, dict):
        raise InputError(
            f"{path}: key 'info' is missing; expected samples written by sfq solve"
        )
    return info


def document(
    labels: Sequence[JSON],
    linear: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    quadratic: Sequence[float],
    vartype: str,
    offset: float = 0.0,
) -> dict[str, JSON]:
    """Make a BQM in the format of ``BinaryQuadraticModel.to_serializable``, without dimod.

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
    """Check a BQM in the format of ``BinaryQuadraticModel.to_serializable``.

    Needs neither dimod nor numpy, whose imports cost more than solving a small problem.

    :param field: name of the BQM in errors
    :returns: the same BQM
    :raises FieldError: if the content is not a BQM, or has no variables, a label that dimod
        cannot read, a bias that is not finite or is larger than :data:`MAX_BIAS`, a whole
        number that a double rounds or that does not fit into 64 bits, or a repeated
        interaction whose biases doubles cannot add exactly
    """
    if not isinstance(bqm, dict) or bqm.get("type") != "BinaryQuadraticModel":
        raise FieldError(
            field, "expected a BQM as dimod's to_serializable() writes it, in JSON"
        )
    if bqm.get("use_bytes") is not False:
        raise FieldError(f"{field}.use_bytes", "expected false: JSON holds no bytes")
    if bqm.get("variable_type") not in ("BINARY", "SPIN"):
        raise FieldError(f"{field}.variable_type", "expected BINARY or SPIN")
    schema = mapping(bqm.get("version")).get("bqm_schema")
    if not isinstance(schema, str) or not schema.startswith("3."):
        raise FieldError(f"{field}.version", "expected bqm_schema 3.x")
    _check_finite([bqm.get("offset")], f"{field}.offset", single=True)
    labels = _list(bqm, field, "variable_labels")
    _check_labels(labels, f"{field}.variable_labels")
    linear = _list(bqm, field, "linear_biases", len(labels))
    _check_finite(linear, f"{field}.linear_biases")
    quadratic = _list(bqm, field, "quadratic_biases")
    _check_finite(quadratic, f"{field}.quadratic_biases")
    heads, tails = (
        _list(bqm, field, name, len(quadratic))
        for name in ("quadratic_head", "quadratic_tail")
    )
    _check_indices(heads, len(labels), f"{field}.quadratic_head")
    _check_indices(tails, len(labels), f"{field}.quadratic_tail")
    if any(head == tail for head, tail in zip(heads, tails, strict=True)):
        raise FieldError(f"{field}.quadratic_tail", "a variable interacts with itself")
    pairs = cast("list[tuple[int, int]]", [*zip(heads, tails, strict=True)])
    _check_sums(pairs, cast("list[float]", quadratic), field)
    return bqm


def size(bqm: Mapping[str, JSON]) -> int:
    """Count the variables of a BQM that :func:`check` accepted."""
    return len(_list(bqm, "bqm", "variable_labels"))


def sample(
    sampler: Sampler, bqm: Mapping[str, JSON], parameters: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Run a sampler on a serialized BQM.

    :param parameters: the sampler's keyword arguments; ``None`` values are omitted
    :returns: the serialized sample set
    :raises InputError: if the sampler does not accept one of the parameters
    """
    from dimod import BinaryQuadraticModel

    accepted = given(sampler, parameters)
    model = BinaryQuadraticModel.from_serializable(bqm)
    return serialized(sampler.sample(model, **accepted))


def serialized(samples: SampleSet) -> dict[str, JSON]:
    """Serialize a sample set like dimod, but keep true and false in its ``info``.

    dimod would write 1 and 0.
    """
    content: dict[str, JSON] = samples.to_serializable()  # type: ignore[no-untyped-call]
    content["info"] = _with_booleans(content["info"], samples.info)
    return content


def _with_booleans(content: JSON, original: JSON) -> JSON:
    """Restore the booleans of a value in its serialization by dimod."""
    import numpy as np

    if isinstance(original, bool | np.bool_):
        return bool(original)
    if isinstance(original, Mapping) and isinstance(content, dict):
        pairs = zip(content.items(), original.values(), strict=True)
        return {key: _with_booleans(value, item) for (key, value), item in pairs}
    if isinstance(original, list | tuple) and isinstance(content, list):
        return [*map(_with_booleans, content, original)]
    return content


def given(sampler: Sampler, parameters: Mapping[str, JSON]) -> dict[str, JSON]:
    """Omit the parameters that are ``None``.

    :raises InputError: if the sampler does not accept one of the others
    """
    accepted: dict[str, JSON] = {
        name: value for name, value in parameters.items() if value is not None
    }
    refused = sorted(accepted.keys() - sampler.parameters.keys())
    if refused:
        sampler_class = type(getattr(sampler, "child", sampler)).__name__
        raise InputError(
            f"{refused[0]}: not a parameter of {sampler_class} "
            f"(expected one of {', '.join(sorted(sampler.parameters))})"
        )
    return accepted


def _check_labels(labels: list[JSON], field: str) -> None:
    if not labels:
        raise FieldError(field, "the problem has no variables")
    # the labels as dimod reads them
    read = [_label(label, field) for label in labels]
    same = Counter(map(hash, read)).most_common(1)[0][1]
    if same > MAX_SAME_HASH:
        detail = f"{same} labels have the same hash; at most {MAX_SAME_HASH}"
        raise FieldError(field, detail)
    if len({*read}) < len(read):
        raise FieldError(field, "two variables have the same label")


def _label(label: JSON, field: str) -> Hashable:
    if isinstance(label, str):
        return label
    # true is rejected: dimod writes it as 1, so the samples would be of another variable
    if isinstance(label, int | float) and not isinstance(label, bool):
        if -MAX_NUMBER <= label < MAX_NUMBER:  # this also excludes NaN
            return label
        detail = f"{label!r:.40} does not fit into 64 bits: use it as text"
        raise FieldError(field, detail)
    if isinstance(label, list):
        if any(isinstance(part, list) for part in label):
            detail = "a label is a list within a list; dimod reads one level"
            raise FieldError(field, detail)
        return tuple(_label(part, field) for part in label)
    raise FieldError(field, "a label is neither a string nor a number")


def _list(
    bqm: Mapping[str, JSON], field: str, name: str, length: int | None = None
) -> list[JSON]:
    values = bqm.get(name)
    if not isinstance(values, list):
        raise FieldError(f"{field}.{name}", "expected a list")
    if length is not None and len(values) != length:
        detail = f"has {len(values)} entries, expected {length}"
        raise FieldError(f"{field}.{name}", detail)
    return values


def _check_finite(values: list[JSON], field: str, *, single: bool = False) -> None:
    # the common case, without a loop in Python, since every submission is checked
    if {*map(type, values)} == {float}:
        numbers = cast("list[float]", values)
        # max() and min() may miss NaN
        if all(map(math.isfinite, numbers)) and _within(max(numbers), min(numbers)):
            return
    for index, value in enumerate(values):
        where = field if single else f"{field}[{index}]"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(cast(float, value)) < math.inf:
            raise FieldError(where, f"expected a finite number, not {value!r:.40}")
        if not _within(cast(float, value)):
            detail = f"{value!r:.40} is too large: at most {MAX_BIAS:g}"
            raise FieldError(where, detail)
    _check_kept(values, field, single=single)


def _check_kept(values: list[JSON], field: str, *, single: bool) -> None:
    """Reject whole numbers that a double rounds or dimod cannot read."""
    for index, value in enumerate(values):
        if not isinstance(value, int):
            continue
        where = field if single else f"{field}[{index}]"
        if (rounded := float(value)) != value:
            raise FieldError(where, f"{value} {NOT_A_DOUBLE} {rounded:.0f}")
        if not -(2**63) <= value < 2**63:
            detail = f"{value} does not fit into 64 bits: write {rounded!r}"
            raise FieldError(where, detail)


def _check_sums(pairs: list[tuple[int, int]], biases: list[float], field: str) -> None:
    """Reject a repeated interaction if rounding makes its sum depend on the biases' order.

    dimod adds the biases of a repeated interaction as doubles.
    """
    # the common case: dimod writes each interaction once, in order
    later = islice(pairs, 1, None)
    if all(starmap(lt, pairs)) and all(map(lt, pairs, later)):
        return
    repeated: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for pair, bias in zip(pairs, biases, strict=True):
        repeated.setdefault((*sorted(pair),), []).append(bias.as_integer_ratio())
    for (first, second), ratios in repeated.items():
        # all biases in units of a common power of two, which doubles have
        whole = math.lcm(*(denominator for _, denominator in ratios))
        numbers = [number * (whole // denominator) for number, denominator in ratios]
        common = math.gcd(*numbers)
        total = sum(map(abs, numbers)) // (common & -common or 1)
        if len(ratios) > 1 and total.bit_length() > sys.float_info.mant_dig:
            detail = (
                f"variables {first} and {second} interact {len(ratios)} times, and a "
                "double rounds sums of these biases; give one bias for the pair"
            )
            raise FieldError(f"{field}.quadratic_biases", detail)


def _within(*values: float) -> bool:
    return all(abs(value) <= MAX_BIAS for value in values)


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
