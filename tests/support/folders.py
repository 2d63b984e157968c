"""Where things are in a clone."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "support" / "data"
BENCHMARKS = ROOT / "tests" / "benchmarks"
EXAMPLES = ROOT / "examples"
