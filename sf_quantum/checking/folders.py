"""Folders in which StreamFlow cannot run steps.

It changes to a job's folder without quoting its path, so that steps in a folder with a space
end with no message at all (StreamFlow 0.2.0rc3).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sf_quantum.checking.deployments import Binding, Deployments
from sf_quantum.checking.document import FileProblem
from sf_quantum.files import KeyPath

RIGHT = "write a path without spaces"


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
            own = (*where, "workdir"), target.get("workdir")
            shared = (section, name, "workdir"), deployments.get(name).get("workdir")
            place, folder = own if own[1] is not None else shared
            if isinstance(folder, str):
                is_local = deployments.is_local(name)
                path = str(Path(folder).absolute()) if is_local else folder
                if re.search(r"\s", path) and path not in seen:
                    seen.add(path)
                    what = f"steps cannot run in {path!r}, which has a space"
                    yield deployments.document.problem(place, what, RIGHT)
            elif deployments.get(name).get("type") == "local":
                in_temporary = True
    if in_temporary and re.search(r"\s", temporary):
        what = f"local steps cannot run in {temporary!r}, which has a space"
        right = "set TMPDIR to a path without spaces, or add workdir"
        yield deployments.document.problem(workflow, what, right)
