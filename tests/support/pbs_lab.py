"""A real OpenPBS on this machine, in a folder and on ports of its own.

The server needs root, a folder that only root can write to, and an address of this host that is
not a loopback address.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from sf_quantum.files import JSON
from tests.support.folders import ROOT
from tests.support.waiting import until

DAEMONS = ("pbs_comm", "pbs_mom", "pbs_sched", "pbs_server")
USER = "daemon"
#: name of a machine without a network, whose own name is that of a loopback address
NAME = "pbslab"
_PLACES = ("/opt/pbs/sbin", "/opt/pbs/bin")
_PATH = os.pathsep.join((*_PLACES, os.environ.get("PATH", "")))
# The port of the manager has to follow that of MOM, which runs jobs.
_PORTS = ("BATCH_SERVICE", "MOM_SERVICE", "MANAGER_SERVICE", "DATA_SERVICE")
_SETTINGS = """
create resource qpu type=string
create resource qpu_shots type=long
create resource qpu_seconds type=float
create resource qpu_qubits type=long
create hook sfq
set hook sfq event = "queuejob,modifyjob,runjob"
import hook sfq application/x-python default {hook}
set server acl_roots = root@*
set server job_history_enable = True
set server scheduler_iteration = 5
set node {name} resources_available.ncpus = 16
"""


class PbsError(Exception):
    """A part of the lab does not do what it should."""


def missing() -> str | None:
    """Return why no lab can be started here, if so."""
    if shutil.which("pbs_server", path=_PATH) is None:
        return "OpenPBS is not installed"
    if os.getuid() != 0:
        return "pbs_server needs root"
    if not _host():
        return f"neither {socket.gethostname()} nor {NAME} has an address for PBS"
    return None


def _host() -> str | None:
    """Return the name of this host that PBS accepts."""
    for name in (socket.gethostname(), NAME):
        with suppress(OSError):
            if not socket.gethostbyname(name).startswith("127."):
                return name
    return None


class PbsLab:
    """A server, a scheduler and a node.

    :param folder: has ``pbs.conf`` and the state
    """

    def __init__(self, folder: Path) -> None:
        self.name = str(_host())
        conf = folder / "pbs.conf"
        self.environment = {"PATH": _PATH, "PBS_CONF_FILE": str(conf)}
        self._home = folder / "home"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        *ports, router = _free_ports()
        executables = Path(shutil.which("pbs_server", path=_PATH) or "").parents[1]
        values = {
            **{f"PBS_{port}_PORT": ports[i] for i, port in enumerate(_PORTS)},
            **{
                "PBS_EXEC": executables,
                "PBS_HOME": self._home,
                "PBS_SCP": "/bin/false",
            },
            **dict.fromkeys(("PBS_SERVER", "PBS_LEAF_NAME"), self.name),
            "PBS_MOM_NODE_NAME": self.name,
            "PBS_BATCH_SERVICE_PORT_DIS": ports[0],
            **dict.fromkeys(
                ("PBS_COMM_NAME", "PBS_LEAF_ROUTERS"), f"{self.name}:{router}"
            ),
            **{f"PBS_START_{one}": 1 for one in ("SERVER", "SCHED", "COMM", "MOM")},
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def bring_up(self) -> None:
        """Make the state, start the daemons, and wait until the node is free.

        :raises PbsError: if the state cannot be made
        """
        executables = Path(shutil.which("pbs_server", path=_PATH) or "").parents[1]
        made = self.run(str(executables / "libexec" / "pbs_habitat"))
        if not (self._home / "datastore").is_dir():
            raise PbsError(made.stdout + made.stderr)
        with open(self._home / "mom_priv" / "config", "a") as config:
            config.write("$usecp *:/ /\n")
        for daemon in DAEMONS:
            self.start(daemon)
        self.wait_until_it_answers()
        hook = ROOT / "deployments" / "pbs" / "hook.py"
        for line in _SETTINGS.format(hook=hook, name=self.name).strip().splitlines():
            self.output("qmgr", "-c", line)
        until(self._has_node, "a node")

    def _has_node(self) -> bool:
        for name, daemon in self._daemons.items():
            if daemon.poll() is not None:
                raise PbsError(f"{name}: {self._log(name).read_text()}")
        return "state = free" in self.run("pbsnodes", self.name).stdout

    def _log(self, daemon: str) -> Path:
        return self._home.with_name(f"{daemon}.log")

    def start(self, daemon: str) -> None:
        """Start a daemon."""
        words = [daemon, "-N", *(["-p"] if daemon == "pbs_mom" else [])]
        with open(self._log(daemon), "ab") as log:
            self._daemons[daemon] = subprocess.Popen(
                words,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, daemon: str) -> None:
        """Kill a daemon; the data service of a server goes on, as the jobs of a node do."""
        self._daemons[daemon].kill()
        self._daemons[daemon].wait()

    def end(self) -> None:
        """End jobs, daemons and the data service."""
        if jobs := self.run("qselect").stdout.split():
            self.run("qdel", "-W", "force", "-x", *jobs)
        for daemon in reversed(DAEMONS):
            if process := self._daemons.get(daemon):
                process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()
        self.run("pbs_dataservice", "stop")

    def run(self, *command: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of PBS."""
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        return subprocess.run(
            [*(as_user if user else []), *command],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            cwd="/",
        )

    def output(self, *command: str, user: str = "") -> str:
        """Return the output of a command of PBS.

        :raises PbsError: if it fails
        """
        done = self.run(*command, user=user)
        if done.returncode:
            raise PbsError(f"{command}: {done.stderr}")
        return done.stdout.strip()

    def submit(self, *words: str, user: str = "") -> str:
        """Submit a job and return its id, without the server."""
        return self.output("qsub", *words, user=user).partition(".")[0]

    def job(self, id_: str) -> dict[str, JSON]:
        """Return what ``qstat`` lists of a job, also after its end."""
        listed = self.output("qstat", "-x", "-f", "-F", "json", id_)
        (attributes,) = json.loads(listed)["Jobs"].values()
        assert isinstance(attributes, dict)
        return attributes

    def wait_until_it_answers(self) -> None:
        """Wait until the server answers."""
        until(lambda: self.run("qstat", "-B").returncode == 0, "pbs_server answers")


def _free_ports() -> range:
    """Return five consecutive free ports, below those of outgoing connections."""
    while True:
        first = random.randrange(10_000, 30_000, 5)
        ports = range(first, first + 5)
        with suppress(OSError), ExitStack() as opened:
            for port in ports:
                socket_ = opened.enter_context(closing(socket.socket()))
                socket_.bind(("", port))
            return ports


@contextmanager
def running() -> Iterator[PbsLab]:
    """Run a lab, and end it at the end of the block.

    :raises PbsError: if it cannot be started
    """
    # PBS refuses a folder in one that everyone can write to.
    with tempfile.TemporaryDirectory(prefix="sfq-pbs-", dir="/var/lib") as folder:
        Path(folder).chmod(0o755)
        lab = PbsLab(Path(folder))
        try:
            lab.bring_up()
            yield lab
        finally:
            lab.end()
