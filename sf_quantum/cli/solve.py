"""``sfq solve``: sample low-energy states of a problem."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sf_quantum import qpu, samplers
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json, write_json
from sf_quantum.samplers import problem

AUTO = "auto"
CLASSICAL = "neal"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--problem", type=Path, required=True, metavar="FILE", help="from sfq qubo"
    )
    parser.add_argument(
        "--sampler",
        default=AUTO,
        help="name of a sampler, or auto: the QPU of the environment, neal without one",
    )
    parser.add_argument(
        "--reads", type=int, default=1000, help="samples to take (default 1000)"
    )
    parser.add_argument("--seed", type=int, help="drawn and reported if not given")
    parser.add_argument(
        "--sweeps", type=int, help="of simulated annealing, per read (default 100)"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="samples, as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Solve one problem.

    :returns: 0
    :raises InputError: if the problem, an option or the environment is wrong
    :raises QpuError: if the QPU fails or does not answer
    """
    for option in ("reads", "sweeps"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise InputError(f"--{option} {value}: expected 1 or more")
    content = read_json(args.problem, "problem")
    bqm = _bqm(args.problem, content)
    _check_writable(args.output)
    parameters = {
        "num_reads": args.reads,
        "seed": args.seed,
        "num_sweeps": args.sweeps,
    }
    remote = qpu.from_environment() if args.sampler == AUTO else None
    if remote is None:
        name = CLASSICAL if args.sampler == AUTO else args.sampler
        samples = _solve_here(name, bqm, parameters)
    else:
        with _terminable():
            samples = remote.solve(bqm, parameters)
    info = samples["info"]
    if isinstance(info, dict) and "identity" in content:
        info["problem"] = content["identity"]
    write_json(args.output, samples)
    return 0


def _bqm(path: Path, content: dict[str, JSON]) -> dict[str, JSON]:
    if "bqm" not in content:
        raise InputError(f"{path}: key 'bqm' is missing; expected a problem file")
    try:
        return problem.check(content["bqm"])
    except problem.FieldError as error:
        raise InputError(f"{path}: {error}") from error


def _check_writable(output: Path) -> None:
    # before QPU time is spent, not after
    folder = output.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or output.is_dir():
        raise InputError(
            f"{output}: cannot be written; name a file in an existing folder "
            "that you may write to"
        )


def _solve_here(
    name: str, bqm: Mapping[str, JSON], parameters: Mapping[str, int | None]
) -> dict[str, JSON]:
    sampler = samplers.load(name)()
    begin = time.monotonic()
    samples = problem.sample(sampler, bqm, parameters)
    seconds = time.monotonic() - begin
    info = samples.get("info")
    samples["info"] = {
        "sampler": name,
        "seed": parameters["seed"],
        "reads": parameters["num_reads"],
        **(info if isinstance(info, dict) else {}),
        "qpu": None,
        "technology": None,
        "calibration": None,
        "timing": {"queued_seconds": 0.0, "qpu_seconds": 0.0, "seconds": seconds},
    }
    return samples


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the job on the QPU is cancelled."""
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
