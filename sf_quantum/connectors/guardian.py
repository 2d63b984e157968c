"""One guardian process per driver: it does what a driver that was ended no longer can.

The driver (``streamflow run``) holds the write end of a pipe, the guardian the read end.
However the driver ends, by itself or by SIGINT, SIGTERM or SIGKILL, the pipe closes; the
guardian then ends every process that the driver started and left behind, removes the
folders it was told of, and exits. Processes are known by a variable in the environment
they inherited, so that grandchildren are found as well, whoever their parent is by then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

MARKER = "SFQ_DRIVER"
PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.05


class Guardian:
    """The driver's side of its guardian."""

    def __init__(self) -> None:
        name = str(uuid.uuid4())
        # everything started from now on inherits it; /proc shows the environment a
        # process was started with, so the driver itself does not carry it
        os.environ[MARKER] = name
        # the write end is not inherited by children (PEP 446): it is closed with us
        ours, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, name],
                stdin=ours,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Ctrl-C on a terminal goes to the whole process group of the driver
                start_new_session=True,
            )
        finally:
            os.close(ours)

    def remove(self, folder: str | Path) -> None:
        """Have a folder removed after the driver's end, if it is still there.

        :param folder: absolute path; one line of it, and less than a pipe writes at once
        """
        with suppress(BrokenPipeError):  # somebody ended the guardian: do without
            os.write(self._pipe, f"{folder}\n".encode())


@cache
def current() -> Guardian:
    """The guardian of this process, started by the first call.

    :returns: the one guardian
    """
    return Guardian()


def end_processes(name: str) -> None:
    """End every process that carries a driver's mark, except this one.

    :param name: the driver's mark
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    asked: set[psutil.Process] = set()
    nobody = 0
    # looked for again each time, for what was being started when its parent was ended;
    # and twice in vain, because a process shows no environment while it is being started
    while nobody < 2:
        left = set(_marked(name))
        nobody = 0 if left else nobody + 1
        if time.monotonic() > deadline:
            _signal(left, force=True)
        else:
            _signal(left - asked, force=False)
            asked |= left
        if left:
            psutil.wait_procs(left, timeout=PAUSE_SECONDS)
        else:
            time.sleep(PAUSE_SECONDS)


def _marked(name: str) -> Iterator[psutil.Process]:
    me = os.getpid()
    for process in psutil.process_iter():
        try:
            if process.pid != me and process.environ().get(MARKER) == name:
                yield process
        except (psutil.Error, OSError):
            continue  # it has just ended, or it is not ours to look at


def _signal(processes: set[psutil.Process], *, force: bool) -> None:
    for process in processes:
        try:
            if force:
                process.kill()
            else:
                process.terminate()
        except psutil.Error:
            continue


def main() -> None:
    """Wait for the driver's end, then clean up behind it."""
    folders = sys.stdin.read().split("\n")
    end_processes(sys.argv[1])
    for folder in filter(None, folders):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
