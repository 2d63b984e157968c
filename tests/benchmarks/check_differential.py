"""``sfq check`` against StreamFlow: the CWL files of a folder, generated ones, and mutants.

    git clone https://github.com/common-workflow-language/cwl-v1.2
    pip download --no-binary :all: --no-deps cwltool  # its tests are in the archive
    python -m tests.benchmarks.check_differential cwl-v1.2 cwltool/tests [--valid N]
        [--mutants N] [--seed N]

A file is right if StreamFlow translates it (``streamflow run --validate``), which is also
where it finds most of what is wrong. Told are the numbers of files that both accept, both
refuse, only StreamFlow accepts and only the check accepts, and the latter two kinds one by
one, with the exceptions of the check, if there are any. A file without values of its inputs
counts as right for the check if only these are missing.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import yaml

from sf_quantum.files import JSON, mapping
from tests.support import cwl_documents as documents


class Comparison:
    """The verdicts on many files."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.verdicts: Counter[str] = Counter()
        self.seconds: list[float] = []

    def compare(self, label: str, file: Path, settings: Path | None) -> str:
        """Let both check a CWL file; returns the verdict."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "sf.yml")
            path.write_text(json.dumps(documents.streamflow_file(file, settings)))
            engine = documents.rejected(path)
            began = time.process_time()
            try:
                found = documents.checked(path)
            except Exception:  # noqa: BLE001 - whatever it is, it is counted
                self._tell("exception", label, traceback.format_exc(limit=-2))
                return "exception"
            self.seconds.append(time.process_time() - began)
        problems = [p for p in found if not documents.is_of_run(p)]
        # StreamFlow looks at values, too, before it runs anything
        refused = bool(found) if engine else bool(problems)
        verdict = {
            (False, False): "both accept",
            (True, True): "both refuse",
            (False, True): "only the engine accepts",
            (True, False): "only the check accepts",
        }[bool(engine), refused]
        why = engine if not refused else str(problems[0] if problems else found[0])
        self._tell(verdict, label, why if verdict.startswith("only") else "")
        return verdict

    def _tell(self, verdict: str, label: str, why: str) -> None:
        self.verdicts[verdict] += 1
        if why:
            print(f"{self.name}: {verdict}: {label}: {why}", flush=True)

    def summary(self) -> str:
        """One line of figures."""
        counts = ", ".join(f"{n} {verdict}" for verdict, n in self.verdicts.items())
        longest = max(self.seconds, default=0.0)
        return f"{self.name}: {self.verdicts.total()} files: {counts}; longest {longest:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--valid", type=int, default=200)
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    summaries = []
    right: list[Path] = []
    for folder in args.folders:
        comparison = Comparison(folder.name)
        for file in sorted(folder.rglob("*.cwl")):
            label = str(file.relative_to(folder))
            if comparison.compare(label, file.resolve(), None) == "both accept":
                right.append(file)
        summaries.append(comparison.summary())
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as made:
        summaries.append(_generated(rng, args.valid, Path(made)))
        summaries.append(_mutants(rng, args.mutants, right, Path(made)))
    print(*summaries, sep="\n")


def _generated(rng: random.Random, number: int, folder: Path) -> str:
    comparison = Comparison("generated")
    for index in range(number):
        content = documents.workflow(rng)
        file = folder / f"{index}.cwl"
        file.write_text(json.dumps(content))
        comparison.compare(file.name, file, documents.values(content, folder))
    return comparison.summary()


def _mutants(rng: random.Random, number: int, right: list[Path], folder: Path) -> str:
    comparison = Comparison("mutants")
    for index in range(number):
        content: JSON = documents.workflow(rng)
        settings: Path | None = documents.values(content, folder)
        file, label = folder / f"mutant-{index}.cwl", "generated"
        if right and index % 2:
            parent, settings = rng.choice(right), None
            content = _read(parent)
            # beside its parent, since it may name other files
            file, label = parent.with_name(f"mutant-{index}.cwl"), parent.name
        if not mapping(content):
            continue
        file.write_text(json.dumps(documents.mutated(content, rng)))
        try:
            label = f"{label} {_difference(content, _read(file))}"
            comparison.compare(label, file.resolve(), settings)
        finally:
            file.unlink()
    return comparison.summary()


def _read(file: Path) -> JSON:
    content: JSON = yaml.safe_load(file.read_text())
    return json.loads(json.dumps(content, default=str))  # type: ignore[no-any-return]


def _difference(first: JSON, second: JSON) -> str:
    """Where a mutant differs from its parent, in short."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in first.keys() | second.keys():
            if key not in second or key not in first:
                return f"{'-' if key in first else '+'}{key}"
            if first[key] != second[key]:
                return f"{key}.{_difference(first[key], second[key])}"
    if isinstance(first, list) and isinstance(second, list):
        for one, other in zip(first, second, strict=False):
            if one != other:
                return f"[].{_difference(one, other)}"
    return f"{first!r:.40} > {second!r:.40}"


if __name__ == "__main__":
    main()
