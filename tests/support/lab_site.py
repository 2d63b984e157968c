"""What a lab has as sites run Slurm: accounts in slurmdbd, slurmrestd, the QPU's plugins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.folders import ROOT

PLUGINS = ROOT / "deployments" / "slurm"
DATABASE, ACCOUNTING, REST = "mariadbd", "slurmdbd", "slurmrestd"
ACCOUNTS = ("physics", "chemistry")
# whose jobs have the highest class in the QPUs' services
QOS = "urgent"
# the tasks of an array ask one after the other
SCHEDULING = "bb_array_stage_cnt=1"
# of the partition of the QPUs: an hour of a QPU is worth 100 of a CPU
BILLING = 'TRESBillingWeights="CPU=1.0,GRES/qpu=100"'
# beside slurm.conf
SPANK = "qpu.so"
CAN_START = "qpu-can-start"
_PACKAGES = "mariadb-server-core slurmdbd slurmrestd lua-posix gcc libslurm-dev"
# what the server itself needs: neither its users nor the names of time zones
_TABLES = ("system_tables.sql", "performance_tables.sql")
# where they are, and what their names begin with, before MariaDB 11 and since
_SQL = ("/usr/share/mysql/mysql_", "/usr/share/mariadb/mariadb_")
_SMALL = (
    "--no-defaults",
    "--skip-log-bin",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    "--innodb-data-file-path=ibdata1:4M:autoextend",
    # a lab that ends is gone
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
)


def missing(path: str) -> str:
    """What is not installed, and how to install it; empty if nothing is."""
    for program in (DATABASE, ACCOUNTING, REST, "gcc"):
        if shutil.which(program, path=path) is None:
            return (
                f"{program} is not installed (apt-get install --no-install-recommends "
                f"{_PACKAGES})"
            )
    for package, file in (
        ("lua-posix", "/usr/share/lua/5.1/posix"),
        ("libslurm-dev", "/usr/include/slurm/spank.h"),
    ):
        if not Path(file).exists():
            return f"{package} is not installed (apt-get install {_PACKAGES})"
    return ""


def write(folder: Path, run: Path, port: int, user: str) -> None:
    """Write what all clusters have: slurmdbd with its database, the SPANK plugin.

    :param port: of slurmdbd
    :param user: who runs the daemons
    """
    # of nobody else, since the database asks for no password
    private = run / "private"
    private.mkdir(mode=0o700)
    known = (Path(f"{start}{name}") for name in _TABLES for start in _SQL)
    tables = "".join(path.read_text() for path in known if path.exists())
    # Slurm would make its own as well, but on a connection that was refused before, with which
    # the client library of MariaDB 11.8 fails
    databases = "CREATE DATABASE slurm_acct_db;\nCREATE DATABASE mysql;\nUSE mysql;\n"
    (private / "tables.sql").write_text(databases + tables)
    conf = folder / "slurmdbd.conf"
    conf.touch(0o600)
    conf.write_text(
        "AuthType=auth/munge\n"
        f"AuthInfo=socket={run}/s\n"
        "AuthAltTypes=auth/jwt\n"
        f"AuthAltParameters=jwt_key={run}/key\n"
        "DbdHost=localhost\n"
        f"DbdPort={port}\n"
        f"SlurmUser={user}\n"
        "StorageType=accounting_storage/mysql\n"
        "StorageHost=localhost\n"
        "StorageUser=root\n"
        f"PidFile={run}/slurmdbd.pid\n"
        f"LogFile={folder}/slurmdbd.log\n"
    )
    build_spank(PLUGINS / "qpu.c", folder / SPANK)
    _build(PLUGINS / "qpu_can_start.c", folder / CAN_START, "-lslurm")


def write_plugins(folder: Path, lab: Path, state: Path, qrmi_config: Path) -> None:
    """Write the plugins beside ``slurm.conf``.

    :param lab: the folder of what all clusters have
    :param state: where they keep what they know of jobs
    :param qrmi_config: the QPUs
    """
    for plugin in PLUGINS.glob("*.lua"):
        shutil.copy(plugin, folder)
    shutil.copy(PLUGINS / "burst_buffer.conf", folder)
    (folder / "qpu.lua").write_text(_settings(lab, state, qrmi_config))


def build_spank(source: Path, to: Path) -> None:
    """Build a SPANK plugin."""
    _build(source, to, "-shared", "-fPIC")


def _build(source: Path, to: Path, *flags: str) -> None:
    words = ["gcc", "-Wall", "-Wextra", "-Werror", "-o", str(to), str(source), *flags]
    subprocess.run(words, check=True, timeout=120)


def lines(run: Path, port: int) -> list[str]:
    """Lines of ``slurm.conf``."""
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=localhost",
        f"AccountingStoragePort={port}",
        # munged's socket, which AuthInfo names for Slurm's other connections
        f"AccountingStoragePass={run}/s",
        "AccountingStorageTRES=gres/qpu",
        "PriorityType=priority/multifactor",
        "PriorityWeightFairshare=10000",
        # The shortest: Slurm accounts for the use of a job no earlier.
        "PriorityCalcPeriod=1",
        "AccountingStorageEnforce=associations,limits,qos",
        "AuthAltTypes=auth/jwt",
        f"AuthAltParameters=jwt_key={run}/key",
        "BurstBufferType=burst_buffer/lua",
        "JobSubmitPlugins=lua",
        # of sfq lease --exit-if-offline
        "RequeueExit=75",
    ]


def command(name: str, run: Path) -> list[str] | None:
    """What runs a daemon; ``None`` if it is not one of these."""
    private = run / "private"
    match name:
        case "mariadbd":
            server = [DATABASE, *_SMALL, f"--datadir={private}/data"]
            # It aborts if its temporary tables vanish, which others may remove from /tmp.
            server += [f"--tmpdir={private}"]
            server += ["--user=root"] if os.getuid() == 0 else []
            script = (
                f'mkdir {private}/data && "$@" --bootstrap <{private}/tables.sql && '
                f'exec "$@" --skip-networking --skip-grant-tables --socket={private}/m '
                f"--pid-file={private}/m.pid"
            )
            return ["sh", "-c", script, "sh", *server]
        case "slurmdbd":
            return [ACCOUNTING, "-D"]
        case "slurmrestd":
            return slurmrestd(run / "rest")
    return None


def slurmrestd(path: Path) -> list[str]:
    """The command of a slurmrestd that listens at a socket.

    Slurm 26.05 refuses to run it as root or SlurmUser, who are one here: root runs it as
    nobody, who may read the lab's files all the same.
    """
    words = [REST, "-a", "rest_auth/jwt", f"unix:{path}"]
    if os.getuid() != 0:
        return words
    user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    capability = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    # what the kernel forgets when the user changes
    return ["setpriv", *user, *capability, "--pdeathsig", "KILL", *words]


def environment(name: str, run: Path) -> Mapping[str, str]:
    """Variables of a daemon."""
    match name:
        case "slurmdbd":
            return {"MYSQL_UNIX_PORT": f"{run}/private/m"}
        case "slurmrestd":
            # it passes tokens of its clients on, and has none of its own
            variables = {"SLURM_JWT": "daemon"}
            if os.getuid() != 0:
                variables["SLURMRESTD_SECURITY"] = "disable_user_check"
            return variables
    return {}


def qpus(qrmi_config: Path) -> list[str]:
    """The names of the QPUs, the default one first."""
    return [one["name"] for one in json.loads(qrmi_config.read_text())["resources"]]


def _settings(lab: Path, state: Path, qrmi_config: Path) -> str:
    """The file ``qpu.lua``, with the figures of the site's example for every QPU."""
    first, *_ = names = qpus(qrmi_config)
    kinds = [f"{name}:" for name in names] if len(names) > 1 else [""]
    limits = [
        f'{name} = {{asking = 8, gres = "qpu:{kind}1", qubits = 100}}'
        for name, kind in zip(names, kinds, strict=True)
    ]
    values = {
        "sfq": Path(sys.executable).parent / "sfq",
        "qrmi_config": qrmi_config,
        "state": state,
        "can_start": lab / CAN_START,
        "default": first,
    }
    words = [f'{key} = "{value}"' for key, value in values.items()]
    words += [f'classes = {{{{qos = "{QOS}", class = "production"}}}}']
    words += [f"qpus = {{{', '.join(limits)}}}"]
    return f"return {{{', '.join(words)}}}\n"
