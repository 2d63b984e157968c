"""A lab whose Slurm has the site's plugins, with a service behind each of its QPUs."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from sf_quantum.connectors.guardian import processes
from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import Identity, Lease
from sf_quantum.service.http.auth import FixedIdentity
from tests.lab import Lab, shared
from tests.support import lab_site
from tests.support.lab_cluster import LabError
from tests.support.lab_conf import Options
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS

# root has no burst buffers
USER = "daemon" if os.getuid() == 0 else getpass.getuser()
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
SLURM = FixedIdentity(Identity("slurm", admin=True))
# one for each test, since they share the lab
QPUS = (
    "first waits closed cancelled killed again lost array together srun large account "
    "option workflow share impossible nodes reserved crowded killing halved"
).split()


def _is_read(descriptor: Path) -> bool:
    """Whether a file in ``/proc/PID/fd`` is open for reading."""
    return descriptor.lstat().st_mode & stat.S_IRUSR != 0


class Site:
    """The lab, and a QPU's service behind each of its QPUs that is in use.

    :param folder: which the user of the jobs may write to
    :param sockets: has those of the services
    """

    def __init__(self, lab: Lab, folder: Path, sockets: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.sockets = sockets

    @contextmanager
    def serving(self, qpu: str, vqpus: int = 1) -> Iterator[RunningService]:
        """Run the service of a QPU."""
        with running_service(authenticate=SLURM, vqpus=vqpus) as service:
            socket = Path(service.url.removeprefix("unix:"))
            # for the user of the jobs
            socket.parent.chmod(0o755)
            socket.chmod(0o666)
            link = self.socket(qpu)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(socket)
            try:
                yield service
                self._comes_to_none(qpu, service)
            finally:
                link.unlink()

    def _comes_to_none(self, qpu: str, service: RunningService) -> None:
        """Wait until nobody has or wants a lease, and Slurm has nothing to give back.

        Slurm 22.05 may stop what gives back for a job that is cancelled while it waits.
        """
        leases, pool = service.queue.leases, f"Pool={qpu} "
        self.lab.wait_for(
            lambda: not (leases.held or leases.waiting), "no lease", SECONDS
        )
        self.lab.wait_for(
            lambda: qpu == "cancelled"
            or pool not in self.lab.output("scontrol", "show", "burst"),
            f"no burst buffer of {qpu}",
            SECONDS,
        )

    def socket(self, qpu: str) -> Path:
        """Of the service of a QPU, while that runs."""
        return self.sockets / f"{qpu}.sock"

    def submit(self, qpu: str, script: str, *options: str) -> int:
        """Submit a job of the user's."""
        words = ("sbatch", "--parsable", *asking(qpu), *options, "--wrap", script)
        return int(self.as_user(*words))

    def as_user(self, *command: str) -> str:
        """Run a command as the user of the jobs, who reads a configuration of his own.

        :raises LabError: if it fails, with what it says
        """
        if os.getuid() == 0:
            ids = ("--reuid", USER, "--regid", USER, "--clear-groups")
            command = ("setpriv", *ids, *command)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": path}
        words = [f"{key}={value}" for key, value in environment.items()]
        return self.lab.output("env", "-C", str(self.folder), *words, *command)

    def can_run(self, program: str) -> bool:
        """Tell whether the user of the jobs may run a program, whose folders may be private."""
        try:
            # setpriv itself still has rights of root
            self.as_user("env", program, "--version")
        except LabError:
            return False
        return True

    def output(self, job: int) -> str:
        """What a job has printed, which has ended."""
        self.lab.wait_for(lambda: self.lab.state(job) in ENDED, f"{job} ends", SECONDS)
        return (self.folder / f"slurm-{job}.out").read_text()

    def shown(self, job: int) -> str:
        """What Slurm says of a job."""
        return self.lab.output("scontrol", "show", "job", str(job))

    @property
    def state(self) -> Path:
        """What the plugins keep of jobs."""
        return state(self.lab)

    def asks(self, job: int) -> psutil.Process | None:
        """The process that asks for a job's lease, if it runs."""
        for process in processes():
            words = list[str]()
            with suppress(psutil.Error):
                words = process.cmdline()
            # not the shell that has started it
            own = str(job) in words and str(self.state) in words
            if own and "acquire" in words and Path(words[0]).name != "sh":
                return process
        return None

    def script_daemon(self) -> psutil.Process:
        """The process that runs the plugins' scripts for the controller."""
        return script_daemon(self.lab)

    def pipes(self, qpu: str) -> list[Counter[str]]:
        """How many ends of each pipe the processes of Slurm that wait for a lease have."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "acquire" in words and qpu in words:
                # above it, a shell and then the one that Slurm has forked
                forked = process.parents()[1].pid
                files = [*Path(f"/proc/{forked}/fd").iterdir()]
                # stdout and stderr may be the same end
                ends = {(os.readlink(file), _is_read(file)) for file in files}
                found.append(Counter(name for name, _ in ends if "pipe" in name))
        assert found
        return found

    def start_again(self, job: int) -> None:
        """Start a job at once that is queued again, which Slurm does after two minutes."""
        self.until(job, "JobState=PENDING [^$]*BurstBufferState=complete")
        self.lab.output("scontrol", "update", f"JobId={job}", "StartTime=now")

    def until(self, job: int, pattern: str) -> None:
        """Wait until Slurm says something of a job."""
        self.lab.wait_for(
            lambda: re.search(pattern, self.shown(job)) is not None,
            f"{job}: {pattern}",
            SECONDS,
        )


def script_daemon(lab: Lab) -> psutil.Process:
    """Return the process that runs the plugins' scripts for the controller of a lab."""
    (file,) = re.findall(r"(?m)^SlurmctldPidFile=(.*)", lab.conf.read_text())
    (process,) = psutil.Process(int(Path(file).read_text())).children()
    return process


def state(lab: Lab) -> Path:
    """Return the folder of what the plugins of a lab keep of jobs."""
    return (lab.folder / "run").resolve() / "private" / "qpu"


def asking(qpu: str) -> list[str]:
    """The options of a job that asks for a QPU."""
    return ["--partition=quantum", f"--gres=qpu:{qpu}:1", "--time=5"]


def leases(service: RunningService) -> list[Lease]:
    """All leases, the oldest first."""
    return sorted(
        service.queue.store.leases.latest(None), key=lambda lease: lease.opened
    )


@contextmanager
def plugin_site(base: Path) -> Iterator[Site]:
    """Run a site whose QPUs are :data:`QPUS`, or use the one that runs.

    :param base: of all tests of this run
    """
    config = base / "qrmi_config.json"
    # that of pytest is for one user alone
    mark = hashlib.sha256(str(base).encode()).hexdigest()[:8]
    sockets = Path(tempfile.gettempdir(), f"sfq-{mark}")
    options = Options(
        nodes=1, qnodes=2, cpus=16, qpus=4, site=True, qrmi_config=str(config)
    )
    resources: list[JSON] = [
        {
            "name": name,
            "type": "sfq",
            "environment": {"SFQ_URL": f"unix:{sockets / name}.sock"},
        }
        for name in QPUS
    ]
    config.write_text(json.dumps({"resources": resources}))
    with shared(base / "site", options) as lab:
        account = lab_site.ACCOUNTS[0]
        # no matter whether another worker has done so already
        lab.run("sacctmgr", "-i", "add", "user", USER, f"account={account}")
        folder = Path(tempfile.mkdtemp(prefix="sfq-"))
        folder.chmod(0o777)
        # those of the lab are in a folder of pytest's, for one user alone
        conf = lab.conf.read_text().replace(
            f"PlugStackConfig={lab.folder}", f"PlugStackConfig={folder}"
        )
        (folder / "slurm.conf").write_text(conf)
        shutil.copy(config, folder)
        shutil.copy(lab.folder / lab_site.SPANK, folder)
        (folder / "plugstack.conf").write_text(f"optional {folder / lab_site.SPANK}\n")
        try:
            yield Site(lab, folder, sockets)
        finally:
            shutil.rmtree(folder)
            with suppress(OSError):  # others use it, or nobody has
                sockets.rmdir()
