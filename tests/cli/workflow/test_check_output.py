"""What ``sfq`` prints where the encoding of its output lacks characters."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.service_process import SFQ

pytestmark = pytest.mark.process


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-5", "utf-8"])
def test_a_name_that_the_output_lacks_is_escaped(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "l\xe4ufe.yml"
    file.write_text("version: v1.0\n")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [*SFQ, "check", file.name]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.stderr == b""
    name = file.name if encoding == "utf-8" else "l\\xe4ufe.yml"
    assert done.stdout.decode(encoding).startswith(f"{name}:")
