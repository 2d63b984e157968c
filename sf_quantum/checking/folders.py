"""Folders in which StreamFlow cannot run steps.

It changes to a job's folder without quoting its path. A shell takes a space or a quote in
it for its own, and steps there end with no message at all (StreamFlow 0.2.0rc3).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sf_quantum.checking.deployments import Binding, Deployments
from sf_quantum.checking.document import FileProblem
from sf_quantum.files import KeyPath

# Characters that a shell does not take as they are; in a path from "/", it takes others.
SPECIAL = re.compile(r"[\s\"$&'();<>\\`|]")
RIGHT = "write a path without spaces, and without any of \"$&'();<>\\`|"


def check(
    deployments: Deployments, bindings: list[Binding], workflow: KeyPath
) -> Iterator[FileProblem]:
    """Check the folders of steps.

    :param workflow: its place in the file
    """
    steps = [binding for binding in bindings if binding.kind == "step"]
    temporary = tempfile.gettempdir()
    in_temporary = not any(binding.path == "/" for binding in steps)
    seen: set[str] = set()
    for binding in steps:
        for where, target in binding.targets:
            name = str(target.get("deployment", target.get("model")))
            section = deployments.sections.get(name, "deployments")
            of_target = (*where, "workdir"), target.get("workdir")
            shared = (section, name, "workdir"), deployments.get(name).get("workdir")
            place, folder = of_target if of_target[1] is not None else shared
            if isinstance(folder, str):
                is_local = deployments.is_local(name)
                path = str(Path(folder).absolute()) if is_local else folder
                if (match := SPECIAL.search(path)) and path not in seen:
                    seen.add(path)
                    what = f"steps cannot run in {path!r}, which has {_name(match[0])}"
                    yield deployments.document.problem(place, what, RIGHT)
            elif deployments.get(name).get("type") == "local":
                in_temporary = True
    if in_temporary and (match := SPECIAL.search(temporary)):
        what = f"local steps cannot run in {temporary!r}, which has {_name(match[0])}"
        right = f"set TMPDIR to such a path, or add workdir: {RIGHT}"
        yield deployments.document.problem(workflow, what, right)


def _name(character: str) -> str:
    return "a space" if character.isspace() else character
