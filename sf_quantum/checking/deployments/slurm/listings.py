"""Queries, before a run, for the partitions of each deployment's Slurm.

Slurm is queried in the same way as a run submits jobs: with commands on this host, with
commands over SSH, or over ``slurmrestd``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import asyncssh
from streamflow.deployment.connector.ssh import SSHConnector

from sf_quantum.checking.deployments.references import Deployments, deployment_of
from sf_quantum.checking.deployments.slurm.clusters import Cluster
from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.connectors.slurm.transport.slurmrestd import (
    RestError,
    Settings,
    Slurmrestd,
)
from sf_quantum.connectors.ssh import for_any_shell
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, listing, mapping
from sf_quantum.slurm.partitions import (
    COMMAND,
    Partition,
    SilentSlurm,
    listed,
    of_this_host,
)
from sf_quantum.threads import in_thread

# Longest wait for the answers of all clusters together.
SECONDS = 10.0
# errors of asyncssh that a later connection would repeat
_REFUSALS = (asyncssh.PermissionDenied, asyncssh.HostKeyNotVerifiable)

#: function that returns the partitions by name, or raises SilentSlurm; it blocks
Source: TypeAlias = Callable[[], dict[str, Partition]]


class Listings:
    """Checks of one StreamFlow file against the partitions that Slurm lists.

    :param steps: for each step of all workflows, the deployments to which it is bound
    """

    def __init__(self, deployments: Deployments, steps: list[set[str]]) -> None:
        self.deployments = deployments
        self.steps = steps
        #: reasons why Slurm could not be queried, by name of the deployment
        self.silent: dict[str, str] = {}

    def check(self) -> Iterator[FileProblem]:
        """Check requests to partitions, and find deployments whose Slurm does not reply."""
        used = set().union(*self.steps)
        clusters = {
            cluster.name: cluster
            for cluster in self.deployments.clusters()
            if cluster.name in used and self.deployments.kind(cluster.name)
        }
        listings: dict[str, Future[dict[str, Partition]]] = {}
        silent: dict[str, SilentSlurm] = {}
        for name, cluster in clusters.items():
            try:
                listings[name] = in_thread(self._source(cluster))
            except SilentSlurm as error:
                silent[name] = error
        wait(listings.values(), SECONDS)
        for name, future in listings.items():
            try:
                partitions = future.result(timeout=0)
            except TimeoutError:
                silent[name] = SilentSlurm(f"no answer within {SECONDS:g} s")
            except SilentSlurm as error:
                silent[name] = error
            else:
                yield from clusters[name].check_partitions(partitions)
        self.silent = {n: f"could not be asked ({e})" for n, e in silent.items()}
        causes = dict.fromkeys((str(e), e.is_missing) for e in silent.values())
        for why, is_missing in causes:
            names = [name for name, error in silent.items() if str(error) == why]
            yield self._finding(names, why, is_missing=is_missing)

    def _finding(self, names: list[str], why: str, *, is_missing: bool) -> FileProblem:
        """Return a problem or a remark on deployments whose Slurm cannot be queried."""
        document, text = self.deployments.document, " and ".join(names)
        where: KeyPath = (self.deployments.sections[names[0]], names[0])
        if not is_missing:
            what = f"Slurm of {text} could not be asked ({why})"
            right = (
                "its partitions, nodes and gres are not checked; jobs need it to answer"
            )
            return document.remark(where, what, right)
        what = f"jobs of {text} cannot be submitted from here: {why}"
        if any(step and step <= {*names} for step in self.steps):
            right = "run it on a login node, or wrap a deployment that reaches one"
            return document.problem(where, what, right)
        right = "the other targets of its steps have to run them"
        return document.remark(where, what, right)

    def _source(self, cluster: Cluster) -> Source:
        """Return the function that queries a cluster.

        :raises SilentSlurm: if only a run can query the cluster
        """
        folder = self.deployments.document.folder
        if cluster.config.get("slurmrestd"):
            return partial(_over_rest, mapping(cluster.config["slurmrestd"]), folder)
        inner = self.deployments.wrapped(cluster.name)
        if inner is None or self.deployments.get(inner).get("type") == "local":
            return of_this_host
        kind, config = self.deployments.kind(inner), self.deployments.config(inner)
        if kind is None or not issubclass(kind, SSHConnector):
            kind_name = self.deployments.get(inner).get("type")
            raise SilentSlurm(f"it is behind {inner}, which is of type {kind_name}")
        if config.get("renewCommand"):
            # The renewCommand may prompt the user, or use up a one-time password.
            raise SilentSlurm(f"only a run uses the renewCommand of {inner}")
        return partial(_over_ssh, kind, inner, config, self.deployments.document)


def _over_rest(config: dict[str, JSON], folder: Path) -> dict[str, Partition]:
    try:
        return Slurmrestd(Settings.read(config, folder)).partitions()
    except (InputError, RestError) as error:
        raise SilentSlurm(str(error)) from error


def _over_ssh(
    kind: type[SSHConnector], name: str, config: dict[str, JSON], document: Document
) -> dict[str, Partition]:
    """Return the partitions that Slurm lists, queried over SSH.

    :raises SilentSlurm: if the query fails
    """
    make = cast("Callable[..., SSHConnector]", kind)
    try:
        connector = make(name, os.path.abspath(document.folder), **config)
        return asyncio.run(_sinfo(connector))
    except SilentSlurm:
        raise
    except _REFUSALS as error:
        raise SilentSlurm(f"{name}: {error.reason}", is_missing=True) from error
    except (OSError, asyncssh.Error, TimeoutError, ValueError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise SilentSlurm(f"{name}: {message}") from error


async def _sinfo(connector: SSHConnector) -> dict[str, Partition]:
    """Run ``sinfo`` on the first node, over the connection that StreamFlow would make."""
    node = next(iter(connector.nodes.values()))
    # If the username is missing, StreamFlow passes None, with which asyncssh fails.
    if node.username is None:
        why = f"{connector.deployment_name} has no username"
        raise SilentSlurm(why, is_missing=True)
    context = connector._cls_context(connector.config_dir, node, 1)
    try:
        connection = await context.get_connection()
        process = await connection.create_process(for_any_shell(COMMAND))
        result = await process.wait()
    finally:
        with suppress(OSError, asyncssh.Error):
            await context.close()
    code = -1 if result.returncode is None else result.returncode
    return listed(str(result.stdout), str(result.stderr), code)


def bound_deployments(content: dict[str, JSON]) -> list[set[str]]:
    """Return, for each step of all workflows, the deployments to which it is bound."""
    return [
        {deployment_of(target) for target in listing(mapping(binding).get("target"))}
        for workflow in mapping(content.get("workflows")).values()
        for binding in listing(mapping(workflow).get("bindings"))
        if "step" in mapping(binding)
    ]
