"""``sfq serve``: run the QPU service."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON

if TYPE_CHECKING:
    from sf_quantum.service.config import Configuration

LEVELS = ["debug", "info", "warning", "error"]
# the path of each option's value in the configuration file
CONFIGURATION_PATHS: Mapping[str, tuple[str, ...]] = {
    "socket": ("listen", "socket"),
    "host": ("listen", "host"),
    "port": ("listen", "port"),
    "certificate": ("listen", "certificate"),
    "key": ("listen", "key"),
    "state": ("state",),
    "auth": ("auth", "mode"),
    "tokens": ("auth", "tokens"),
    "munge_socket": ("auth", "munge"),
    "name": ("device", "name"),
    "technology": ("device", "technology"),
    "time_scale": ("device", "time_scale"),
    "vqpus": ("vqpus",),
    "qubits": ("device", "qubits"),
    "topology": ("device", "topology"),
    "noise": ("device", "noise"),
    "seed": ("device", "seed"),
    "faults": ("device", "faults"),
    "drain": ("drain_seconds",),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        'Once the service listens, it prints one line of JSON, {"url": "..."}. SIGTERM '
        "drains it: new jobs are refused, and the running job has --drain seconds to "
        "finish. Ctrl-C stops it at once. Unfinished jobs stay in the state folder for the "
        "next start. Options override the configuration file. An address that other "
        "machines can reach needs --certificate, --key and --auth token or munge."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML, see deployments/"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", type=Path, metavar="PATH", help="Unix socket")
    where.add_argument("--host", help="address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="0 (default) picks a free port")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="TLS, PEM")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="key of the certificate, PEM"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="folder for jobs and results; without it they are lost when the service ends",
    )
    parser.add_argument("--auth", help="none, token or munge (default none)")
    parser.add_argument(
        "--tokens", type=Path, metavar="FILE", help="tokens file, see sfq token"
    )
    parser.add_argument(
        "--munge-socket", type=Path, metavar="PATH", help="munged's, if not the usual"
    )
    _configure_device(parser)
    parser.add_argument(
        "--drain",
        type=float,
        metavar="SECONDS",
        help="grace period of the running job after SIGTERM, 0 to 3 (default 2)",
    )
    parser.add_argument(
        "--log",
        choices=LEVELS,
        default="warning",
        help="log level on standard error (default warning; info logs each request)",
    )
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="stop when standard input closes; remove the state folder if it was created",
    )


def _configure_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="name of the QPU (default emulator)")
    parser.add_argument(
        "--technology",
        help="annealer, superconducting or neutral-atom (default annealer)",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        metavar="FACTOR",
        help="seconds to wait per second on a real QPU (default 1)",
    )
    parser.add_argument("--vqpus", type=int, help="leases held at once (default 1)")
    parser.add_argument("--qubits", type=int, help="largest problem (default 5000)")
    parser.add_argument(
        "--topology",
        help="an annealer's graph of so many qubits: pegasus (default) or zephyr",
    )
    parser.add_argument(
        "--noise",
        type=float,
        metavar="FACTOR",
        help="multiplies the errors of a real QPU, 0 for an ideal one (default 1)",
    )
    parser.add_argument(
        "--seed", type=int, help="seed of faults, errors, and jobs without a seed"
    )
    parser.add_argument(
        "--faults",
        metavar="JSON",
        help='{"fail": 0..1, "slow": 1 or more, "offline": 0..1, "calibration": 0..1, '
        '"drift": 0..1}',
    )


def run(args: argparse.Namespace) -> int:
    """Serve until stopped.

    :returns: 0, or 2 for an invalid configuration, with one line per error
    :raises InputError: if the service cannot listen
    """
    values = _values(args)
    # the web framework is imported only after the options have been parsed
    from sf_quantum.validation import Wrong

    try:
        config = _configuration(args.config, values)
    except Wrong as error:
        for line in error.lines:
            print(f"sfq serve: {line}", file=sys.stderr)
        return error.exit_code
    from sf_quantum.service.run import serve

    logging.basicConfig(
        level=args.log.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    serve(
        config,
        lambda url: print(json.dumps({"url": url}), flush=True),
        until_eof=args.until_eof,
    )
    return 0


def _values(args: argparse.Namespace) -> dict[str, JSON]:
    given = {
        name: value
        for name in CONFIGURATION_PATHS
        if (value := getattr(args, name)) is not None
    }
    values = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in given.items()
    }
    if "faults" in values:
        values["faults"] = _faults(str(values["faults"]))
    if "socket" not in values and values.keys() & {"host", "port"}:
        values["socket"] = None  # the file's
    return values


def _configuration(path: Path | None, values: dict[str, JSON]) -> Configuration:
    from sf_quantum.service.config import load

    return load(
        path,
        {CONFIGURATION_PATHS[name]: value for name, value in values.items()},
        {
            where: f"--{name.replace('_', '-')}"
            for name, where in CONFIGURATION_PATHS.items()
        },
    )


def _faults(text: str) -> dict[str, JSON]:
    try:
        faults = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--faults: not JSON ({error.msg})") from error
    if not isinstance(faults, dict):
        raise InputError("--faults: expected a JSON object")
    return faults
