"""The check of a result against its job: its kind, variables, reads and types of numbers.

A result may be large, and its text may be anything, so the check runs in a separate process
(:mod:`.program`), for :mod:`.answer_checks`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sf_quantum.files import JSON, listing, mapping
from sf_quantum.protocol import solver_parameters
from sf_quantum.protocol.tasks import Kind
from sf_quantum.protocol.values import count
from sf_quantum.service.device.foreign import TooLarge, plain
from sf_quantum.service.domain.photonic import PhotonicExperiment

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel, SampleSet

Content: TypeAlias = dict[str, JSON]
# Types of the arrays of a sample set; arrays of other types, such as texts of any length,
# cannot be samples.
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_NUMBERS = (*_INTEGERS, "bool", "float32", "float64")
# Maximum number of vectors of a sample set, besides its energies and occurrences.
MAX_VECTORS = 20
# Maximum characters of the info that a vendor adds to a sample set of a list.
MAX_INFO = 10_000
# Names that cannot be further vectors: the fields of every sample set, and other arguments
# of SampleSet.from_samples().
_OWN = (
    *("sample", "energy", "num_occurrences", "info", "samples_like", "vartype"),
    *("aggregate_samples", "sort_labels"),
)
# A valid name of an additional vector in a sample set.
_VECTOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# Parts of OpenQASM: comments; classical registers; anything else that declares bits of
# a result.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_BITS = re.compile(
    r"(?:^|[;{}])\s*(?:bit\s*\[\s*(\d{1,6})\s*\]\s*\w+|bit\s+(\w+)"
    r"|creg\s+\w+\s*\[\s*(\d{1,6})\s*\])\s*(?==|;)"
)
_OTHER_BITS = re.compile(r"\b(?:bit|creg|output|int|uint)\b")
# The photons detected in each mode, such as |1,0>.
_STATE = re.compile(r"\|\d{1,3}(?:,\d{1,3})*>")


class WrongResult(ValueError):
    """A result that does not match its job; the message, after "it", names the error."""


@dataclass(frozen=True)
class Verified:
    """A result that matches its job.

    :param content: content of the result's JSON, in the same form for every vendor
    :param difference: largest difference between the reported energies and the recomputed
        energies, which replace them
    """

    content: Content
    difference: float = 0.0


def verified(
    kind: Kind, payload: str, text: str, shots: int, *, fewer: bool = False
) -> Verified:
    """Check a result.

    :param payload: payload of the job, which was checked when it was submitted
    :param text: JSON text of the result, without ``info``
    :param fewer: whether there may be fewer reads than shots
    :raises WrongResult: if the result does not match the job
    """
    content, job = _parsed(text), json.loads(payload)
    if kind == "problem":
        return _samples(content, job, shots, fewer)
    if kind == "photonic":
        experiment = PhotonicExperiment.model_validate(job)
        # The counts omit shots that do not meet the conditions of the experiment.
        check, fewer = _modes(experiment), True
        return Verified(
            {"counter": _counter(content.get("counter"), check, shots, fewer)}
        )
    if kind == "sequence":
        atoms = len(listing(mapping(json.loads(job)).get("register")))
        check = _width(atoms or None)
        return Verified(
            {"counter": _counter(content.get("counter"), check, shots, fewer)}
        )
    return Verified(_circuits(content, job, shots, fewer))


def _parsed(text: str) -> Content:
    """Parse a result as a JSON object."""

    def no_number(word: str) -> JSON:
        raise WrongResult(f"has {word}, which is not JSON")

    try:
        content = json.loads(text, parse_constant=no_number)
    except WrongResult:
        raise
    except (ValueError, RecursionError) as error:
        raise WrongResult("is not JSON") from error
    if not isinstance(content, dict):
        raise WrongResult("is not a JSON object")
    return content


# counts


def _circuits(content: Content, job: JSON, shots: int, fewer: bool) -> Content:
    """Check the counts of a job's circuits."""
    if isinstance(job, str):
        check = _width(_bits(job))
        return {"counter": _counter(content.get("counter"), check, shots, fewer)}
    if isinstance(job, dict):
        widths = [_bits(str(job["program"]))] * len(listing(job["values"]))
    else:
        widths = [_bits(str(text)) for text in listing(job)]
    counters = content.get("counters")
    if not isinstance(counters, list):
        raise WrongResult("has no list of counts")
    if len(counters) != len(widths):
        detail = (
            f"has the counts of {len(counters)} circuits, the job has {len(widths)}"
        )
        raise WrongResult(detail)
    return {
        "counters": [
            _counter(one, _width(width), shots, fewer, f" of circuit {number}")
            for number, (one, width) in enumerate(zip(counters, widths, strict=True))
        ]
    }


def _counter(
    counts: JSON,
    check: Callable[[Sequence[str]], None],
    shots: int,
    fewer: bool,
    where: str = "",
) -> Content:
    """Check counts, and leave out counts of 0."""
    if not isinstance(counts, dict):
        raise WrongResult(f"has no counts{where}")
    counter: Content = {}
    total = 0
    for word, reads in counts.items():
        if (number := count(reads)) is None:
            raise WrongResult(f"has counts{where} that are not whole numbers")
        if number:
            counter[word] = number
            total += number
    try:
        check([*counter])
    except WrongResult as error:
        raise WrongResult(f"has counts{where} {error}") from error
    _check_reads(total, shots, fewer, where)
    return counter


def _check_reads(total: int, shots: int, fewer: bool, where: str = "") -> None:
    if total > shots or (total < shots and not fewer):
        most = "up to " if fewer else ""
        raise WrongResult(f"has {total} reads{where}, {most}{shots} were to be made")


def _width(bits: int | None) -> Callable[[Sequence[str]], None]:
    """Return a function that checks the length of bit strings.

    :param bits: number of bits of each string; if ``None``, all strings must have the same
        length
    """

    def check(words: Sequence[str]) -> None:
        if any(word.strip("01") for word in words):
            raise WrongResult("of what is not bits")
        widths = {len(word) for word in words}
        if bits is not None and not widths <= {bits}:
            other = next(iter(widths - {bits}))
            raise WrongResult(f"of {other} bits, the job has {bits}")
        if len(widths) > 1:
            raise WrongResult("of bit strings of different lengths")

    return check


def _bits(text: str) -> int | None:
    """Count the classical bits of a circuit; ``None`` if this would need a parser."""
    plain = _COMMENT.sub(" ", text)
    # a declaration ends where the next one may begin
    declarations = _BITS.findall(plain)
    if len(_OTHER_BITS.findall(plain)) != len(declarations):
        return None
    return (
        sum(int(new or old) if new or old else 1 for new, _, old in declarations)
        or None
    )


def _modes(experiment: PhotonicExperiment) -> Callable[[Sequence[str]], None]:
    """Return a check that detected states have the job's modes and enough photons."""
    heralded = experiment.heralded
    modes = experiment.modes - len(heralded)
    needed = experiment.needed - sum(heralded.values())

    def check(words: Sequence[str]) -> None:
        for word in words:
            if not _STATE.fullmatch(word):
                raise WrongResult("of what is not a state of photons")
            photons = [*map(int, word[1:-1].split(","))]
            if len(photons) != modes:
                raise WrongResult(f"of {len(photons)} modes, the job has {modes}")
            if sum(photons) < needed:
                detail = f"of {sum(photons)} photons, at least {needed} are detected"
                raise WrongResult(detail)

    return check


# samples


def _samples(content: Content, job: JSON, shots: int, fewer: bool) -> Verified:
    """Check the sample sets of a job's BQMs."""
    if not isinstance(job, list):
        return _sample_set(content, mapping(job), shots, fewer)
    sets = content.get("sample_sets")
    if not isinstance(sets, list):
        raise WrongResult("has no list of sample sets")
    if len(sets) != len(job):
        raise WrongResult(f"has {len(sets)} sample sets, the job has {len(job)} BQMs")
    read = []
    for number, (one, bqm) in enumerate(zip(sets, job, strict=True)):
        try:
            read.append(_sample_set(mapping(one), mapping(bqm), shots, fewer))
        except WrongResult as error:
            raise WrongResult(f"of BQM {number} {error}") from error
    infos = (_info(mapping(one).get("info")) for one in sets)
    listed: list[JSON] = [
        {**each.content, "info": info} for each, info in zip(read, infos, strict=True)
    ]
    largest = max(each.difference for each in read)
    return Verified({"sample_sets": listed}, largest)


def _info(info: JSON) -> JSON:
    try:
        return plain(mapping(info), MAX_INFO)
    except TooLarge:
        return {}


def _sample_set(claimed: Content, job: Content, shots: int, fewer: bool) -> Verified:
    """Check a sample set, and recompute its energies."""
    import numpy as np
    from dimod import BinaryQuadraticModel, SampleSet

    from sf_quantum.samplers.energies import difference, exact_energies

    bqm = BinaryQuadraticModel.from_serializable(job)
    read = _read(claimed, bqm, shots)
    if {*read.variables} != {*bqm.variables}:
        raise WrongResult("has other variables than the problem")
    record = read.record
    order = [read.variables.index(variable) for variable in bqm.variables]
    values = record.sample[:, order]
    low = 0 if bqm.vartype.name == "BINARY" else -1
    if not ((values == low) | (values == 1)).all():
        raise WrongResult(f"has values other than {low} and 1")
    occurrences = [*map(int, record.num_occurrences)]
    if (record.num_occurrences != occurrences).any() or min(occurrences) < 1:
        raise WrongResult("has numbers of occurrences that are not 1 or more")
    # Python's integers cannot overflow when summed, unlike NumPy's. With D-Wave's
    # parameter max_answers, an annealer makes all reads, but returns only some.
    _check_reads(
        sum(occurrences), shots, fewer or "max_answers" in solver_parameters.given(job)
    )
    if not np.isfinite(record.energy).all():
        raise WrongResult("has energies that are not finite")
    samples = values.astype(np.int8), [*bqm.variables]
    energies = exact_energies(bqm, *samples)
    if not np.isfinite(energies).all():
        raise WrongResult("has samples whose energies are too large for a number")
    checked = SampleSet.from_samples(  # type: ignore[no-untyped-call]
        samples,
        bqm.vartype,
        energy=energies,
        num_occurrences=np.asarray(occurrences, dtype=np.int64),
        sort_labels=False,
        **_other_fields(read),
    )
    content: Content = checked.to_serializable()
    del content["info"]
    return Verified(content, difference(bqm, record.energy, energies))


def _read(content: Content, bqm: BinaryQuadraticModel, shots: int) -> SampleSet:
    """Read a sample set, after checking the sizes and types of its arrays."""
    from dimod import SampleSet

    if content.get("type") != "SampleSet":
        raise WrongResult("is not a sample set")
    if content.get("variable_type") != bqm.vartype.name:
        raise WrongResult(f"has variables that are not {bqm.vartype.name}")
    if (number := content.get("num_variables")) != len(bqm.variables):
        what = number if count(number) is not None else "no number of"
        detail = f"has {what} variables, the problem has {len(bqm.variables)}"
        raise WrongResult(detail)
    data, vectors = mapping(content.get("sample_data")), mapping(content.get("vectors"))
    _check_array(data, shots, 2)
    for name in ("energy", "num_occurrences"):
        _check_array(mapping(vectors.get(name)), shots, 1)
    if content.get("sample_type") not in _NUMBERS:
        raise WrongResult("has samples that are not numbers")
    arrays = {name: vectors[name] for name in ("energy", "num_occurrences")}
    arrays |= dict(_numbers(vectors, shots))
    try:
        read: SampleSet = SampleSet.from_serializable(  # type: ignore[no-untyped-call]
            {**content, "info": {}, "vectors": arrays}
        )
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise WrongResult("is a malformed sample set") from error
    if not len(read):
        raise WrongResult("has no samples")
    return read


def _check_array(content: Content, shots: int, axes: int) -> None:
    shape = content.get("shape")
    sizes = listing(shape)
    wrong = (
        content.get("data_type") not in _NUMBERS
        or content.get("use_bytes") is not False
    )
    if wrong or not isinstance(shape, list) or len(sizes) != axes:
        raise WrongResult("is a malformed sample set")
    if None in map(count, sizes) or not 1 <= int(str(sizes[0])) <= shots:
        raise WrongResult(f"has {sizes[0]!r:.20} samples of {shots} reads")


def _numbers(vectors: Content, shots: int) -> list[tuple[str, JSON]]:
    """Select additional vectors of numbers, such as fractions of broken chains."""
    further: list[tuple[str, JSON]] = []
    for name, vector in vectors.items():
        if name in _OWN or not _VECTOR.fullmatch(name) or len(further) == MAX_VECTORS:
            continue
        array = mapping(vector)
        try:
            _check_array(array, shots, 1)
        except WrongResult:
            continue
        further.append((name, array))
    return further


def _other_fields(read: SampleSet) -> dict[str, JSON]:
    import numpy as np

    names = {*read.record.dtype.names} - {"sample", "energy", "num_occurrences"}
    return {
        name: read.record[name]
        for name in names
        if np.isfinite(read.record[name]).all()
    }
