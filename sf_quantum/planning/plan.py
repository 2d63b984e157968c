"""Reads a plan's input: a workload or StreamFlow file, with values measured in journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sf_quantum import yaml
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping, replacing
from sf_quantum.planning.allocation_lines import config, lines
from sf_quantum.planning.measured import fitting, journals, sources
from sf_quantum.planning.measured.fitting import Fit
from sf_quantum.planning.measured.sources import Sources
from sf_quantum.planning.simulation.strategies import Strategy
from sf_quantum.planning.workloads import reading
from sf_quantum.planning.workloads.streamflow_workload import (
    StreamFlowFile,
    WorkflowPlan,
    dumped,
)
from sf_quantum.planning.workloads.workload import Workload
from sf_quantum.reporting.report import journals_of
from sf_quantum.slurm.partitions import SilentSlurm, of_this_host
from sf_quantum.text import unknown
from sf_quantum.validation import STREAMFLOW, likeliest


@dataclass(frozen=True)
class Plan:
    """The simulated workload, and the sources of its values.

    :param content: content of the workload file, given or made from a StreamFlow file
    :param flow: plan of a StreamFlow file; ``None`` for a workload file
    """

    file: Path
    content: Mapping[str, JSON]
    workload: Workload
    sources: Sources
    flow: WorkflowPlan | None = None

    @property
    def left_out(self) -> Mapping[str, str]:
        """Strategies that the site cannot grant, and why."""
        return {} if self.flow is None else self.flow.left_out

    @property
    def current(self) -> Strategy | None:
        """The current strategy of a StreamFlow file."""
        return None if self.flow is None else self.flow.current

    def lines(self, strategy: Strategy) -> list[str]:
        """Return the lines with which a StreamFlow file follows a strategy."""
        if self.flow is None:
            return lines(self.workload, strategy)
        return self.flow.lines(strategy)

    def config(self, strategy: Strategy) -> dict[str, JSON]:
        """Return the keys of ``sfq.slurm`` for a strategy, by application or deployment."""
        if self.flow is None:
            names = self.workload.applications
            return {name: config(self.workload, strategy, name) for name in names}
        return {self.flow.deployment: {"allocation": self.flow.allocation(strategy)}}

    def save(self, path: Path) -> None:
        """Write the plan as a workload file.

        :raises InputError: if the file cannot be written, or would not find its traces
        """
        if path.resolve() == self.file.resolve():
            raise InputError(f"{path}: is the file that is planned; name another one")
        folder = self.file.parent.resolve()
        if "background" in self.content and path.parent.resolve() != folder:
            raise InputError(
                f"{path}: the files of its background are relative to it; save it in {folder}"
            )
        with replacing(path) as file:
            text = dumped(self.content, f"sfq plan of {self.file.name}")
            file.write(text.encode())


def load(
    file: Path, paths: Sequence[Path], nodes: Mapping[str, int] | None = None
) -> Plan:
    """Read a workload file or a StreamFlow file.

    :param nodes: number of nodes of the site's partitions, by name, for a StreamFlow
        file; other partitions are queried from the Slurm of this host if the file uses it
    :param paths: journals, or folders of journals; without paths, the journals of a
        StreamFlow file's own runs are read
    :raises InputError: if a file cannot be read, or no journal contains usable values
    """
    parsed = yaml.read(file, "a workload or a StreamFlow file")
    content = mapping(parsed)
    kinds = {"workload": Workload.model_fields, "workflow": STREAMFLOW}
    if likeliest(content, kinds) == "workflow":
        return _streamflow_plan(file, content, paths, nodes or {})
    if nodes:
        raise InputError(f"--nodes: {file} has the nodes of its partitions itself")
    workload = reading.checked(parsed, file)
    if not paths:
        return Plan(file, content, workload, Sources())
    fit, left_out = _fit(paths, None)
    fitted, unmeasured = sources.measured(content, fit)
    workload = reading.checked(fitted, file)
    return Plan(file, fitted, workload, Sources(fit, left_out, unmeasured))


def _streamflow_plan(
    file: Path,
    content: Mapping[str, JSON],
    paths: Sequence[Path],
    nodes: Mapping[str, int],
) -> Plan:
    flow = StreamFlowFile(file, content)
    site = {**_nodes_here(flow), **nodes}
    fit: Fit | None = None
    left_out: Mapping[str, int] = {}
    if paths:
        fit, left_out = _fit(paths, file.resolve())
    elif folder := _own_journals(file):
        runs = journals.read([folder], file.resolve())
        fit, left_out = fitting.fit(runs), runs.left_out
    plan = flow.plan(fit, site)
    used = [*mapping(plan.workload["partitions"])]
    for name in nodes:
        if name not in used:
            raise InputError(f"--nodes: {unknown('partition', name, used)}")
    fitted = plan.workload
    if fit is not None:
        fitted = {**fitted, "overheads": sources.overheads(fit)}
    workload = reading.checked(fitted, file)
    return Plan(file, fitted, workload, Sources(fit, left_out, plan.assumed), plan)


def _nodes_here(flow: StreamFlowFile) -> dict[str, int]:
    """Return the nodes of the partitions of this host's Slurm, as far as it lists them."""
    with suppress(SilentSlurm):
        partitions = of_this_host() if flow.is_here else {}
        return {name: one.nodes for name, one in partitions.items()}
    return {}


def _own_journals(file: Path) -> Path | None:
    """Return the folder of a file's journals; ``None`` if its runs have no journals."""
    try:
        folder = journals_of(file)
    except InputError:
        return None
    return folder if folder.is_dir() else None


def _fit(paths: Sequence[Path], file: Path | None) -> tuple[Fit, Mapping[str, int]]:
    """Fit phases and overheads to journals.

    :raises InputError: if the journals contain no usable values
    """
    runs = journals.read(paths, file)
    if (fit := fitting.fit(runs)) is not None:
        return fit, runs.left_out
    shown = ", ".join(map(str, paths))
    reasons = runs.described_left_out()
    why = f" (left out: {reasons})" if reasons else ""
    raise InputError(
        f"{shown}: no completed run with steps on Slurm or a QPU{why}; "
        "name journals of such runs"
    )
