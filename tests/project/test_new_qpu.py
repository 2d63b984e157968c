"""``examples/new-qpu``: a vendor added by a distribution of its own, as a user would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.folders import EXAMPLES
from tests.support.vendor import Vendor

pytestmark = pytest.mark.process

EXAMPLE = EXAMPLES / "new-qpu"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the example is installed beside us."""
    folder = tmp_path_factory.mktemp("new-qpu")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    # with the build backend that is here, so that no index is asked
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    done = subprocess.run(
        [*pip, *options, str(EXAMPLE)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        capture_output=True,
        text=True,
        cwd=EXAMPLE,
    )


def test_it_keeps_the_contract(environment: dict[str, str]) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "acme"]
    files = ["test_acme_qpu.py", "--pyargs", "sf_quantum.testing.qpus"]
    done = run(environment, "pytest", *options, *files)
    assert done.returncode == 0, done.stdout
    # four need no QPU, fifteen need one, and seven are the example's own
    assert "26 passed" in done.stdout


def test_the_contract_needs_pytest_alone(environment: dict[str, str]) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *options, "-k", "acme"),
            *("--pyargs", "sf_quantum.testing.qpus"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        cwd=EXAMPLE.parents[1],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_maximum_cut_runs_on_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    # runs by hand, as in the README, leave folders there
    left = shutil.ignore_patterns(".streamflow", "results")
    example = EXAMPLE.parent / "max-cut"
    shutil.copytree(example, tmp_path, ignore=left, dirs_exist_ok=True)
    file = tmp_path / "streamflow.yml"
    content = yaml.safe_load(file.read_text())
    with Vendor(tmp_path / "vendor") as vendor:
        key = Path(str(vendor.config["keyFile"]))
        shutil.copy(key, tmp_path / "acme.key")
        qpu = content["deployments"]["qpu"]
        # its own key is relative to the file, and the step runs elsewhere
        config = {"type": "acme", "url": vendor.config["url"], "keyFile": "acme.key"}
        qpu |= {"type": "sfq.rest", "config": config}
        # on a busy machine, the vendor takes a while to say how long its queue is
        candidate = content["bindingFilters"]["candidate"]
        candidate["config"]["timeout"] = 100
        file.write_text(yaml.safe_dump(content))
        code = (
            "import sys; from sf_quantum.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        outdir = ["--outdir", str(tmp_path / "out")]
        done = subprocess.run(
            [sys.executable, "-c", code, "run", str(file), *outdir],
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    cut = json.loads((tmp_path / "out" / "cut.json").read_text())
    assert (cut["cut"], cut["qpu"]) == (17, "qpu")


def test_it_is_listed_beside_ours(environment: dict[str, str]) -> None:
    code = "import sys; from sf_quantum.cli import main; sys.exit(main(['qpus']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["acme"] == rows["sfq"] == "yes"


def test_the_tutorial_shows_it_in_25_lines() -> None:
    text = (EXAMPLE.parents[1] / "docs/tutorials/own-qpu.md").read_text()
    _, _, rest = text.partition("```python\nclass AcmeQpu(Qpu):")
    snippet = f"class AcmeQpu(Qpu):{rest.partition('```')[0]}".strip().splitlines()
    assert len(snippet) <= 25
    module = (EXAMPLE / "acme_qpu.py").read_text()
    defined = {line.split("(")[0].strip() for line in snippet if "def " in line}
    assert len(defined) == 16
    assert all(f"    {line}(" in module for line in defined)
    assert snippet[-1] in (EXAMPLE / "pyproject.toml").read_text()


def test_nothing_of_ours_knows_it() -> None:
    root = EXAMPLE.parents[1]
    for path in [*(root / "sf_quantum").rglob("*.py"), root / "pyproject.toml"]:
        assert "acme" not in path.read_text().lower()
