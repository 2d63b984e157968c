"""``sfq solve``: sample low-energy states of a problem."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, NoReturn

from sf_quantum import qpu, samplers
from sf_quantum.cli.arguments import positive, whole
from sf_quantum.errors import InputError
from sf_quantum.files import (
    JSON,
    check_writable,
    mapping,
    parse_json,
    write_json,
)
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import from_environment
from sf_quantum.samplers import problem
from sf_quantum.text import unknown

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

# value of --sampler that lets the command choose the sampler
AUTO = "auto"
# name of the sampler that makes circuits, which a QPU may run
CIRCUITS = "qaoa"
# the sampler that is chosen without a QPU
CLASSICAL = "neal"
# Logger of the QPU service's client, which reports when jobs start and how long they run.
LOGGER = "sf_quantum.qpu.sfq.service_job"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        'A problem of your own is JSON: {"bqm": B}, with B as to_serializable() of a dimod '
        "BinaryQuadraticModel returns it. docs/reference/files.md has an example."
    )
    add = parser.add_argument
    help_ = "the problem: from sfq qubo, or one of your own, see below"
    add("--problem", type=Path, required=True, metavar="FILE", help=help_)
    add(
        "--sampler",
        type=_sampler_name,
        default=AUTO,
        help="name of a sampler, or auto: the QPU in the environment, or else neal; the "
        "circuits of qaoa run on the QPU in the environment if it takes circuits",
    )
    add(
        "--reads",
        type=positive,
        default=qpu.DEFAULT_READS,
        help="number of samples (default %(default)s)",
    )
    add("--seed", type=whole, help="drawn and reported if omitted")
    add("--sweeps", type=positive, help="sweeps of simulated annealing (default 100)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another parameter of the sampler (sfq samplers NAME lists them); may be "
        "repeated",
    )
    add(
        "--previous",
        type=Path,
        metavar="FILE",
        help="samples of the previous iteration, from which some samplers can start "
        "(qaoa from the angles); --set takes precedence",
    )
    add("--output", type=Path, required=True, metavar="FILE", help="samples, as JSON")


def _sampler_name(name: str) -> str:
    if name != AUTO and name not in (names := samplers.names()):
        raise argparse.ArgumentTypeError(unknown("sampler", name, names))
    return name


def run(args: argparse.Namespace) -> int:
    """Solve one problem."""
    content = problem.read(args.problem)
    bqm = mapping(content["bqm"])
    check_writable(args.output)
    parameters: dict[str, JSON] = {
        "num_reads": args.reads,
        "seed": args.seed,
        "num_sweeps": args.sweeps,
        **_parse_settings(args.set),
    }
    before = problem.read_info(args.previous) if args.previous else {}
    remote = _held_qpu(args.sampler)
    name = CLASSICAL if args.sampler == AUTO else args.sampler
    with nullcontext() if remote is None else _on_qpu():
        samples = _solve(remote, name, bqm, parameters, before)
    if "identity" in content:
        mapping(samples["info"])["problem"] = content["identity"]
    write_json(args.output, samples)
    return 0


def _held_qpu(sampler: str) -> Qpu | None:
    if sampler not in (AUTO, CIRCUITS):
        return None
    held = from_environment()
    if sampler == AUTO or held is None or "circuit" in held.describe().kinds:
        return held
    return None


def _parse_settings(settings: list[str]) -> dict[str, JSON]:
    assigned: dict[str, JSON] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not name or not equals:
            raise InputError(f"--set {setting}: expected NAME=VALUE")
        try:
            assigned[name] = parse_json(text)
        except ValueError:  # not JSON, such as the name of a file
            assigned[name] = text
    return assigned


def _solve(
    remote: Qpu | None,
    name: str,
    bqm: Mapping[str, JSON],
    parameters: Mapping[str, JSON],
    before: Mapping[str, JSON],
) -> dict[str, JSON]:
    """Sample on a QPU (with circuits, if the sampler is ``qaoa``), or with the sampler itself.

    :param remote: client of the QPU; ``None`` to use the sampler
    :param before: ``info`` of the previous samples
    """
    _import_dimod()
    if remote is None:
        sampler = _classical(name)
    else:
        sampler = remote.qaoa() if name == CIRCUITS else remote.sampler()
    # Imported here: the import of dimod takes longer than solving most problems.
    from sf_quantum.samplers.presolve import LeasedPresolve, Presolve

    presolve = Presolve if remote is None else LeasedPresolve
    begin = time.monotonic()
    # Values that `info` passes on from iteration to iteration, even if the presolve leaves
    # nothing to sample.
    keys = sampler.properties.get("carried", [])
    carried = {key: before[key] for key in keys if key in before}
    samples = problem.sample(presolve(sampler), bqm, {**carried, **parameters})
    seconds = time.monotonic() - begin
    info = mapping(samples.get("info"))
    if remote is None:
        samples["info"] = {
            **carried,
            "sampler": name,
            "reads": parameters["num_reads"],
            **info,
            "qpu": None,
            "technology": None,
            "calibration": None,
            "timing": _timing([], seconds),
        }
    else:
        parts = info.get("parts")
        # each part of the problem was a separate QPU job
        jobs = parts if isinstance(parts, list) else [info]
        timings = [mapping(job).get("timing") for job in jobs]
        info["timing"] = _timing(timings, seconds)
    return samples


def _import_dimod() -> None:
    """Import dimod without networkx, whose import takes two thirds as long as dimod's.

    dimod imports networkx only for the name of a type, and works without networkx. If a
    sampler calls a function of dimod that uses graphs, networkx is imported then.
    """
    if not {"dimod", "networkx"} & sys.modules.keys():
        # An entry that is None makes the import fail.
        sys.modules["networkx"] = None  # type: ignore[assignment]
        try:
            from dimod import decorators
        finally:
            del sys.modules["networkx"]
        if find_spec("networkx") is not None:
            vars(decorators)["networkx"] = _LazyModule("networkx")


class _LazyModule(ModuleType):
    """Stands in for a module, and imports it when one of its attributes is used."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(self.__name__), name)


def _classical(name: str) -> Sampler:
    sampler = samplers.load(name)
    if (obstacle := samplers.obstacle(name)) is not None:
        raise InputError(f"sampler {name!r}: {obstacle}")
    return sampler()


def _timing(jobs: list[JSON], seconds: float) -> JSON:
    """Return the sum of the QPU jobs' timings, and the time of the call outside these jobs.

    :param jobs: timing of each QPU job; empty without a QPU
    :param seconds: wall-clock time of the whole call
    """
    added = {
        key: sum(
            float(value)
            for job in jobs
            if isinstance(value := mapping(job).get(key), int | float)
        )
        for key in ("queued_seconds", "qpu_seconds", "seconds")
    }
    around = seconds - added["queued_seconds"] - added["seconds"]
    if not jobs:
        added["seconds"] = seconds
    return {**added, "around_seconds": around}


@contextmanager
def _on_qpu() -> Iterator[None]:
    """Cancel the QPU job on SIGTERM, and print on stderr how long the first job will take."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sfq solve: %(message)s"))
    # qaoa submits many jobs, but only one line is printed.
    handler.addFilter(_FirstOfInfo())
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    try:
        with _raise_on_sigterm():
            yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


class _FirstOfInfo(logging.Filter):
    """Passes the first record at level INFO, and all warnings."""

    def __init__(self) -> None:
        super().__init__()
        self._has_passed = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            return True
        first, self._has_passed = not self._has_passed, True
        return first


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the QPU job is cancelled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
