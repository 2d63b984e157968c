"""The circuits of a job: texts that differ in angles alone, and values of parameters.

What such circuits have in common is read and checked once, and Aer gets their angles
beside it: to read a text takes 3 ms, to simulate a small circuit less than one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.service.device.emulator.circuit import Architecture
from sf_quantum.service.device.emulator.openqasm import check_angles, flat
from sf_quantum.service.device.emulator.templates import HOLE, template_of
from sf_quantum.text import described

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.circuit import CircuitInstruction, Parameter, ParameterExpression


@dataclass(frozen=True)
class Group:
    """Circuits of a job that differ in angles alone.

    :param circuit: without gates of its own, and with angles that are numbers or parameters
    :param values: of each parameter, one for each circuit; finite
    :param numbers: of the circuits, in the job
    """

    circuit: QuantumCircuit
    values: Mapping[Parameter, Sequence[float]]
    numbers: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """The circuits of a job.

    :param single: whether the job is a circuit, rather than a list of one
    """

    groups: Sequence[Group]
    single: bool = False


def batch(content: JSON, architecture: Architecture | None = None) -> Batch:
    """Read the circuits of a job.

    :param content: a payload that has the right form
    :param architecture: of the device; ``None`` for any
    :raises InputError: naming the circuit, and its line or gate
    """
    if isinstance(content, str):
        return Batch([*_of_texts([content], architecture)], True)
    if isinstance(content, list):
        return Batch([*_of_texts([*map(str, content)], architecture, "circuit")])
    program, sets = mapping(content)["program"], mapping(content)["values"]
    whole = flat(str(program), architecture)
    return Batch([*_bound(whole, [*map(mapping, listing(sets))])])


def _of_texts(
    given: Sequence[str], architecture: Architecture | None, what: str = ""
) -> Iterator[Group]:
    alike: dict[tuple[str, int], list[tuple[int, Sequence[float]]]] = {}
    for number, text in enumerate(given):
        template, angles = template_of(text)
        alike.setdefault((template, len(angles)), []).append((number, angles))
    for (template, holes), members in alike.items():
        numbers = [number for number, _ in members]
        try:
            circuit = flat(template, architecture, holes)
            yield _with_values(circuit, [angles for _, angles in members], numbers)
        except InputError:
            # what is wrong is said of the texts as they are
            for number in numbers:
                where = f"{what}[{number}]: " if what else ""
                yield _alone(given[number], architecture, number, where)


def _with_values(
    template: QuantumCircuit, angles: Sequence[Sequence[float]], numbers: Sequence[int]
) -> Group:
    columns = {f"{HOLE}{n}": each for n, each in enumerate(zip(*angles, strict=True))}
    names = {one.name: one for one in template.parameters}
    if missing := names.keys() - columns.keys():
        raise InputError(f"parameter {min(missing)} has no value: bind the parameters")
    return _plain(
        template, {one: columns[name] for name, one in names.items()}, numbers
    )


def _alone(
    text: str, architecture: Architecture | None, number: int, where: str
) -> Group:
    try:
        circuit = flat(text, architecture)
        for parameter in circuit.parameters:
            raise InputError(
                f"parameter {parameter.name} has no value: bind the parameters"
            )
    except InputError as error:
        raise InputError(f"{where}{error}") from error
    return Group(circuit, {}, [number])


def _bound(
    program: QuantumCircuit, sets: Sequence[Mapping[str, JSON]]
) -> Iterator[Group]:
    """Give values to the parameters of a program."""
    names = {parameter.name for parameter in program.parameters}
    columns: dict[str, list[float]] = {name: [] for name in names}
    for number, values in enumerate(sets):
        if why := _unfit(values, names):
            raise InputError(f"values[{number}]: {why}")
        for name, value in values.items():
            columns[name].append(float(str(value)))
    if names and any(hasattr(one.operation, "blocks") for one in program.data):
        # Aer takes no parameters within conditionals
        for number in range(len(sets)):
            one = {name: column[number] for name, column in columns.items()}
            yield Group(_assigned(program, one, number), {}, [number])
        return
    of_each = {one: columns[one.name] for one in program.parameters}
    yield _plain(program, of_each, range(len(sets)))


def _unfit(values: Mapping[str, JSON], names: Set[str]) -> str:
    """Tell what is wrong with a set of values, if anything."""
    if missing := names - values.keys():
        return f"parameter {min(missing)} has no value"
    if unknown := values.keys() - names:
        return f"there is no parameter {min(unknown)}"
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            return f"parameter {name}: expected a number"
        if not -sys.float_info.max <= value <= sys.float_info.max:
            return f"parameter {name}: {value!s:.60} is not finite"
    return ""


def _assigned(
    program: QuantumCircuit, values: Mapping[str, float], number: int
) -> QuantumCircuit:
    try:
        circuit = program.assign_parameters({**values})
        _check_all(circuit)
    except InputError as error:
        raise InputError(f"values[{number}]: {error}") from error
    except (ArithmeticError, ValueError, TypeError) as error:
        told = f"values[{number}]: its parameters: {described(error)}"
        raise InputError(told) from error
    return circuit


def _check_all(circuit: QuantumCircuit) -> None:
    for one in circuit.data:
        if blocks := getattr(one.operation, "blocks", ()):
            for block in blocks:
                _check_all(block)
        else:
            check_angles(one.operation)


def _plain(
    circuit: QuantumCircuit,
    values: Mapping[Parameter, Sequence[float]],
    numbers: Sequence[int],
) -> Group:
    """Replace expressions by parameters of their values."""
    from qiskit.circuit import Parameter

    if not values or all(
        isinstance(angle, Parameter) for one in circuit.data for angle in _free(one)
    ):
        return Group(circuit, values, numbers)
    plain = circuit.copy_empty_like()
    plain.global_phase = 0  # it may be an expression, and has no effect
    made: dict[ParameterExpression, Parameter] = {}
    columns: dict[Parameter, Sequence[float]] = {}
    for one in circuit.data:
        for angle in _free(one):
            if angle not in made:
                own = Parameter(f"{HOLE}of_{len(made)}")
                made[angle] = own
                columns[own] = _evaluated(one.operation.name, angle, values)
        if any(_free(one)):
            operation = one.operation.to_mutable()
            operation.params = [
                made[angle] if getattr(angle, "parameters", None) else angle
                for angle in operation.params
            ]
            one = one.replace(operation=operation)
        plain.append(one, copy=False)
    return Group(plain, columns, numbers)


def _free(one: CircuitInstruction) -> Iterator[ParameterExpression]:
    return (angle for angle in one.params if getattr(angle, "parameters", None))


def _evaluated(
    gate: str,
    angle: ParameterExpression,
    values: Mapping[Parameter, Sequence[float]],
) -> Sequence[float]:
    names = [*angle.parameters]
    found: list[float] = []
    for number, given in enumerate(zip(*(values[one] for one in names), strict=True)):
        where = f"values[{number}]: "
        try:
            found.append(float(angle.bind(dict(zip(names, given, strict=True)))))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise InputError(f"{where}its parameters: {described(error)}") from error
        if not math.isfinite(found[-1]):
            raise InputError(f"{where}gate {gate}: {found[-1]} is not an angle")
    return found
