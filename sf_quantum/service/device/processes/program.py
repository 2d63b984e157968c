"""The program of a separate process, which computes jobs; see :mod:`.processes`.

Its standard input is a connection of :mod:`multiprocessing`, for :mod:`.messages`. A request
consists of a :class:`.Request` and the payload of a job; a reply of an :class:`.Answer` and the
result. After a reply whose ``last`` is true, the process ends. Its standard output is the
reading end of a pipe, whose writing end the service holds.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import math
import os
import random
import resource
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias, cast

from dimod.core.sampler import Sampler

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.protocol.tasks import JobParameters
from sf_quantum.qpu.environment import from_environment
from sf_quantum.samplers import problem
from sf_quantum.samplers.defaults import SEEDS, SWEEPS
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.service.device.emulator import annealing_sampler, annealing_schedules
from sf_quantum.service.device.emulator.atoms import device as atoms
from sf_quantum.service.device.emulator.atoms import simulation
from sf_quantum.service.device.emulator.circuits import aer
from sf_quantum.service.device.emulator.computation import NOISE
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.service.device.emulator.photons import optics
from sf_quantum.service.device.processes import merging, messages, verification
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.processes.messages import Answer, Request
from sf_quantum.service.domain.jobs import Kind
from sf_quantum.service.domain.photonic import PhotonicExperiment

Content: TypeAlias = dict[str, JSON]
# A process that has used more memory ends after its job, since it rarely returns memory.
KEPT_BYTES = 1 << 30
# Packages that take seconds to import, by the kind of job that needs them.
PACKAGES: Mapping[Kind, Sequence[str]] = {
    "circuit": ("qiskit", "qiskit_aer", "qiskit_qasm3_import"),
    "photonic": ("perceval",),
    "sequence": ("pulser", "pulser_simulation"),
}


def main() -> None:
    """Answer requests until standard input closes."""
    end_with_service(os.dup(1))
    # libraries print to standard error
    os.dup2(2, 1)
    # A terminal or systemd also sends these signals to the service, which ends its processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # If memory is short, the kernel kills this process before the service.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    warnings.simplefilter("ignore")
    connection, last = Connection(0), False
    with suppress(EOFError, ConnectionError):
        while not last:
            answer, text = answered(*messages.receive(connection, Request))
            messages.send(connection, answer, text)
            last = answer.last


def answered(request: Request, payload: str) -> tuple[Answer, str]:
    """Return the reply to a request, and the text of the result."""
    limits = ComputeLimits.model_validate(request.limits)
    _limit(resource.RLIMIT_AS, int(limits.memory_gib * 2**30))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    # Exceeding this limit kills the process, even within a library.
    _limit(resource.RLIMIT_CPU, math.ceil(used) + limits.cpu_seconds)
    info: dict[str, JSON] = {}
    error, last, text = None, False, ""
    try:
        content = CALLS[request.call](payload, **request.arguments)
        info = mapping(content.get("info"))
        text = json.dumps({key: content[key] for key in content if key != "info"})
    except QuantumError as refused:
        error = str(refused)
    except MemoryError:
        limit = f"{limits.memory_gib:g} GiB"
        error, last = f"the job needs more than {limit} of memory", True
    except Exception as failure:  # noqa: BLE001 - any library may raise any error
        error = f"{type(failure).__name__}: {failure}"
    last = last or _peak_bytes() > KEPT_BYTES
    return (Answer(last, error), "") if error else (Answer(last, None, info), text)


def run(
    payload: str,
    kind: Kind,
    parameters: JobParameters,
    noise: JSON = None,
    architecture: JSON = None,
    **more: int,
) -> Content:
    """Compute a job with the device's noise.

    :param architecture: architecture of the device, for circuits
    :param more: limits that apply only to jobs of this kind
    """
    content, errors = json.loads(payload), NOISE.validate_python(noise)
    if kind == "problem":
        if isinstance(content, list):
            return {"sample_sets": [*_each(content, parameters, errors)]}
        return _sampled(content, parameters, errors)
    if kind == "circuit":
        return aer.simulate(
            content, parameters, errors, architecture=architecture, **more
        )
    if kind == "photonic":
        experiment = PhotonicExperiment.model_validate(content)
        return optics.simulate(experiment, parameters, errors)
    counter = simulation.simulate(content, parameters, **more)
    return {"counter": errors.misread(counter) if errors else {**counter}}


def _each(
    bqms: Sequence[Content], parameters: JobParameters, errors: Noise | None
) -> Iterator[Content]:
    """Sample BQMs, each with its own seed; the first has the job's seed."""
    draws = random.Random(parameters.get("seed"))
    for number, bqm in enumerate(bqms):
        if number:
            parameters = {**parameters, "seed": draws.randrange(SEEDS)}
            errors = errors and replace(errors, seed=draws.getrandbits(64))
        yield _sampled(bqm, parameters, errors)


def _sampled(bqm: Content, parameters: JobParameters, errors: Noise | None) -> Content:
    sampler: Sampler = NealSampler()
    scaled, options = True, {name: parameters.get(name) for name in sampler.parameters}
    if parameters.get("annealing"):
        parameters_json = mapping(bqm["info"])["annealing"]
        how = annealing_schedules.ANNEALING.validate_python(parameters_json)
        if errors:
            labels = listing(bqm["variable_labels"])
            most = max(label for label in labels if isinstance(label, int))
            how = how.drifted(errors.drift(1 + most))
        sampler, scaled = annealing_sampler.AnnealingSampler(how), how.auto_scale

    def sample(programmed: JSON) -> Content:
        return problem.sample(sampler, cast("Content", programmed), options)

    if errors:
        return errors.run_problem(bqm, sample, scaled=scaled)
    return sample(bqm)


def solve(
    payload: str, environment: Mapping[str, str], parameters: JobParameters
) -> Content:
    """Sample a problem on a QPU, with the client of the QPU's vendor.

    :param environment: environment variables of the job, as a workflow step gets them
    """
    # some clients read their variables from the environment of the process
    os.environ.update(environment)
    client = from_environment(environment)
    if client is None:
        raise InputError("the environment names no QPU")
    # the service's default value is left out, as few samplers accept the parameter
    default = ("num_sweeps", SWEEPS)
    given = {name: v for name, v in parameters.items() if (name, v) != default}
    return client.solve(json.loads(payload), given)


def warm(_: str, kinds: Sequence[Kind]) -> Content:
    """Import the installed packages that the given kinds of jobs need."""
    packages = [PACKAGES[kind] for kind in kinds if kind in PACKAGES]
    for name in (name for names in packages for name in names):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    return {}


def size(payload: str, architecture: JSON, noisy: bool, bond_dimension: int) -> Content:
    """Check circuits, and return the fields of their :class:`.Size`."""
    return aer.size(json.loads(payload), architecture, noisy, bond_dimension)


def check_optics(payload: str) -> Content:
    """Check an experiment in linear optics."""
    optics.check(PhotonicExperiment.model_validate_json(payload))
    return {}


def merge(payload: str, *, by_circuit: bool) -> Content:
    """Merge the results of slices."""
    return merging.merge(json.loads(payload), by_circuit=by_circuit)


def verify(
    payload: str, *, kind: Kind, characters: int, shots: int, fewer: bool
) -> Content:
    """Check a vendor's result; see :func:`.verification.verified`.

    :param payload: payload of the job, ``characters`` long, followed by the text of the
        result
    """
    job, text = payload[:characters], payload[characters:]
    try:
        verified = verification.verified(kind, job, text, shots, fewer=fewer)
    except verification.WrongResult as error:
        return {"info": {"wrong": str(error)}}
    return {**verified.content, "info": {"difference": verified.difference}}


CALLS: Mapping[str, Callable[..., Content]] = {
    "run": run,
    "solve": solve,
    "check": simulation.check,
    "specs": atoms.specs,
    "size": size,
    "optics": check_optics,
    "merge": merge,
    "verify": verify,
    "warm": warm,
}


def _peak_bytes() -> int:
    """Return the largest resident memory of this program so far.

    ``ru_maxrss`` also includes the memory of the parent process, before exec(2).
    """
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(line for line in status if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def _limit(of: int, most: int) -> None:
    """Set a limit, or the service's own limit (``ulimit``) if the latter is lower."""
    _, hardest = resource.getrlimit(of)
    if hardest != resource.RLIM_INFINITY:
        most = min(most, hardest)
    resource.setrlimit(of, (most, hardest))


def end_with_service(lifeline: int) -> None:
    """Have the kernel end this process when the other end of a pipe is closed."""
    # The pipe's SIGIO kills this process even while no Python code runs. Nothing else raises
    # SIGIO, since nothing is written to the pipe. PR_SET_PDEATHSIG would already act when
    # the thread ends that started this process.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # the other end is already closed
        sys.exit(1)


if __name__ == "__main__":
    main()
