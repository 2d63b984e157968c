"""Runs the programs of examples/sdks on each location, and makes the table of the energies.

Each cell is a run of StreamFlow, with the example's own files. An SDK that does not go
together with the others gets a virtual environment of its own, which needs a package
index. The lab is a Slurm on this machine (Debian's slurm-wlm and munge).

    python -m tests.benchmarks.sdks --environments FOLDER [--sdks qiskit,...] [--page]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from sf_quantum.files import JSON
from tests import lab
from tests.support.folders import ROOT
from tests.support.lab_conf import Options
from tests.support.site_daemons import write_site_file
from tests.support.waiting import until

EXAMPLE = ROOT / "examples" / "sdks"
PAGE = ROOT / "docs" / "howto" / "sdks.md"
LOCATIONS = ("emulator", "rest", "slurm")
SECONDS = 600
_ENERGY = re.compile(r"^energy (-?\d+\.\d+), exact (-?\d+\.\d+)$", re.MULTILINE)
# of the table in the page
_TABLE = re.compile(
    r"(?<=<!-- table -->\n\n).*?(?=\n\n<!-- end of the table -->)", re.DOTALL
)


@dataclass(frozen=True)
class Sdk:
    """An SDK, and what it computes.

    :param packages: of its environment, or none if the tests' own has it
    """

    name: str
    computes: str
    technology: str = "superconducting"
    qubits: int = 20
    packages: tuple[str, ...] = ()


# Cirq's and CUDA-Q's programs know nothing of sf_quantum
OWN = f"--editable={ROOT}"
VQE = "ground state, VQE"
SDKS = {
    "qiskit": Sdk("Qiskit", VQE),
    "cirq": Sdk("Cirq on IQM", VQE, packages=("iqm-client[cirq]>=36,<37",)),
    "pennylane": Sdk("PennyLane", VQE, packages=(OWN, "pennylane-qiskit")),
    "qrisp": Sdk("Qrisp", VQE, packages=(OWN, "qrisp>=0.9.10")),
    "cudaq": Sdk(
        "CUDA-Q", "ground state, angles from its simulator", packages=("cudaq",)
    ),
    "ocean": Sdk("Ocean", "ground state, amplitudes by QUBOs", "annealer", 500),
    "pulser": Sdk("Pulser", "couplings of the atoms' chain", "neutral-atom", 10),
}


@dataclass(frozen=True)
class Cell:
    """What one program has measured on one location, or why it has not."""

    energy: str
    exact: str = ""
    seconds: float = 0.0


def main() -> None:
    """Run the cells, and print the table or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument("--sdks", default=",".join(SDKS))
    parser.add_argument("--locations", default=",".join(LOCATIONS))
    parser.add_argument("--page", action="store_true", help=f"write into {PAGE.name}")
    given = parser.parse_args()
    cells: dict[tuple[str, str], Cell] = {}
    with tempfile.TemporaryDirectory(prefix="sfq-") as temporary:
        folder = Path(temporary)
        for sdk in given.sdks.split(","):
            python = environment(given.environments, sdk)
            for location in given.locations.split(","):
                cells[sdk, location] = cell = run(folder, sdk, location, python)
                print(sdk, location, cell, flush=True)
    text = table(cells)
    print(text)
    if given.page:
        PAGE.write_text(_TABLE.sub(lambda _: text, PAGE.read_text()))


def environment(folder: Path, sdk: str) -> str:
    """Make an SDK's environment unless it is there; return its Python."""
    if not SDKS[sdk].packages:
        return sys.executable
    made = folder.resolve() / sdk
    python = made / "bin" / "python"
    if not (made / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", made], check=True)
        pip = [f"{python}", "-m", "pip", "install", "--quiet"]
        install = [*pip, *SDKS[sdk].packages]
        subprocess.run(install, check=True)
        (made / "installed").touch()
    return str(python)


def run(folder: Path, sdk: str, location: str, python: str) -> Cell:
    """Run a program on a location."""
    one = SDKS[sdk]
    here = folder / f"{sdk}-{location}"
    shutil.copytree(EXAMPLE, here, ignore=shutil.ignore_patterns(".*", "results"))
    program: JSON = {"class": "File", "path": f"ising_{sdk}.py"}
    (here / "job.yml").write_text(json.dumps({"python": python, "program": program}))
    file = here / f"{location}.yml"
    config = yaml.safe_load(file.read_text())
    qpu = config["deployments"]["qpu"]["config"]
    with site(here, location, one) as variables:
        match location:
            case "emulator":
                qpu |= {"technology": one.technology, "qubits": one.qubits}
            case "rest":
                qpu["url"] = f"unix:{here}/socket"
            case "slurm":
                qpu["qrmiConfig"] = "qrmi_config.json"
        file.write_text(json.dumps(config))
        began = time.monotonic()
        command = ["streamflow", "run", file.name, "--outdir", "results"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ran = subprocess.run(
            command,
            cwd=here,
            env={**os.environ, **variables, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        seconds = time.monotonic() - began
    result = here / "results" / "energy.txt"
    found = _ENERGY.search(result.read_text()) if result.exists() else None
    if ran.returncode or found is None:
        print(ran.stdout, ran.stderr, file=sys.stderr)
        return Cell("failed")
    return Cell(found[1], found[2], seconds)


@contextmanager
def site(here: Path, location: str, sdk: Sdk) -> Iterator[dict[str, str]]:
    """Start what a location needs; yield its variables."""
    if location == "emulator":
        yield {}
        return
    socket = here / "socket"
    command = ["sfq", "serve", "--socket", f"{socket}", "--state", f"{here}/state"]
    command += ["--technology", sdk.technology, "--qubits", f"{sdk.qubits}"]
    command += ["--time-scale", "0", "--noise", "0"]
    with (
        open(here / "service.log", "wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as service,
    ):
        try:
            until(socket.exists, "the service answers")
            if location == "rest":
                yield {}
                return
            write_site_file(here, f"unix:{socket}")
            with lab.running(here / "lab", Options(nodes=1)) as slurm:
                yield slurm.environment
        finally:
            service.terminate()


def table(cells: dict[tuple[str, str], Cell]) -> str:
    """Write the cells as a table in Markdown."""
    sdks = dict.fromkeys(sdk for sdk, _ in cells)
    locations = dict.fromkeys(location for _, location in cells)
    names = [f"`sfq.{location}`" for location in locations]
    lines = [["SDK", "what it computes", "exact", *names]]
    lines.append(["---"] * len(lines[0]))
    for sdk in sdks:
        row = [cells[sdk, location] for location in locations]
        exact = next((cell.exact for cell in row if cell.exact), "")
        energies = [cell.energy for cell in row]
        lines.append([SDKS[sdk].name, SDKS[sdk].computes, exact, *energies])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
