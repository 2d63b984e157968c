"""The output of ``scontrol show config``."""

from __future__ import annotations

import re

COMMAND = ("scontrol", "show", "config")
_CLUSTER = re.compile(r"^ClusterName *= *(\S+)", re.MULTILINE)
_NEXT_JOB = re.compile(r"^NEXT_JOB_ID *= *(\d+)", re.MULTILINE | re.ASCII)


def cluster_name(text: str) -> str | None:
    """Return the name of the cluster; ``None`` if the output lacks it."""
    match = _CLUSTER.search(text)
    return match[1] if match else None


def next_job(text: str) -> int | None:
    """Return the id of the next job; ``None`` if the output lacks it."""
    match = _NEXT_JOB.search(text)
    return int(match[1]) if match else None
