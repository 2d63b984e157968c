"""One guardian process per driver: it does what a driver that was ended no longer can.

The driver (``streamflow run``) holds the write end of a pipe, the guardian the read end.
However the driver ends, by itself or by SIGINT, SIGTERM or SIGKILL, the pipe closes; the
guardian then gives back the leases it was told of, ends every process that the driver
started and left behind, removes the folders it was told of, and exits. Processes are known
by a variable in the environment they inherited, so that grandchildren are found as well,
whoever their parent is by then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON

MARKER = "SFQ_DRIVER"
PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.05
# a process that waits for a dead file system cannot be ended, not even by SIGKILL
GIVE_UP_SECONDS = 10.0


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

        :param folder: absolute path
        """
        self._tell(folder=str(folder))

    def hold(
        self, type_: str, name: str, config: Mapping[str, JSON], token: str
    ) -> None:
        """Have a lease given back after the driver's end, unless that is done by then.

        :param type_: of the QPU; with its name and configuration, what makes its client
        :param token: the lease's, which so is on no command line
        """
        self._tell(type=type_, name=name, config=dict(config), hold=token)

    def release(self, token: str) -> None:
        """Take note that a lease was given back."""
        self._tell(release=token)

    def _tell(self, **words: JSON) -> None:
        with suppress(BrokenPipeError):  # somebody ended the guardian: do without
            # a line is less than a pipe takes at once, so those of threads do not mix
            os.write(self._pipe, f"{json.dumps(words)}\n".encode())


@cache
def current() -> Guardian:
    """The guardian of this process, started by the first call.

    :returns: the one guardian
    """
    return Guardian()


def end_processes(name: str) -> None:
    """End every process that carries a driver's mark, except this one.

    One that cannot be ended is given up after a while.

    :param name: the driver's mark
    """
    start = time.monotonic()
    asked: set[psutil.Process] = set()
    nobody = 0
    # looked for again each time, for what was being started when its parent was ended;
    # and twice in vain, because a process shows no environment while it is being started
    while nobody < 2 and time.monotonic() < start + GIVE_UP_SECONDS:
        left = set(_marked(name))
        nobody = 0 if left else nobody + 1
        if time.monotonic() > start + PATIENCE_SECONDS:
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


def leases_held(told: Iterable[Mapping[str, JSON]]) -> list[Mapping[str, JSON]]:
    """Find the leases that were not given back.

    :param told: everything the driver told, in its order
    """
    held: dict[JSON, Mapping[str, JSON]] = {}
    for words in told:
        if "hold" in words:
            held[str(words["hold"])] = words
        elif "release" in words:
            held.pop(str(words["release"]), None)
    return list(held.values())


def give_back(lease: Mapping[str, JSON]) -> None:
    """Give a lease back, or leave it to run out where its QPU does not answer."""
    # imported only where there is a lease: the guardian starts with every driver
    from sf_quantum.qpu import selection

    config = lease["config"]
    with suppress(QuantumError):
        client = selection.client(
            str(lease["type"]),
            str(lease["name"]),
            config if isinstance(config, dict) else {},
        )
        client.release(str(lease["hold"]))


def main() -> None:
    """Wait for the driver's end, then clean up behind it."""
    told = list(_understood(sys.stdin.buffer))
    # side by side: one QPU that does not answer holds up no other, and neither a process
    # that does not end nor the leases hold up each other
    threads = [
        threading.Thread(target=give_back, args=(lease,)) for lease in leases_held(told)
    ]
    for thread in threads:
        thread.start()
    end_processes(sys.argv[1])
    for thread in threads:
        thread.join()
    for words in told:
        if "folder" in words:
            shutil.rmtree(str(words["folder"]), ignore_errors=True)


def _understood(lines: Iterable[bytes]) -> Iterator[dict[str, JSON]]:
    for line in lines:
        if not line.endswith(b"\n"):
            continue  # a driver that was killed may leave half a line
        with suppress(ValueError):  # what can be cleaned up is cleaned up
            words = json.loads(line)
            if isinstance(words, dict):
                yield words


if __name__ == "__main__":
    main()
