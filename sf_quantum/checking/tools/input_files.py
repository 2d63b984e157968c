"""Checks of input files of a workflow with the functions with which ``sfq`` reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sf_quantum.checking.cwl import types
from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, mapping
from sf_quantum.samplers import problem

if TYPE_CHECKING:
    from sf_quantum.clustering.points import Points

#: size in bytes of the largest file that is read, so that a check takes seconds at most
MAX_BYTES = 8 * 1024 * 1024

#: function that reads a file, given the column of labels; raises InputError as the tool would
Reader: TypeAlias = "Callable[[Path, str | None], Points | dict[str, JSON]]"


def _points(path: Path, label: str | None) -> Points:
    # Imported here, since this module imports numpy, which most checks do not need.
    from sf_quantum.clustering.points import read_points

    return read_points(path, label)


#: Readers by command and option, for files that can be checked on their own. The tools' other
#: files must match other inputs.
READERS: dict[tuple[str | None, str], Reader] = {
    ("cluster", "--points"): _points,
    ("score", "--points"): _points,
    ("plot", "--points"): _points,
    ("solve", "--problem"): lambda path, _: problem.read(path),
    ("solve", "--previous"): lambda path, _: problem.read_info(path),
}


@dataclass(frozen=True)
class Use:
    """An input that is a file, and the tool that gets the file.

    :param where: key path of the input in the document
    :param how: text that names the tool and the option to which the file is passed
    """

    document: Document
    where: KeyPath
    how: str


def check(
    use: Use, value: JSON, reader: Reader, label: str | None
) -> Iterator[FileProblem]:
    """Read an existing file as the tool will, unless it is too large.

    :param value: value of the input
    """
    name = types.file_name(value)
    # With a basename, the tool gets the file under another name, whose suffix may determine
    # how the tool reads the file.
    if not isinstance(name, str) or "basename" in mapping(value):
        return
    path = use.document.folder / name.removeprefix("file://")
    if not path.is_file():  # another check reports the missing file
        return
    if path.stat().st_size > MAX_BYTES:
        most = MAX_BYTES // 1024**2
        what = f"{name} is not checked, since it has more than {most} MiB"
        yield use.document.remark(use.where, what, use.how)
        return
    try:
        reader(path, label)
    except InputError as error:
        yield use.document.problem(use.where, str(error), use.how)
