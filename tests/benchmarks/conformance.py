"""The conformance tests of CWL v1.2, in one process, on our connectors and without them.

    git clone https://github.com/common-workflow-language/cwl-v1.2
    pip install cwltest
    python -m tests.benchmarks.conformance cwl-v1.2 [--on local nodes] [--tests ID ...]
        [--loops streamflow/tests/test_cwl_loop.py]

``local`` is StreamFlow alone, the opponent. The others bind every step to a deployment of
ours, under the scheduler ``sfq.journal``: ``journal`` (StreamFlow's local deployment),
``nodes``, ``emulator``, and ``slurm`` (on a lab), with ``slurm-elastic``. A job that does
not use its QPU fails on an emulator; here it does not, as these tests know no QPU.

What is told is which tests fail that StreamFlow alone passes; and with ``--loops``, how many
of StreamFlow's own tests of loops pass (https://github.com/alpha-unito/streamflow).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    chdir,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from pathlib import Path
from typing import TypeAlias, cast
from unittest.mock import patch

import pytest
import yaml
from streamflow.cwl import runner
from streamflow.log_handler import logger

from sf_quantum.connectors.quantum.leased_jobs import LeasedJob, LeasedJobs
from sf_quantum.files import JSON
from tests import lab
from tests.support.lab_conf import Options

SECONDS = 120
HOST: JSON = {"type": "local", "config": {}}
SLURM: dict[str, JSON] = {"pollingInterval": 1, "maxConcurrentJobs": 8}
DEPLOYMENTS: Mapping[str, dict[str, JSON]] = {
    "local": {},
    "journal": {"type": "local", "config": {}},
    "nodes": {"type": "sfq.nodes", "config": {"names": ["n1", "n2"]}, "wraps": "host"},
    "emulator": {"type": "sfq.emulator", "config": {"vqpus": 4}},
    "slurm": {"type": "sfq.slurm", "config": SLURM, "wraps": "host"},
    "slurm-elastic": {
        "type": "sfq.slurm",
        "config": {**SLURM, "allocation": {"strategy": "elastic", "max": 4}},
        "wraps": "host",
    },
}

#: of a test, in the format of cwltest
Test: TypeAlias = dict[str, JSON]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of CWL's conformance_tests.yaml")
    parser.add_argument("--on", nargs="+", choices=DEPLOYMENTS, default=["nodes"])
    parser.add_argument("--tests", nargs="+", default=[], help="by id; all by default")
    parser.add_argument("--loops", type=Path, help="StreamFlow's test_cwl_loop.py")
    parser.add_argument("--passed", type=Path, help="keep the opponent's result here")
    args = parser.parse_args()
    tests = _tests(args.folder, args.tests)
    logger.setLevel(logging.CRITICAL)
    alone = _run_alone(tests, args.passed)
    print(f"{len(alone)} of {len(tests)} pass on StreamFlow alone")
    for name in args.on:
        with _cluster() if name.startswith("slurm") else nullcontext():
            began = time.monotonic()
            passed = _run(tests, name)
            seconds = time.monotonic() - began
            loops = None if args.loops is None else _loops(args.loops, name)
        lost = sorted(alone - passed)
        print(
            f"{name}: {len(passed)} pass in {seconds:.0f} s; of StreamFlow's fail: {lost}"
        )
        if loops is not None:
            print(f"{name}: tests of loops: {loops['passed']} of {loops.total()} pass")


def _tests(folder: Path, ids: list[str]) -> dict[str, Test]:
    from cwltest.utils import load_and_validate_tests

    loaded, _ = load_and_validate_tests(str(folder / "conformance_tests.yaml"))
    tests = {
        # where none has a label, their line
        str(test["id"]).partition("#")[2]: cast(Test, test)
        for test in loaded
    }
    return {id_: test for id_, test in tests.items() if not ids or id_ in ids}


def _run_alone(tests: Mapping[str, Test], kept: Path | None) -> set[str]:
    if kept is not None and kept.exists():
        return {*json.loads(kept.read_text())} & {*tests}
    passed = _run(tests, "local")
    if kept is not None:
        kept.write_text(json.dumps(sorted(passed)))
    return passed


@contextmanager
def _cluster() -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory() as folder,
        lab.running(Path(folder, "lab"), Options(cpus=8)) as slurm,
        patch.dict(os.environ, slurm.environment),
    ):
        yield


def _run(tests: Mapping[str, Test], name: str) -> set[str]:
    passed = set()
    with _unused_qpus() if name == "emulator" else nullcontext():
        for number, (id_, test) in enumerate(tests.items(), start=1):
            if _passes(test, name):
                passed.add(id_)
            if number % 50 == 0:
                print(f"{name}: {number} of {len(tests)}", flush=True)
    return passed


def _unused_qpus() -> AbstractContextManager[object]:
    settle = LeasedJobs.settle

    async def settled(self: LeasedJobs, job: LeasedJob, *, keep: bool) -> bool:
        await settle(self, job, keep=keep)
        return True

    return patch.object(LeasedJobs, "settle", settled)


def _passes(test: Test, name: str) -> bool:
    from cwltest.compare import CompareFail, compare

    with (
        tempfile.TemporaryDirectory(prefix="cwl-") as folder,
        chdir(folder),
        redirect_stdout(io.StringIO()) as output,
    ):
        words = ["--quiet", "--outdir", f"{folder}/out"]
        words += ["--streamflow-file", str(_streamflow_file(Path(folder), name))]
        words += [str(test["tool"]).removeprefix("file://")]
        if job := test.get("job"):
            words.append(str(job).removeprefix("file://"))
        try:
            asyncio.run(
                asyncio.wait_for(
                    runner._async_main(runner.parser.parse_args(words)), SECONDS
                )
            )
            compare(test.get("output"), json.loads(output.getvalue() or "{}"))
        except CompareFail:
            return False
        except Exception:  # noqa: BLE001 - whatever StreamFlow raises
            return bool(test.get("should_fail"))
        return not test.get("should_fail")


class _Bound:
    """A plugin of pytest: tests that call ``main`` of StreamFlow's runner run on ours.

    :ivar outcomes: how many tests passed, failed and were skipped
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcomes: Counter[str] = Counter()

    @pytest.fixture(autouse=True)
    def main(
        self,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        words = ["--streamflow-file", str(_streamflow_file(tmp_path, self.name))]
        main: Callable[[list[str]], int] = request.module.main
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(request.module, "main", lambda args: main([*words, *args]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1


def _loops(file: Path, name: str) -> Counter[str]:
    bound = _Bound(name)
    with tempfile.TemporaryDirectory(prefix="loops-") as folder:
        # beside StreamFlow's other tests, it would be of another package named tests
        shutil.copy(file, folder)
        words = ["-q", "--import-mode=importlib", "--disable-warnings"]
        pytest.main([*words, "-c", os.devnull, "--rootdir", folder, folder], [bound])
    return bound.outcomes


def _streamflow_file(folder: Path, name: str) -> Path:
    workflow: dict[str, JSON] = {"type": "cwl", "config": {}}
    document: dict[str, JSON] = {
        "version": "v1.0",
        "workflows": {"test": workflow},
        "database": {"type": "default", "config": {"connection": ":memory:"}},
    }
    if deployment := DEPLOYMENTS[name]:
        workflow["bindings"] = [{"step": "/", "target": {"deployment": "ours"}}]
        document["deployments"] = {"host": HOST, "ours": deployment}
        document["scheduling"] = {"scheduler": {"type": "sfq.journal", "config": {}}}
    path = folder / "streamflow.yml"
    path.write_text(yaml.safe_dump(document))
    return path


if __name__ == "__main__":
    main()
