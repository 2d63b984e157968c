"""``sfq init``: write a small hybrid workflow that is ready to run."""

from __future__ import annotations

import argparse
import shutil
import string
import tempfile
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from sf_quantum.cli.arguments import checked
from sf_quantum.errors import InputError
from sf_quantum.files import cannot_write

NAME = checked(
    str,
    "a name of letters, digits, - and _, such as my-workflow",
    lambda name: name.replace("-", "").replace("_", "").isalnum() and name.isascii(),
)


@dataclass(frozen=True)
class Template:
    """A template for a new workflow.

    :param about: description of the workflow
    :param parts: folders with the template's files
    :param solve: path of the step that is the quantum candidate
    """

    about: str
    parts: tuple[str, ...]
    solve: str


TEMPLATES = {
    "loop": Template(
        "generate, solve, evaluate, until the answer is good",
        ("common", "steps", "loop"),
        "/search/solve",
    ),
    "single": Template(
        "generate, solve, evaluate", ("common", "steps", "single"), "/solve"
    ),
    "parameter-sweep": Template(
        "the same for several parameters in parallel",
        ("common", "steps", "parameter-sweep"),
        "/solve",
    ),
    "session": Template(
        "the loop in one step, which holds the QPU", ("common", "session"), "/search"
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the name and the template."""
    parser.epilog = "Templates: " + "; ".join(
        f"{name}: {template.about}" for name, template in TEMPLATES.items()
    )
    parser.add_argument(
        "name", metavar="NAME", type=NAME, help="of the workflow, and of its new folder"
    )
    parser.add_argument(
        "--template",
        choices=TEMPLATES,
        default="loop",
        help="what to begin with (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the workflow's folder; if this fails, leave no part of it."""
    folder = Path(args.name)
    if " " in str(folder.absolute()):
        raise InputError(
            f"{folder.absolute()}: StreamFlow cannot run in a path with a space; "
            "choose another folder"
        )
    if folder.exists():
        raise InputError(f"{folder}: exists already; choose another name")
    template = TEMPLATES[args.template]
    try:
        with tempfile.TemporaryDirectory(prefix=".sfq-", dir=".") as temporary:
            _write(Path(temporary, args.name), args.name, template)
            Path(temporary, args.name).rename(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    print(
        f"{folder}: {template.about}\n"
        f"  cd {folder}\n"
        "  sfq run streamflow.yml\n"
        "service.yml and slurm.yml run it on a QPU service and on a Slurm cluster."
    )
    return 0


def _write(folder: Path, name: str, template: Template) -> None:
    """Copy a template's files into a new folder, and fill in the names."""
    folder.mkdir()
    for part in template.parts:
        with as_file(files("sf_quantum") / "templates" / part) as source:
            for path in sorted(source.iterdir()):
                if path.is_file():
                    shutil.copyfile(path, folder / path.name)
    values = {"NAME": name, "SOLVE": template.solve}
    for path in folder.iterdir():
        text = path.read_text("utf-8")
        path.write_text(string.Template(text).safe_substitute(values), "utf-8")
