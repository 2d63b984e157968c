"""Checks for folders in which StreamFlow cannot run steps, and paths that it misreads.

StreamFlow 0.2.0rc3 changes to a job's folder without quoting the path. So a shell interprets
spaces and quotes in the path, and the steps end without a message.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sf_quantum.checking.bindings.binding import Binding
from sf_quantum.checking.cwl.inputs import SPECIAL, named
from sf_quantum.checking.deployments.references import Deployments, deployment_of
from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.files import JSON, KeyPath
from sf_quantum.text import escaped

# Special characters of a shell; and brackets, which StreamFlow takes for a pattern, and %XX,
# which it takes for an escape in a URL, so that it finds no outputs in such a folder.
_FOLDER = re.compile(rf"{SPECIAL.pattern}|\[[^/\]]+\]|%[0-9A-Fa-f]{{2}}")
# the remedy for such a folder
RIGHT = "write a path without spaces, and without any of \"$%&'();<>[\\]`|"
# Characters that end a URL's path, are left out of it, or stand for other characters in it.
# CWL's parser may thus read a file in another folder. The last range stands for bytes of a
# path that is not UTF-8.
NOT_OF_URL = re.compile(r"[?#+\t\n\r\udc80-\udcff]")


def check_files(
    document: Document, config: Mapping[str, JSON], workflow: KeyPath
) -> Iterator[FileProblem]:
    """Check the paths of a workflow's files.

    :param config: configuration of the workflow
    """
    for key in ("file", "settings"):
        name = config.get(key)
        if not isinstance(name, str):
            continue
        # In a packed document, "#" and the name of a process follow the path of the file.
        plain = name.partition("#")[0] if key == "file" else name
        if (document.folder / plain).is_file():
            name = plain
        path = str((document.folder / name).absolute())
        if match := NOT_OF_URL.search(path):
            what = (
                f"'{escaped(path)}' cannot be read, since CWL's parser misreads "
                f"'{escaped(match[0])}'"
            )
            right = "use a path in UTF-8 without ?, #, +, tabs and line breaks"
            yield document.problem((*workflow, "config", key), what, right)
            if NOT_OF_URL.search(str(document.folder.absolute())):
                return  # the folder is at fault, so the other file has the same problem


def check(
    deployments: Deployments, bindings: list[Binding], workflow: KeyPath
) -> Iterator[FileProblem]:
    """Check the folders in which steps run.

    :param workflow: key path of the workflow in the document
    """
    steps = [binding for binding in bindings if binding.kind == "step"]
    temporary = tempfile.gettempdir()
    in_temporary = not any(binding.path == "/" for binding in steps)
    seen: set[str] = set()
    for binding in steps:
        for where, target in binding.references:
            name = deployment_of(target)
            section = deployments.sections.get(name, "deployments")
            of_target = (*where, "workdir"), target.get("workdir")
            shared = (section, name, "workdir"), deployments.get(name).get("workdir")
            place, folder = of_target if of_target[1] is not None else shared
            if isinstance(folder, str):
                is_local = deployments.is_local(name)
                path = str(Path(folder).absolute()) if is_local else folder
                if (match := _FOLDER.search(path)) and path not in seen:
                    seen.add(path)
                    what = f"steps cannot run in {path!r}, which has {named(match[0])}"
                    yield deployments.document.problem(place, what, RIGHT)
            elif deployments.get(name).get("type") == "local":
                in_temporary = True
    if in_temporary and (match := _FOLDER.search(temporary)):
        what = f"local steps cannot run in {temporary!r}, which has {named(match[0])}"
        right = f"set TMPDIR to such a path, or add workdir: {RIGHT}"
        yield deployments.document.problem(workflow, what, right)
