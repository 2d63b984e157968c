"""StreamFlow, ``sfq`` and Python in processes that need not import what they run.

Each takes a second of CPU for its imports, most of what a test costs that starts one. So
one process imports them once, and forks for each: what runs in a fork is the command
itself, with a session, a folder and an environment of its own, and any signal ends it as
it ends the command. Only ``/proc`` tells them apart: it shows the command line and the
environment of the process that was forked. ``sfq run`` forks its driver, too.
"""

from __future__ import annotations

import ast
import atexit
import fcntl
import gc
import importlib
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import distribution, entry_points
from pathlib import Path
from types import ModuleType

import coverage

from sf_quantum import cli
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.processes import process_pool
from sf_quantum.workflows import driver
from tests.support.transpiling import leave_out_iqm

BIN = Path(sys.executable).parent
COMMANDS = {
    "cwltool": ("cwltool.main", "run"),
    "streamflow": ("streamflow.main", "run"),
    "sfq": ("sf_quantum.cli", "main"),
    "pytest": ("pytest", "console_main"),
    "python": ("tests.support.forking", "run_python"),
}
# The commands of ``sfq`` that are forked: a stand-in passes on fewer signals than ``lease``, and
# Slurm calls ``slurm``.
FORKED = [name for name in cli.COMMANDS if name not in ("lease", "slurm")]
# what they import while they run
PRELOADED = (
    "sf_quantum.plugin",
    *(f"sf_quantum.cli.{cli.COMMANDS[name].folder}.{name}" for name in FORKED),
    "sf_quantum.service.run",
    process_pool.MODULE,
    # what StreamFlow imports for a run
    "cachecontrol.caches",
    "filelock",
    "rdflib.plugins.serializers.turtle",
    "rdflib.plugins.stores.memory",
    # what a service imports for its tasks
    "pulser",
    "pulser_simulation",
    "pytest",
)
# what programs import, as far as it is installed
SDKS = ("qiskit.primitives", "dwave.system", "cwltool.main")
# These take the folder in which they are imported for that of the command
IMPORTED_BY_FORK = ("streamflow.main", "streamflow.parser", "streamflow.cwl.runner")
_REQUEST_BYTES = 200_000

# A command for a PATH, without the imports of Python itself. Its process stands for the
# fork: it passes signals on, and the fork is killed when it ends.
_STAND_IN = """\
#!{python} -IS
import _signal, _socket, posix, sys
if not ({imports_much}):
    posix.execv("{real}", ["{real}", *sys.argv[1:]])
forker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
forker.connect("{socket}")
ignored = _signal.getsignal(2) == _signal.SIG_IGN
environment = {{
    name.decode(errors="surrogateescape"): value.decode(errors="surrogateescape")
    for name, value in posix.environ.items()
}}
request = ["{name}", *sys.argv[1:]], posix.getcwd(), environment, ignored
files = b"".join(file.to_bytes(4, sys.byteorder) for file in range(3))
ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
forker.sendmsg([ascii(request).encode()], ancillary)
forker.recv(64)
for number in 1, 2, 15:
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, lambda number, _: forker.send(b"%d" % number))
status = int(forker.recv(64))
if status < 0:
    if status != -9:
        _signal.signal(-status, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -status)
posix._exit(status)
"""


class Command:
    """A command in a process forked for it, with the methods of ``subprocess.Popen``."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
    ) -> None:
        self.returncode: int | None = None
        self._forker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forker.connect(str(_forker() / "socket"))
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        request = list(words), str(folder), dict(environment), ignored
        with open(os.devnull) as stdin:
            files = [stdin.fileno(), stdout, stderr]
            socket.send_fds(self._forker, [ascii(request).encode()], files)
        self.pid = int(self._forker.recv(64))

    def __del__(self) -> None:
        # of one that ends with others, and for which nobody waits; Python would warn of it
        # in whatever test runs when it is collected
        self._forker.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self.returncode is None:
            self._forker.settimeout(timeout)
            try:
                self.returncode = int(self._forker.recv(64))
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired("fork", timeout or 0) from error
            self._forker.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with no chance to do anything."""
        self.send_signal(signal.SIGKILL)


def run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command that ends well.

    :returns: what it printed
    """
    with tempfile.TemporaryFile("w+") as output:
        file = output.fileno()
        status = Command(words, folder, environment, file, file).wait()
        output.seek(0)
        text = output.read()
    assert status == 0, text
    return text


def python() -> str:
    """A Python that runs a program, which is a file or ``-c``, or pytest in a fork."""
    return str(_forker() / "bin" / "python")


def stand_ins() -> str:
    """A folder with the commands, which run in a fork if they take long to import."""
    return str(_forker() / "bin")


@cache
def _forker() -> Path:
    """The folder of the process that forks for a run of tests, and ends with it."""
    worker = "PYTEST_XDIST_WORKER" in os.environ
    tests = os.getppid() if worker else os.getpid()
    folder = Path(f"/tmp/sfqf{tests}")
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not folder.exists():
            _fork_for(tests, folder)
    return folder


def _fork_for(tests: int, folder: Path) -> None:
    # those of a cluster's users too
    for made in (folder, folder / "bin"):
        made.mkdir(0o755)
    # programs; what the service starts for its jobs; not what inherits descriptors
    program = "''.join(sys.argv[1:2]).endswith('.py')"
    code = "sys.argv[1:2] == ['-c'] and 'multiprocessing' not in sys.argv[2]"
    module = f"sys.argv[1:3] in {[['-m', process_pool.MODULE], ['-m', 'pytest']]}"
    much = {
        "cwltool": "True",
        "pytest": "True",
        "python": f"{program} or {code} or {module}",
        "sfq": f"sys.argv[1:2] in {[[n] for n in FORKED]}",
        "streamflow": "True",
    }
    for name, condition in much.items():
        stand_in = folder / "bin" / name
        stand_in.write_text(
            _STAND_IN.format(
                name=stand_in.name,
                python=sys.executable,
                real=BIN / stand_in.name,
                socket=folder / "socket",
                imports_much=condition,
            )
        )
        stand_in.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(100)
        arguments = [str(listener.fileno()), str(tests)]
        subprocess.run(
            ["setsid", "--fork", sys.executable, "-m", __name__, *arguments],
            pass_fds=[listener.fileno()],
            cwd=folder,
            # only forks are measured
            env={k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )


Run = Callable[[], int | None]


class _Forker:
    """Forks a command for each connection."""

    def __init__(self, listener: socket.socket, tests: int) -> None:
        self._listener = listener
        self._pids: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._python = Path.cwd() / "bin" / "python"
        self._on(listener, self._accept)
        self._on(os.pidfd_open(tests), lambda: _clear)

    def serve(self) -> Run:
        """Serve until the tests have ended.

        :returns: what is to run then, or in a fork
        """
        while True:
            for key, _ in self._selector.select():
                handle: Callable[[], Run | None] = key.data
                if run := handle():
                    return run

    def _on(self, file: socket.socket | int, handle: Callable[[], Run | None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, handle)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._on(connection, partial(self._read, connection))

    def _read(self, connection: socket.socket) -> Run | None:
        data, files = b"", list[int]()
        with suppress(ConnectionResetError):
            data, files, *_ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if files:
            return self._fork(connection, ast.literal_eval(data.decode()), files)
        pid = self._pids.get(connection)
        if pid is not None:
            os.kill(pid, int(data or signal.SIGKILL))
        if not data:
            self._selector.unregister(connection)
            connection.close()
        return None

    def _fork(
        self,
        connection: socket.socket,
        request: tuple[list[str], str, dict[str, str], bool],
        files: list[int],
    ) -> Run | None:
        if not (pid := os.fork()):
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
                else:
                    os.close(key.fd)
            self._selector.close()
            return _become(*request, files, self._python)
        for file in files:
            os.close(file)
        self._pids[connection] = pid
        with suppress(OSError):  # it was killed in this moment, as the next read tells
            connection.send(str(pid).encode())
        ended = os.pidfd_open(pid)
        self._on(ended, partial(self._end, connection, ended))
        return None

    def _end(self, connection: socket.socket, ended: int) -> None:
        _, status = os.waitpid(self._pids.pop(connection), 0)
        with suppress(OSError):  # nobody wants to know
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        self._selector.unregister(ended)
        os.close(ended)


def run_python() -> None:
    """Run what the arguments say, as ``python`` does: ``-c`` CODE, ``-m`` MODULE or a file."""
    what, *sys.argv = sys.argv[1:]
    if what == "-m":
        sys.path.insert(0, os.getcwd())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.path.insert(0, "")
        code, sys.argv[0] = sys.argv[0], "-c"
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main))
    else:
        sys.argv.insert(0, what)
        sys.path.insert(0, str(Path(what).resolve().parent))
        runpy.run_path(what, run_name="__main__")


def _become(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    ignored: bool,
    files: list[int],
    python: Path,
) -> Run:
    """Make a fork what was asked for."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # The name, of 15 characters, tells whose it is: the environment in /proc does not.
    Path("/proc/self/comm").write_text(environment.get("SFQ_TEST", "python"))
    # both were found in the environment of before
    tempfile.tempdir = None
    paths = environment.get("PYTHONPATH")
    sys.path[1:1] = map(os.path.abspath, paths.split(os.pathsep)) if paths else ()
    sys.executable = str(python)
    if ignored:  # as a child inherits it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    sys.argv = words
    # as the interpreter does it when it starts, if this is to be measured
    coverage.process_startup()
    if words[:2] == ["sfq", "run"]:
        vars(driver)["_ends_with_parent"] = partial(_forks, driver._ends_with_parent())
    module, name = COMMANDS[words[0]]
    run: Run = getattr(importlib.import_module(module), name)
    return run


def _forks(bind: Callable[[], None]) -> Callable[[], None]:
    """Have the child become the driver before it executes Python."""

    def become() -> None:
        bind()
        # as the interpreter sets them when it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # one tells ``Popen`` that nothing went wrong
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        try:
            _end(_drive)
        finally:
            traceback.print_exc()
            os._exit(1)

    return become


def _drive() -> None:
    runpy.run_module(driver.__name__, run_name="__main__")


def _clear() -> int:
    folder = Path.cwd()
    shutil.rmtree(folder)
    folder.with_suffix(".lock").unlink()
    return 0


def _main(listener: socket.socket, tests: int) -> Run:
    for module in (*IMPORTED_BY_FORK, *PRELOADED):
        importlib.import_module(module)
    for module in SDKS:
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)
    for plugin in (
        *entry_points(group="pytest11"),
        *distribution("sf_quantum").entry_points,
    ):
        plugin.load()
    # each service would make it anew
    assert EmulatedDevice().layout.graph is not None
    for module in IMPORTED_BY_FORK:
        del sys.modules[module]
    leave_out_iqm()
    assert threading.active_count() == 1, "a fork has no other threads"
    # forks share what is never collected
    gc.freeze()
    return _Forker(listener, tests).serve()


def _end(run: Run) -> None:
    """Run and exit, without the clearing of modules that costs as much as their import."""
    try:
        sys.exit(run())
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        vars(threading)["_shutdown"]()  # as the interpreter does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code or 0)


if __name__ == "__main__":
    _end(_main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
