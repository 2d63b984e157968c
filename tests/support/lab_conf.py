"""What the lab is made of, and the configuration that tells Slurm so."""

from __future__ import annotations

import os
import pwd
import random
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from tests.support import lab_site, lab_supervisor
from tests.support.folders import ROOT

# below what Linux gives to outgoing connections, which could take a stopped daemon's
_PORTS = range(10000, 32768)
# the names of the clusters
FIRST, SECOND = "lab", "lab2"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a lab is made of.

    :param nodes: classical ones, ``c1`` and so on, in the partition ``compute``
    :param qnodes: quantum ones, ``q1`` and so on, in the partition ``quantum``
    :param qpus: of each quantum node, as ``Gres=qpu``
    :param cpus: of each node; Slurm only counts them
    :param min_job_age: seconds for which Slurm remembers a job that has ended
    :param node_timeout: seconds after which a node that does not answer is down, give or
        take the pings in between: 7 s pass where it is 2
    :param licenses: as in slurm.conf: ``qpu:1,other:2``
    :param preempt: ``CANCEL`` or ``REQUEUE`` adds a partition ``urgent`` over the
        classical nodes, whose jobs do that to jobs of ``compute``
    :param spank: shared object of a SPANK plugin, and its arguments after spaces
    :param site: adds slurmdbd with its database, slurmrestd with JWT, the plugins of
        ``deployments/slurm``, and a second cluster, ``lab2``
    :param qrmi_config: the QPUs of those plugins
    :param extra: lines of slurm.conf, such as further partitions; they win over the
        lab's own
    """

    nodes: int = 3
    qnodes: int = 1
    qpus: int = 1
    cpus: int = 4
    min_job_age: int = 300
    node_timeout: int = 300
    licenses: str = ""
    preempt: str = ""
    spank: tuple[str, ...] = ()
    site: bool = False
    qrmi_config: str = "deployments/qrmi_config.json"
    extra: tuple[str, ...] = ()

    @property
    def clusters(self) -> list[Layout]:
        """The clusters, that of the lab's own ``slurm.conf`` first."""
        first = Layout(FIRST, "", self.nodes, self.qnodes, "cq", self.extra)
        return [first, Layout(SECOND, f"{SECOND}/", 2, 1, "dr")][: 1 + self.site]


@dataclass(frozen=True)
class Layout:
    """One cluster of a lab.

    :param prefix: its folder in that of the lab, and before the names of its daemons
    :param letters: what the names of classical and of quantum nodes begin with
    """

    name: str
    prefix: str
    nodes: int
    qnodes: int
    letters: str
    extra: tuple[str, ...] = ()

    @property
    def classical(self) -> list[str]:
        """The names of the classical nodes."""
        return [f"{self.letters[0]}{n + 1}" for n in range(self.nodes)]

    @property
    def quantum(self) -> list[str]:
        """The names of the quantum nodes."""
        return [f"{self.letters[1]}{n + 1}" for n in range(self.qnodes)]

    @property
    def daemons(self) -> list[str]:
        """The names of the daemons, the controller's first."""
        names = ["slurmctld", *self.classical, *self.quantum]
        return [f"{self.prefix}{name}" for name in names]


def write(folder: Path, run: Path, options: Options) -> None:
    """Write the configuration of a lab.

    :param folder: for what is worth reading afterwards
    :param run: for sockets, whose paths have to be short
    """
    key = run / "key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    user = pwd.getpwuid(os.getuid()).pw_name
    accounting, *ports = _free_ports(
        1 + sum(len(layout.daemons) for layout in options.clusters)
    )
    if options.site:
        lab_site.write(folder, run, accounting, user)
    for layout in options.clusters:
        own, ports = ports[: len(layout.daemons)], ports[len(layout.daemons) :]
        _write_cluster(folder, run, user, [accounting, *own], options, layout)
    plugins = [f"required {path}\n" for path in options.spank]
    plugins += [f"optional {folder / lab_site.SPANK}\n"] if options.site else []
    (folder / "plugstack.conf").write_text("".join(plugins))


def _write_cluster(
    lab: Path,
    run: Path,
    user: str,
    ports: list[int],
    options: Options,
    layout: Layout,
) -> None:
    folder = lab / layout.prefix
    (folder / "state").mkdir(parents=True)
    if options.site:
        config = ROOT / options.qrmi_config
        state = run / "private" / f"{layout.prefix}qpu"
        state.parent.mkdir(exist_ok=True)
        lab_site.write_plugins(folder, lab, state, config)
    (folder / "slurm.conf").write_text(
        "\n".join(_lines(lab, run, user, ports, options, layout)) + "\n"
    )
    gres = [
        f"NodeName={node} Name=qpu{type_ and f' Type={type_}'} Count={options.qpus}\n"
        for node in layout.quantum
        for type_ in _types(options)
    ]
    (folder / "gres.conf").write_text("".join(gres))
    if lab_supervisor.version() >= (23, 2):
        # slurmd would fail where no cgroup is mounted; earlier ones do without a plugin
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")


def _types(options: Options) -> list[str]:
    """Of the gres ``qpu``: the QPUs' names, if the site has several."""
    names = lab_site.qpus(ROOT / options.qrmi_config) if options.site else []
    return names if len(names) > 1 else [""]


def _lines(
    lab: Path,
    run: Path,
    user: str,
    ports: list[int],
    options: Options,
    layout: Layout,
) -> list[str]:
    host = socket.gethostname().partition(".")[0]
    folder = lab / layout.prefix
    names = layout.classical + layout.quantum
    accounting, controller, *ports = ports
    gres = ",".join(
        f"qpu:{type_ and f'{type_}:'}{options.qpus}" for type_ in _types(options)
    )
    site = lab_site.lines(run, accounting) if options.site else []
    node = (
        f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={options.cpus} RealMemory=16000"
    )
    return [
        f"ClusterName={layout.name}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={controller}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={run}/s",
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={run}/%n",
        f"SlurmctldPidFile={run}/{layout.name}.pid",
        f"SlurmdPidFile={run}/%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/%n.log",
        f"PlugStackConfig={lab}/plugstack.conf",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={folder}/jobcomp",
        # The host's own cgroups, energy and devices are none of the lab's business. It
        # follows parents, and kills what has a session of its own, as cgroups do.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        *(site or ["AccountingStorageType=accounting_storage/none"]),
        "MpiDefault=none",
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "GresTypes=qpu",
        "ReturnToService=2",
        f"MinJobAge={options.min_job_age}",
        f"SlurmdTimeout={options.node_timeout}",
        # the controller asks a node several times, waiting as long each time
        f"MessageTimeout={min(10, options.node_timeout)}",
        # Slurm's own delays, of up to half a minute, would hide everything else
        "SchedulerParameters=bf_interval=1,sched_interval=1,"
        "sched_min_interval=100000,batch_sched_delay=0"
        + (f",{lab_site.SCHEDULING}" if options.site else ""),
        *([f"Licenses={options.licenses}"] if options.licenses else []),
        *(
            f"NodeName={name} Port={port} {node}"
            + (f" Gres={gres}" if name in layout.quantum else "")
            for name, port in zip(names, ports, strict=True)
        ),
        f"PartitionName=compute Nodes={','.join(layout.classical)} Default=YES",
        *(
            [
                f"PartitionName=quantum Nodes={','.join(layout.quantum)}"
                + (f" {lab_site.BILLING}" if options.site else "")
            ]
            if layout.quantum
            else []
        ),
        *(_preemption(options.preempt, layout) if options.preempt else []),
        *layout.extra,
    ]


def _preemption(mode: str, layout: Layout) -> list[str]:
    return [
        "PreemptType=preempt/partition_prio",
        f"PreemptMode={mode}",
        f"PartitionName=urgent Nodes={','.join(layout.classical)} PriorityTier=2",
    ]


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"fewer than {count} free ports from {_PORTS[0]} to {_PORTS[-1]}")
