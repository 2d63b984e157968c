"""The reading of points: CSV or TSV with a header, or ``.npy``."""

from __future__ import annotations

import csv
import hashlib
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.files import cannot_read

#: largest valid number: squares of larger numbers, and of their differences, may be infinite
LARGEST = 1e150
#: limit up to which doubles represent all whole numbers
WHOLE = 2**53
#: number of points that are hashed at a time
HASHED_ROWS = 4096
#: errors that NumPy raises for an invalid header, or an array that does not fit into memory
BROKEN_NPY = (OSError, ValueError, SyntaxError, tokenize.TokenError, MemoryError)


class Points(NamedTuple):
    """The content of a file of points."""

    #: shape (n, d), finite
    values: NDArray[np.float64]
    #: the names of the d features
    features: list[str]
    #: the n values of the column of ground truth, if it was selected
    truth: list[str] | None


def read_points(path: str | Path, label: str | None = None) -> Points:
    """Read a file of points.

    :param path: ``.npy`` (an array of shape (n, d)), ``.tsv``, or any other suffix for
        CSV
    :param label: column with the ground truth, which is not a feature
    :raises InputError: if the file is missing or empty, has rows of different lengths, values
        that are not finite numbers up to :data:`LARGEST`, a whole number that a double
        rounds, or fewer than two points; the message names the file and line
    """
    path = Path(path)
    npy = path.suffix.lower() == ".npy"
    points = _read_npy(path) if npy else _read_text(path, label)
    if label is not None and points.truth is None:
        raise InputError(f"{path}: no column {label!r} in a .npy file; drop --label")
    if not len(points.features):
        raise InputError(f"{path}: no feature; give at least one numeric column")
    if len(points.values) < 2:
        raise InputError(
            f"{path}: {len(points.values)} points; clustering needs at least two"
        )
    bad = np.argwhere(~(np.abs(points.values) <= LARGEST))
    if len(bad):
        row, column = bad[0]
        where = f"row {row}" if npy else f"line {row + 2}"
        raise InputError(
            f"{path}, {where}, {points.features[column]}: "
            f"{points.values[row, column]} is not a finite number up to {LARGEST:g}"
        )
    spread = float(np.ptp(points.values, axis=0).max())
    if 0 < spread < 1 / LARGEST:
        raise InputError(
            f"{path}: all points within {spread:g} of each other; scale the features"
        )
    return points


def digest(values: NDArray[np.float64]) -> str:
    """Return a hash of points, which depends on their order."""
    hashed = hashlib.sha256(f"{values.shape}\n".encode())
    # Blocks, so that no copy is as large as all points.
    for start in range(0, len(values), HASHED_ROWS):
        # The sum with 0.0 turns -0.0 into 0.0, so equal points have the same hash.
        block = values[start : start + HASHED_ROWS] + 0.0
        hashed.update(np.ascontiguousarray(block, "<f8").data)
    return hashed.hexdigest()[:16]


def _read_npy(path: Path) -> Points:
    try:
        with path.open("rb") as file:
            values = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise InputError(f"{path}: data after the array; expected one array")
    except BROKEN_NPY as error:
        if isinstance(error, OSError) and error.strerror:
            raise cannot_read(path, "points", error) from error
        raise InputError(f"{path}: not a .npy file of numbers") from error
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: an array of {values.dtype} with shape {values.shape}; "
            "expected n points by d features, numbers"
        )
    names = [f"column {i}" for i in range(values.shape[1])]
    doubles = np.ascontiguousarray(values, np.float64)
    for row, column in _beyond_whole(doubles):
        whole = int(values[row, column])
        if whole != int(doubles[row, column]):
            raise _rounded(f"{path}, row {row}, {names[column]}", str(whole))
    return Points(doubles, names, None)


def _read_text(path: Path, label: str | None) -> Points:
    lines, delimiter = _lines(path)
    header = _header(path, lines[0], delimiter)
    for number, line in enumerate(lines[1:], start=2):
        columns = line.count(delimiter) + 1 if line.strip() else 0
        if columns != len(header):
            raise InputError(
                f"{path}, line {number}: {columns} columns; the header has {len(header)}"
            )
    if label is not None and label not in header:
        raise InputError(
            f"{path}, line 1: no column {label!r}; there are: {', '.join(header)}"
        )
    features = [i for i, name in enumerate(header) if name != label]
    values = _numbers(path, lines, delimiter, header, features)
    for row, column in _beyond_whole(values):
        text = lines[row + 1].split(delimiter)[features[column]].strip()
        digits = text.lstrip("+-0")
        if digits.isdecimal() and int(digits) != abs(int(values[row, column])):
            where = f"{path}, line {row + 2}, {header[features[column]]}"
            raise _rounded(where, text)
    truth = None
    if label is not None:
        column = header.index(label)
        truth = [line.split(delimiter)[column].strip() for line in lines[1:]]
    return Points(values, [header[i] for i in features], truth)


def _beyond_whole(values: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Find the valid numbers that are too large for doubles to represent all whole numbers."""
    size = np.abs(values)
    places = np.argwhere((size >= WHOLE) & (size <= LARGEST))
    return [(int(row), int(column)) for row, column in places]


def _rounded(where: str, text: str) -> InputError:
    """Return the error for a whole number that a double rounds, probably an id."""
    return InputError(
        f"{where}: {text} is rounded by a double; leave out a column of ids, name one of "
        "ground truth with --label, or subtract a constant"
    )


def _lines(path: Path) -> tuple[list[str], str]:
    """Return the lines, without empty lines at the end, and the delimiter."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, "points", error) from error
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError(f"{path}: empty; expected a header and one line per point")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    if '"' in text:
        # quoted cells may contain the delimiter; ASCII's unit separator does not occur in text
        return ["\x1f".join(row) for row in _rows(path, lines, delimiter)], "\x1f"
    return lines, delimiter


def _rows(path: Path, lines: list[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each line; cells may be quoted."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for row in reader:
            if reader.line_num > number:  # a quoted cell contains the next lines
                raise csv.Error("a cell goes over several lines")
            yield row
            number += 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number}: wrong quotes ({error}); a quoted cell ends on its "
            "line, and a quote within it is doubled"
        ) from error


def _header(path: Path, line: str, delimiter: str) -> list[str]:
    """Read the names of the columns."""
    other = next((mark for mark in ";|\t" if mark in line), None)
    if other is not None and delimiter not in line:
        raise InputError(
            f"{path}, line 1: columns separated by {other!r}; expected commas, or tabs "
            "in a file that ends in .tsv"
        )
    header = [name.strip() for name in line.split(delimiter)]
    if all(_is_number(name) for name in header):
        raise InputError(
            f"{path}, line 1: numbers; expected a header with the columns' names"
        )
    for column, name in enumerate(header):
        if not name or name in header[:column]:
            fault = f"the name {name!r} again" if name else "no name"
            raise InputError(
                f"{path}, line 1: column {column + 1} has {fault}; "
                "each column needs a name of its own"
            )
    return header


def _numbers(
    path: Path, lines: list[str], delimiter: str, header: list[str], columns: list[int]
) -> NDArray[np.float64]:
    """Read the numbers in columns; an error names the first wrong cell."""
    if len(lines) == 1 or not columns:
        return np.empty((len(lines) - 1, len(columns)))
    try:
        return np.loadtxt(
            lines[1:], delimiter=delimiter, usecols=columns, comments=None, ndmin=2
        )
    except ValueError as error:
        for number, line in enumerate(lines[1:], start=2):
            cells = line.split(delimiter)
            for column in columns:
                if not _is_number(cells[column]):
                    cell = cells[column].strip()
                    fault = f"{cell!r} is not a number" if cell else "no number"
                    raise InputError(
                        f"{path}, line {number}, {header[column]}: {fault}; "
                        "name a column of ground truth with --label"
                    ) from None
        raise InputError(f"{path}: {error}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
