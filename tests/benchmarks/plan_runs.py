"""Whether what ``sfq plan`` prints passes ``sfq check`` and runs, for generated workloads.

    python -m tests.benchmarks.plan_runs [--number 20] [--first 0] [--jobs 2]

Each workload is drawn from its number: steps with several jobs of one or more nodes, a step
on a QPU, a loop, jobs at once, and a Slurm with so many nodes, which a lab has. Some are
described in a workload file; the others are StreamFlow files with an ``allocation`` already,
of which half have run before, so that their journals are planned from. The printed lines,
read as the user reads them, go into the StreamFlow file, which is checked and run: the run
has to end well, with each job on Slurm under the strategy that was recommended, and with a
job of the QPU service for each quantum step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Timer

import yaml

from sf_quantum.files import JSON, listing, mapping
from tests.benchmarks import slurm_runs
from tests.lab import Lab, running
from tests.support.journals import Event as JournalEvent
from tests.support.lab_cluster import LabError
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing
from tests.support.projects import PROBLEM
from tests.support.service_process import QpuService

QPU = "device"
OBJECTIVES = ((), ("--minimise", "wall"), ("--minimise", "node-seconds"))
MOST_NODES, MOST_QUANTUM_NODES = 4, 2
# Longest time of a run, many times that of its phases.
RUN_SECONDS = 180.0
# What the printed lines say of services that keep an allocation of their own.
_OWN = re.compile(r"# and no allocation in its services (.+)")
_SLEEP = 'sleep "$0" && touch done'
_COUNT = """\
sleep "$0" && left=$(($1 - 1)) && [ $left -gt 0 ] && go_on=true || go_on=false
echo "{\\"go_on\\": $go_on, \\"left\\": $left}" >cwl.output.json
"""


class PlanError(Exception):
    """A recommendation that could not be carried out, and why."""


@dataclass(frozen=True)
class Step:
    """A step of a workload.

    :param seconds: of each of its jobs
    :param nodes: of each of them, as the key ``nodes`` of a service
    """

    name: str
    seconds: tuple[float, ...]
    nodes: str
    quantum: bool

    @property
    def service(self) -> str:
        """Its service in a StreamFlow file that is there before the plan."""
        return f"{'quantum' if self.quantum else 'compute'}-{self.nodes}"

    @property
    def partition(self) -> str:
        return "quantum" if self.quantum else "compute"


@dataclass(frozen=True)
class Workload:
    """A workflow and its site.

    :param nodes: of the partition ``compute``
    :param quantum_nodes: of the partition ``quantum``
    :param at_once: jobs that StreamFlow runs at once
    :param source: what is planned: a ``workload`` file, or a StreamFlow ``file`` or one that
        has ``run``
    :param current: the allocation of that StreamFlow file
    :param own: a service of it that has an allocation of its own
    """

    nodes: int
    quantum_nodes: int
    steps: Sequence[Step]
    iterations: int
    at_once: int
    source: str
    current: JSON
    own: str
    objective: tuple[str, ...]

    @property
    def names(self) -> dict[str, Step]:
        """The steps, by their names in a StreamFlow file."""
        prefix = "/iterate" if self.iterations > 1 else ""
        return {f"{prefix}/{step.name}": step for step in self.steps}

    def __str__(self) -> str:
        steps = ", ".join(
            f"{step.name} {len(step.seconds)} x {step.nodes}" for step in self.steps
        )
        return (
            f"{self.source}, {self.nodes}+{self.quantum_nodes} nodes, "
            f"{self.at_once} at once, {self.iterations} times {steps}"
        )


def draw(number: int) -> Workload:
    """Draw a workload."""
    draws = random.Random(f"plan {number}")
    nodes = draws.randint(1, MOST_NODES)
    quantum_nodes = draws.randint(1, MOST_QUANTUM_NODES)
    steps = [_classical(draws, f"s{index}", nodes) for index in range(2)]
    seconds = (round(draws.uniform(0.2, 3), 2),)
    size = str(draws.randint(1, quantum_nodes))
    solve = Step("solve", seconds, size, quantum=True)
    # a workload without a QPU is planned, too
    steps[1:] = draws.choice([[solve], [solve], [solve, steps[1]], [steps[1]]])
    steps.append(Step("last", (0.2,), "1", quantum=False))
    at_once = draws.randint(1, 4)
    reserve: dict[str, JSON] = {
        "strategy": "reserved",
        "reserve": {steps[0].service: 1},
    }
    elastic: dict[str, JSON] = {"strategy": "elastic", "keep": draws.randint(0, 1)}
    return Workload(
        nodes=nodes,
        quantum_nodes=quantum_nodes,
        steps=steps,
        iterations=draws.randint(1, 3),
        at_once=at_once,
        source=("workload", "run", "workload", "file")[number % 4],
        current=draws.choice(["per-step", elastic, reserve]),
        own=draws.choice(["", steps[0].service]),
        objective=OBJECTIVES[number % 3],
    )


def _classical(draws: random.Random, name: str, nodes: int) -> Step:
    most = draws.randint(1, min(2, nodes))
    seconds = [round(draws.uniform(0.2, 3), 2) for _ in range(draws.randint(1, 4))]
    least = draws.randint(1, most)
    size = str(most) if least == most else f"{least}-{most}"
    return Step(name, tuple(seconds), size, quantum=False)


def document(workload: Workload, problem: Path) -> dict[str, JSON]:
    """The CWL workflow, each step of which waits for the one before it."""
    steps: dict[str, JSON] = {}
    before, made = "", ""
    for step in workload.steps:
        is_last = step is workload.steps[-1]
        run = _SLEEP
        if step.quantum:
            run += f" && sfq solve --problem '{problem}' --output samples --reads 5"
        inputs: dict[str, JSON] = {
            "seconds": {"type": "string", "inputBinding": {"position": 1}},
            **({"after": made} if made else {}),
        }
        outputs: dict[str, JSON] = {
            "done": {"type": "File", "outputBinding": {"glob": "done"}}
        }
        if is_last:
            run = _COUNT
            inputs["left"] = {"type": "int", "inputBinding": {"position": 2}}
            outputs = {"go_on": "boolean", "left": "int"}
        scattered: dict[str, JSON] = (
            {} if is_last or step.quantum else {"scatter": "seconds"}
        )
        steps[step.name] = {
            "run": {
                "class": "CommandLineTool",
                "baseCommand": ["sh", "-c", run],
                "inputs": inputs,
                "outputs": outputs,
            },
            "in": {
                "seconds": step.name,
                **({"after": before} if before else {}),
                **({"left": "left"} if is_last else {}),
            },
            **scattered,
            "out": [*outputs],
        }
        before, made = f"{step.name}/done", "File[]" if scattered else "File"
    inner: dict[str, JSON] = {
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {**_inputs(workload), "left": "int", "go_on": "boolean?"},
        "steps": steps,
        "outputs": {
            name: {"type": type_, "outputSource": f"last/{name}"}
            for name, type_ in (("go_on", "boolean"), ("left", "int"))
        },
    }
    if workload.iterations == 1:
        return {"cwlVersion": "v1.2", **inner}
    loop: JSON = {
        "loopWhen": "$(inputs.go_on)",
        "loop": {"go_on": "go_on", "left": "left"},
        "outputMethod": "last",
    }
    return {
        "cwlVersion": "v1.2",
        "$namespaces": {"cwltool": "http://commonwl.org/cwltool#"},
        "class": "Workflow",
        "requirements": {"SubworkflowFeatureRequirement": {}},
        "inputs": {**_inputs(workload), "left": "int"},
        "steps": {
            "iterate": {
                "in": {
                    **{name: name for name in _inputs(workload)},
                    "left": "left",
                    "go_on": {"default": True},
                },
                "out": ["go_on", "left"],
                "requirements": {"cwltool:Loop": loop},
                "run": inner,
            }
        },
        "outputs": {"left": {"type": "int", "outputSource": "iterate/left"}},
    }


def _inputs(workload: Workload) -> dict[str, JSON]:
    *steps, last = workload.steps
    types: dict[str, JSON] = {
        step.name: "string" if step.quantum else "string[]" for step in steps
    }
    return {**types, last.name: "string"}


def settings(workload: Workload) -> dict[str, JSON]:
    """The values of the workflow's inputs."""
    types = _inputs(workload)
    values: dict[str, JSON] = {
        step.name: (
            f"{step.seconds[0]}"
            if types[step.name] == "string"
            else [*map(str, step.seconds)]
        )
        for step in workload.steps
    }
    return {**values, "left": workload.iterations}


def config(workload: Workload) -> dict[str, JSON]:
    """The deployment of a StreamFlow file that is there before the plan."""
    services: dict[str, JSON] = {}
    for step in workload.steps:
        keys: dict[str, JSON] = {"partition": step.partition, "nodes": step.nodes}
        keys |= {"qpu": [QPU]} if step.quantum else {}
        keys |= {"allocation": "per-step"} if step.service == workload.own else {}
        services[step.service] = keys
    return {
        "allocation": workload.current,
        "maxConcurrentJobs": workload.at_once,
        "services": services,
    }


def described(workload: Workload) -> dict[str, JSON]:
    """The content of a workload file."""
    phases: list[JSON] = []
    for name, step in workload.names.items():
        least, _, most = step.nodes.partition("-")
        keys: dict[str, JSON] = {"step": name, "nodes": int(most or least)}
        if step.quantum:
            keys |= {"qpu": QPU, "seconds": step.seconds[0]}
        else:
            keys |= {"least": int(least), "task_seconds": [*step.seconds]}
            keys |= {"partition": step.partition}
        phases.append(keys)
    application: JSON = {"phases": phases, "repeats": workload.iterations}
    sizes = {"compute": workload.nodes, "quantum": workload.quantum_nodes}
    partitions: dict[str, JSON] = {
        name: {"nodes": nodes, "most_jobs": workload.at_once}
        for name, nodes in sizes.items()
    }
    return {
        "partitions": partitions,
        "qpus": {QPU: {"partition": "quantum"}},
        "applications": {"experiment": application},
    }


class Trial:
    """A workload on its lab: planned, checked and run.

    :param qrmi: the site's file, which defines the QPU
    :param stop: ends a run
    """

    def __init__(
        self, folder: Path, workload: Workload, lab: Lab, qrmi: Path, stop: Event
    ) -> None:
        self._folder = folder
        self._workload = workload
        self._lab = lab
        self._qrmi = qrmi
        self._stop = stop

    def recommended(self) -> str:
        """Carry out what ``sfq plan`` recommends.

        :returns: the strategy
        """
        workload = self._workload
        current = config(workload)
        if workload.source == "workload":
            file = self._folder / "workload.yml"
            file.write_text(json.dumps(described(workload)))
        else:
            file = self._streamflow_file("before", current)
        if workload.source == "run":
            self._drive(file)
        printed = self._sfq("plan", str(file), *workload.objective)
        told = self._sfq("plan", str(file), *workload.objective, "--json")
        plan = mapping(json.loads(told))
        strategy = str(mapping(plan["recommended"])["strategy"])
        (lines,) = map(mapping, mapping(plan["streamflow"]).values())
        if workload.source == "workload":
            keys = parsed(printed)
        else:
            keys = merged(current, printed)
        after = self._streamflow_file("after", keys)
        self._sfq("check", str(after))
        self._followed(self._drive(after), lines["allocation"])
        return strategy

    def _streamflow_file(self, name: str, keys: Mapping[str, JSON]) -> Path:
        workload, folder = self._workload, self._folder
        cwl, problem = folder / "main.cwl", folder / "problem.json"
        problem.write_text(json.dumps(PROBLEM))
        cwl.write_text(json.dumps(document(workload, problem)))
        services = {
            step: service_of(one, mapping(keys["services"]))
            for step, one in workload.names.items()
        }
        whole = {**keys, "qrmiConfig": str(self._qrmi)}
        return slurm_runs.write(
            folder / name, cwl, settings(workload), "sfq.slurm", whole, services
        )

    def _drive(self, file: Path) -> Sequence[JournalEvent]:
        timer = Timer(RUN_SECONDS, self._stop.set)
        timer.start()
        try:
            (events,) = slurm_runs.drive(self._lab, [file], self._stop)
        finally:
            timer.cancel()
        return events

    def _sfq(self, *words: str) -> str:
        """Run a command of ``sfq`` that has to end well."""
        done = subprocess.run(
            [slurm_runs.BIN / "sfq", *words],
            env=os.environ | self._lab.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise PlanError(f"sfq {words[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def _followed(self, events: Sequence[JournalEvent], allocation: JSON) -> None:
        """Check that jobs ran where they should, under the recommended strategy.

        :param allocation: that of the recommendation
        :raises PlanError: if not
        """
        name = mapping(allocation).get("strategy", allocation)
        counts: Counter[str] = Counter()
        for event in (one for one in events if one["event"] == "slurm"):
            step = str(event["job"]).rpartition("/")[0]
            counts[step] += 1
            # its service may say so, as one of a QPU does with elastic allocations
            if event["strategy"] not in (name, "per-step"):
                raise PlanError(f"{event['job']} ran as {event['strategy']}")
            if event["strategy"] != name and not self._workload.names[step].quantum:
                raise PlanError(f"{event['job']} ran as {event['strategy']}")
        times = self._workload.iterations
        for step, one in self._workload.names.items():
            if counts[step] != times * len(one.seconds):
                raise PlanError(f"{step} ran {counts[step]} times on Slurm")
        solved = {str(one["job"]) for one in events if one["event"] == "qpu"}
        quantum = any(one.quantum for one in self._workload.steps)
        if len(solved) != times * quantum:
            raise PlanError(f"{len(solved)} jobs used the QPU")


def parsed(printed: str) -> dict[str, JSON]:
    """Read the lines of a StreamFlow file that ``sfq plan`` has printed.

    :raises PlanError: if they are not YAML
    """
    return mapping(_yaml("\n".join(_lines(printed))))


def merged(before: Mapping[str, JSON], printed: str) -> dict[str, JSON]:
    """Change the configuration of a deployment as the printed lines say."""
    lines = [*_lines(printed)]
    deployments = mapping(mapping(_yaml("\n".join(lines))).get("deployments"))
    keys = {**before, **mapping(mapping(deployments.get("slurm")).get("config"))}
    services = {name: mapping(one) for name, one in mapping(keys["services"]).items()}
    for line in lines:
        if found := _OWN.fullmatch(line.strip()):
            for name in found[1].split(", "):
                del services[name]["allocation"]
    return {**keys, "services": {**services}}


def _lines(printed: str) -> Iterator[str]:
    """The first lines that are set off by spaces after the recommendation."""
    _, _, rest = printed.partition("\nrecommended: ")
    _, _, rest = rest.partition("\n\n")
    for line in rest.splitlines():
        if not line.startswith("  "):
            return
        yield line[2:]


def _yaml(text: str) -> JSON:
    try:
        content: JSON = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PlanError(f"not YAML: {error}\n{text}") from error
    return content


def service_of(step: Step, services: Mapping[str, JSON]) -> str:
    """Name the service that runs a step: that with its partition, its nodes and its QPU."""
    for name, content in services.items():
        keys = mapping(content)
        is_quantum = listing(keys.get("qpu")) == [QPU]
        size = str(keys.get("nodes", "1"))
        if (is_quantum, size) == (step.quantum, step.nodes):
            return name
    raise PlanError(f"no service for {step.name} in {json.dumps({**services})}")


def trial(number: int, url: str, stops: list[Event]) -> str | PlanError:
    """Carry out the plan of a workload on a lab of its own.

    :param url: of the QPU service
    :param stops: gets what ends its run
    :returns: the strategy, or why it could not be carried out
    """
    stops.append(stop := Event())
    try:
        workload = draw(number)
        with (
            tempfile.TemporaryDirectory(prefix="sfq-plan-") as name,
            running(
                Path(name) / "lab",
                Options(nodes=workload.nodes, qnodes=workload.quantum_nodes),
            ) as lab,
        ):
            qrmi = Path(name) / "qrmi_config.json"
            qrmi.touch(0o600)
            entry = {"name": QPU, "type": "sfq", "environment": {"SFQ_URL": url}}
            qrmi.write_text(json.dumps({"resources": [entry]}))
            return Trial(Path(name), workload, lab, qrmi, stop).recommended()
    except (PlanError, LabError, slurm_runs.RunError) as error:
        return PlanError(str(error))


@contextmanager
def a_qpu(folder: Path) -> Iterator[str]:
    """Run a QPU service, and give its URL."""
    options = ("--time-scale", "0", "--noise", "0", "--vqpus", "4")
    service = QpuService(folder, *options)
    service.start()
    try:
        yield service.url
    finally:
        service.end()


def main() -> None:
    """Carry out the plans, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=20, help="of workloads")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--jobs", type=int, default=2, help="workloads side by side")
    args = parser.parse_args()
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    numbers = range(args.first, args.first + args.number)
    stops: list[Event] = []
    strategies, failed = Counter[str](), 0
    with (
        tempfile.TemporaryDirectory(prefix="sfq-plan-") as folder,
        a_qpu(Path(folder) / "service") as url,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        try:
            one = partial(trial, url=url, stops=stops)
            for number, found in zip(numbers, pool.map(one, numbers), strict=True):
                print(f"{number}: {draw(number)}: {found}", flush=True)
                if isinstance(found, PlanError):
                    failed += 1
                else:
                    strategies[found] += 1
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for stop in stops:
                stop.set()
            raise
    counts = ", ".join(f"{name} {count}" for name, count in strategies.most_common())
    print(f"{args.number - failed} of {args.number} ran as recommended: {counts}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
