"""The circuits of a job, grouped if they differ only in angles or values of parameters.

The common part of a group is read and checked once: reading a text takes 3 ms, while
setting the angles of a small circuit and simulating it takes less than 1 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.service.device.emulator.circuits.circuit import Architecture
from sf_quantum.service.device.emulator.circuits.openqasm import (
    BYTE_ORDER_MARK,
    check_angles,
    flat,
)
from sf_quantum.service.device.emulator.circuits.programs import ANGLE_OF_A_GATE
from sf_quantum.service.device.emulator.circuits.templates import HOLE, template_of
from sf_quantum.text import described

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.circuit import Parameter, ParameterExpression


@dataclass(frozen=True)
class Group:
    """Circuits of a job that differ only in angles.

    :param circuit: the common circuit, which defines no gates; its angles are numbers or
        expressions of parameters
    :param values: values of each parameter, one for each circuit; finite
    :param numbers: numbers of the circuits in the job
    """

    circuit: QuantumCircuit
    values: Mapping[Parameter, Sequence[float]]
    numbers: Sequence[int]

    def bound(self) -> Iterator[QuantumCircuit]:
        """Yield the circuits in order, with numbers as angles.

        Qiskit binds the parameters, not Aer: if Aer gets parameters and their values
        (``parameter_binds``), its versions 0.17 and 0.18 lose controlled gates.

        :raises ArithmeticError: if an expression has no value
        :raises ValueError: likewise
        :raises TypeError: likewise
        """
        if not self.values:
            yield from repeat(self.circuit, len(self.numbers))
        for angles in zip(*self.values.values(), strict=True):
            values = dict(zip(self.values, angles, strict=True))
            yield self.circuit.assign_parameters(values)


@dataclass(frozen=True)
class Batch:
    """The circuits of a job.

    :param single: whether the job is a circuit, not a list of one circuit
    """

    groups: Sequence[Group]
    single: bool = False


def batch(content: JSON, architecture: Architecture | None = None) -> Batch:
    """Read the circuits of a job.

    :param content: payload of a valid form
    :param architecture: architecture of the device; ``None`` for any
    :raises InputError: if a circuit is invalid; the message names the circuit, and the
        line or gate
    """
    if isinstance(content, str):
        return Batch([*_of_texts([content], architecture)], True)
    if isinstance(content, list):
        return Batch([*_of_texts([*map(str, content)], architecture, "circuit")])
    program, sets = mapping(content)["program"], mapping(content)["values"]
    whole = flat(str(program).removeprefix(BYTE_ORDER_MARK), architecture)
    return Batch([_with_sets(whole, [*map(mapping, listing(sets))])])


def _of_texts(
    given: Sequence[str], architecture: Architecture | None, what: str = ""
) -> Iterator[Group]:
    """Group circuits that differ only in angles; ``what`` names the texts in errors."""
    by_template: dict[tuple[str, int], list[tuple[int, Sequence[float]]]] = {}
    given = [text.removeprefix(BYTE_ORDER_MARK) for text in given]
    for number, text in enumerate(given):
        template, angles = template_of(text)
        by_template.setdefault((template, len(angles)), []).append((number, angles))
    for (template, holes), members in by_template.items():
        numbers = [number for number, _ in members]
        try:
            circuit = flat(template, architecture, holes)
            yield _with_values(circuit, [angles for _, angles in members], numbers)
        except InputError:
            # errors are reported for the texts, not for their template
            for number in numbers:
                where = f"{what}[{number}]: " if what else ""
                yield _single_group(given[number], architecture, number, where)


def _with_values(
    template: QuantumCircuit, angles: Sequence[Sequence[float]], numbers: Sequence[int]
) -> Group:
    columns = {f"{HOLE}{n}": each for n, each in enumerate(zip(*angles, strict=True))}
    names = {one.name: one for one in template.parameters}
    if missing := names.keys() - columns.keys():
        raise InputError(_without_value(min(missing)))
    values = {one: columns[name] for name, one in names.items()}
    return _checked(Group(template, values, numbers))


def _without_value(name: str) -> str:
    if ANGLE_OF_A_GATE.fullmatch(name):
        return (
            "inv of a gate whose angle is that of a gate that it controls is not "
            "supported: write pow(-1)"
        )
    return f"parameter {name} has no value: bind the parameters"


def _single_group(
    text: str, architecture: Architecture | None, number: int, where: str
) -> Group:
    try:
        circuit = flat(text, architecture)
        for parameter in circuit.parameters:
            raise InputError(_without_value(parameter.name))
    except InputError as error:
        raise InputError(f"{where}{error}") from error
    return Group(circuit, {}, [number])


def _with_sets(program: QuantumCircuit, sets: Sequence[Mapping[str, JSON]]) -> Group:
    """Give values to the parameters of a program."""
    parameters = {parameter.name: parameter for parameter in program.parameters}
    columns: dict[Parameter, list[float]] = {one: [] for one in parameters.values()}
    for number, values in enumerate(sets):
        if why := _value_error(values, parameters.keys()):
            raise InputError(f"values[{number}]: {why}")
        for name, value in values.items():
            columns[parameters[name]].append(float(str(value)))
    return _checked(Group(program, columns, range(len(sets))))


def _value_error(values: Mapping[str, JSON], names: Set[str]) -> str:
    """Return the error in a set of values; empty if the values are valid."""
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


def _checked(group: Group) -> Group:
    """Reject angles that, with bound parameters, are not finite or have no value."""
    from qiskit.circuit import Parameter

    if all(isinstance(angle, Parameter) for angle in _parameterised(group.circuit)):
        return group  # the values themselves are finite
    circuits = group.bound()
    for number in range(len(group.numbers)):
        try:
            _check_all(next(circuits))
        except InputError as error:
            raise InputError(f"values[{number}]: {error}") from error
        except (ArithmeticError, ValueError, TypeError) as error:
            message = f"values[{number}]: its parameters: {described(error)}"
            raise InputError(message) from error
    return group


def _check_all(circuit: QuantumCircuit) -> None:
    for one in circuit.data:
        if one.params:
            for block in (blocks := getattr(one.operation, "blocks", ())):
                _check_all(block)
            if not blocks:
                check_angles(one.operation)


def _parameterised(
    circuit: QuantumCircuit,
) -> Iterator[ParameterExpression | QuantumCircuit]:
    """Yield the angles and the blocks that have parameters."""
    everything = (
        circuit.global_phase,
        *(one for each in circuit.data for one in each.params),
    )
    return (one for one in everything if getattr(one, "parameters", None))
