"""Checks of the configuration of one deployment: files, limits, the deployment's QPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sf_quantum import qpu
from sf_quantum.checking.document import (
    Document,
    FileProblem,
    near_file,
    nested,
    suggestion,
)
from sf_quantum.connectors.rest import RestConnector
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, mapping, socket_in
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu.configuration import token_fault

# keys of StreamFlow's and sf_quantum's connectors that name a file on the driver's host
FILES = ("passwordFile", "sshKey", "sshKeyPassphraseFile", "tokenFile", "qrmiConfig")
# keys of StreamFlow's connectors for queues and SSH for which its schema sets no minimum; each
# with the event that a value below 1 prevents
LIMITS = {
    "maxConcurrentJobs": "job start",
    "maxConcurrentSessions": "command start",
    "maxConnections": "command start",
    "retries": "",
}


@dataclass(frozen=True)
class Configuration:
    """The key ``config`` of one deployment.

    :param name: name of the deployment
    :param where: key path of ``config``
    """

    document: Document
    name: str
    config: dict[str, JSON]
    where: KeyPath

    def check_files(self) -> Iterator[FileProblem]:
        """Check the keys that name files, also in nested connections."""
        for below, item in nested(self.config, self.where):
            if below[-1] in FILES:
                yield from self._check_file(item, below)

    def check_templates(self) -> Iterator[FileProblem]:
        """Check the job templates of the deployment and of its services."""
        config, where = self.config, self.where
        yield from self._check_file(config.get("file"), (*where, "file"))
        for service, content in mapping(config.get("services")).items():
            below = (*where, "services", service)
            if isinstance(content, dict):
                yield from self._check_file(content.get("file"), (*below, "file"))
            else:
                yield from self._check_file(content, below)

    def check_limits(self) -> Iterator[FileProblem]:
        """Find limits of StreamFlow's connectors that allow no jobs or no connections."""
        for below, value in nested(self.config, self.where):
            if below[-1] in LIMITS and type(value) is int and value < 1:
                what = f"{value} lets no {LIMITS[str(below[-1])]}, so steps never end"
                if below[-1] == "retries":
                    what = f"{value} allows no attempt to connect"
                yield self.document.problem(below, what, "write 1 or more")

    def check_qpu(self) -> Iterator[FileProblem]:
        """Check the QPU of a deployment of type ``sfq.rest``; its client runs on this host."""
        config, where = self.config, self.where
        kind = config.get("type", "sfq")
        if kind not in (kinds := qpu.names()):
            what, right = f"unknown QPU type {kind!r}", suggestion(str(kind), kinds)
            yield self.document.problem((*where, "type"), what, right)
            return
        try:
            obstacle = qpu.load(str(kind)).problem()
        except InputError as error:
            obstacle = str(error)
        if obstacle is not None:
            what = f"QPUs of type {kind} cannot be used: {obstacle}"
            right = "install what is missing"
            yield self.document.problem((*where, "type"), what, right)
            return
        for key in qpu.load(str(kind)).files:
            yield from self._check_file(config.get(key), (*where, key))
        for key, hint in LeaseHints.read(config).singly():
            problem = qpu.load(str(kind)).hint_problem(hint)
            if problem is not None:
                what, _, right = problem.rpartition(": ")
                yield self.document.problem((*where, key), what, right)
                return
        try:
            RestConnector.client(self.name, config, self.document.folder)
        except InputError as error:
            right = f"see the keys of QPUs of type {kind}"
            # The client's message begins with the rejected value (or a socket's whole path),
            # which leads to the key.
            folder = self.document.folder
            refused = [
                key
                for key, value in config.items()
                if str(error).startswith(f"{socket_in(str(value), folder)}:")
                or (key == "url" and "a URL" in str(error))
            ]
            yield self.document.problem((*where, *refused[:1]), str(error), right)

    def check_emulated(self) -> Iterator[FileProblem]:
        """Check that emulated devices of the technology support the topology."""
        config, where = self.config, self.where
        if "topology" not in config:
            return
        # Imported here, as the import takes as long as all other checks together.
        from sf_quantum.service.device.emulator.device import EmulatedDevice

        keys = {"technology", "topology"} & config.keys()
        try:
            EmulatedDevice.from_config({key: config[key] for key in keys})
        except InputError as error:
            what = str(error).removeprefix("topology: ")
            right = "write one that it has, or remove topology"
            yield self.document.problem((*where, "topology"), what, right)

    def _check_file(self, file: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Check that a file exists and, if it is a QPU's token file, contains a token."""
        if not isinstance(file, str):
            return
        # Paths of SSH keys are relative to the driver's folder, others to the StreamFlow file.
        folders = (self.document.folder, Path())
        paths = [folder / Path(file).expanduser() for folder in folders]
        if not any(path.is_file() for path in paths):
            is_folder = any(path.is_dir() for path in paths)
            what = f"{file}: {'a folder' if is_folder else 'no such file'}"
            near = None if is_folder else near_file(self.document.folder / file)
            yield self.document.problem(where, what, near or "name an existing file")
        elif (
            where[-1] == "tokenFile"
            and "slurmrestd" not in where
            and (fault := token_fault(paths[0]))
        ):
            right = "write the token alone in it, or name another file"
            yield self.document.problem(where, f"{file}: {fault}", right)
