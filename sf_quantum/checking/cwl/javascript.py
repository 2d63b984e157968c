"""Checks the syntax of JavaScript in CWL with Node.js, which executes it in a real run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.files import KeyPath, listing

# Program for Node.js that compiles scripts without running them.
_PROGRAM = """\
const {Script} = require("vm"), text = require("fs").readFileSync(0, "utf8")
const faults = JSON.parse(text).map(code => {
  try { new Script(code); return null } catch (error) { return String(error.message) }
})
process.stdout.write(JSON.stringify(faults))
"""
# Time limit for the scripts of all files together; beyond it, no faults are reported.
_SECONDS = 5.0


@dataclass
class Scripts:
    """The JavaScript expressions in the files of a workflow.

    :param places: documents and key paths in which each expression occurs
    """

    places: dict[str, list[tuple[Document, KeyPath]]] = field(default_factory=dict)

    def add(self, text: str, document: Document, where: KeyPath) -> None:
        """Add an expression, ``$(...)`` or ``${...}``."""
        self.places.setdefault(text, []).append((document, where))

    def check(self) -> Iterator[FileProblem]:
        """Find expressions that Node.js cannot compile, if this host has Node.js."""
        texts = [*self.places]
        for text, message in zip(texts, _faults([*map(_code, texts)]), strict=False):
            for document, where in self.places[text] if message else ():
                what = f"{text[:40]!r} is not valid JavaScript ({message[:100]})"
                yield document.problem(where, what, "correct the expression")


def _code(text: str) -> str:
    """Return the code that CWL engines run for an expression, without ``expressionLib``."""
    body = text[1:] if text[1] == "{" else f"{{return ({text[1:]});}}"
    return f'"use strict";\n(function(){body})'


def _faults(codes: list[str]) -> list[str]:
    """Return an error message per script, empty if it compiles; ``[]`` without Node.js."""
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None or not codes:
        return []
    try:
        done = subprocess.run(
            [node, "-e", _PROGRAM],
            input=json.dumps(codes).encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
        return [str(message or "") for message in listing(json.loads(done.stdout))]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
