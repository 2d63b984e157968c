"""A build hook that compiles the kernels when the package is built, not in a step.

The library is plain C without Python's headers, so one wheel suits every Python 3. On
machines without a C compiler, the compiler in the `ziglang` wheel is used.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("sf_quantum/clustering/_kernels.c")
LIBRARY = "sf_quantum/clustering/_kernels.so"
# pragmas in the source allow sums to be reordered; unlike with -ffast-math, NaN, infinity and
# rounding keep their meaning
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno",
         "-ffp-contract=off"]  # fmt: skip


def system_compiler() -> list[str] | None:
    """Return the compiler in ``CC`` or on the PATH, or ``None``."""
    if named := os.environ.get("CC"):
        return shlex.split(named)
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


class KernelsBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled library to the wheel or, for an editable install, to the source."""

    def dependencies(self) -> list[str]:
        return [] if system_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        compiler = system_compiler() or [sys.executable, "-m", "ziglang", "cc"]
        source = Path(self.root, SOURCE)
        if version == "editable":
            library = Path(self.root, LIBRARY)
        else:
            self.folder = tempfile.TemporaryDirectory(prefix="sf_quantum-build-")
            library = Path(self.folder.name, "_kernels.so")
            build_data["force_include"] = {str(library): LIBRARY}
        subprocess.run(
            [*compiler, *FLAGS, str(source), "-o", str(library), "-lm"], check=True
        )
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(
        self, version: str, build_data: dict[str, object], artifact_path: str
    ) -> None:
        if folder := getattr(self, "folder", None):
            folder.cleanup()
