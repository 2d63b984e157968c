"""What the lab is made of, and the configuration that tells Slurm so."""

from __future__ import annotations

import os
import pwd
import random
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from tests import lab_site

# below what Linux gives to outgoing connections, which could take a stopped daemon's
_PORTS = range(10000, 32768)


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
    :param site: adds slurmdbd with its database, slurmrestd with JWT, and the plugins of
        ``deployments/slurm``
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
    def classical(self) -> list[str]:
        """The names of the classical nodes."""
        return [f"c{n + 1}" for n in range(self.nodes)]

    @property
    def quantum(self) -> list[str]:
        """The names of the quantum nodes."""
        return [f"q{n + 1}" for n in range(self.qnodes)]


def write(folder: Path, run: Path, options: Options) -> None:
    """Write the configuration of a lab.

    :param folder: for what is worth reading afterwards
    :param run: for sockets, whose paths have to be short
    """
    (folder / "state").mkdir()
    key = run / "key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    user = pwd.getpwuid(os.getuid()).pw_name
    ports = _free_ports(2 + options.nodes + options.qnodes)
    if options.site:
        config = lab_site.ROOT / options.qrmi_config
        lab_site.write(folder, run, ports[0], user, config)
    (folder / "slurm.conf").write_text(
        "\n".join(_lines(folder, run, user, ports, options)) + "\n"
    )
    gres = [
        f"NodeName={node} Name=qpu{type_ and f' Type={type_}'} Count={options.qpus}\n"
        for node in options.quantum
        for type_ in _types(options)
    ]
    (folder / "gres.conf").write_text("".join(gres))
    plugins = "".join(f"required {path}\n" for path in options.spank)
    (folder / "plugstack.conf").write_text(plugins)


def _types(options: Options) -> list[str]:
    """Of the gres ``qpu``: the QPUs' names, if the site has several."""
    names = lab_site.qpus(lab_site.ROOT / options.qrmi_config) if options.site else []
    return names if len(names) > 1 else [""]


def _lines(
    folder: Path, run: Path, user: str, ports: list[int], options: Options
) -> list[str]:
    host = socket.gethostname().partition(".")[0]
    names = options.classical + options.quantum
    accounting, controller, *ports = ports
    gres = ",".join(
        f"qpu:{type_ and f'{type_}:'}{options.qpus}" for type_ in _types(options)
    )
    site = lab_site.lines(run, accounting) if options.site else []
    node = (
        f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={options.cpus} RealMemory=16000"
    )
    return [
        "ClusterName=lab",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={controller}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={run}/s",
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={run}/%n",
        f"SlurmctldPidFile={run}/slurmctld.pid",
        f"SlurmdPidFile={run}/%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/%n.log",
        f"PlugStackConfig={folder}/plugstack.conf",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={folder}/jobcomp",
        # the host's own cgroups, energy and devices are none of the lab's business
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
            + (f" Gres={gres}" if name in options.quantum else "")
            for name, port in zip(names, ports, strict=True)
        ),
        f"PartitionName=compute Nodes={','.join(options.classical)} Default=YES",
        *(
            [f"PartitionName=quantum Nodes={','.join(options.quantum)}"]
            if options.quantum
            else []
        ),
        *(_preemption(options) if options.preempt else []),
        *options.extra,
    ]


def _preemption(options: Options) -> list[str]:
    return [
        "PreemptType=preempt/partition_prio",
        f"PreemptMode={options.preempt}",
        f"PartitionName=urgent Nodes={','.join(options.classical)} PriorityTier=2",
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
