"""``sfq serve``: run the QPU service."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, parse_json

if TYPE_CHECKING:
    from sf_quantum.files import KeyPath
    from sf_quantum.service.config import Configuration, Flags

    Values = dict[KeyPath, JSON]

LEVELS = ["debug", "info", "warning", "error"]


class Option(NamedTuple):
    """A command-line option that overrides a key of the configuration file."""

    key: str
    metavar: str
    parse: Callable[[str], JSON]
    help: str


OPTIONS = {
    "socket": Option("listen.socket", "PATH", str, "Unix socket"),
    "host": Option("listen.host", "HOST", str, "address (default 127.0.0.1)"),
    "port": Option("listen.port", "PORT", int, "0 (default) picks a free port"),
    "certificate": Option("listen.certificate", "FILE", str, "TLS certificate, PEM"),
    "key": Option("listen.key", "FILE", str, "key of the certificate, PEM"),
    "state": Option(
        "state",
        "DIR",
        str,
        "folder for jobs and results; without it they are lost when the service ends",
    ),
    "auth": Option("auth.mode", "MODE", str, "none (default), token or munge"),
    "tokens": Option("auth.tokens", "FILE", str, "tokens file, see sfq token"),
    "munge-socket": Option(
        "auth.munge", "PATH", str, "munged's socket, if not the default"
    ),
    "twin-of": Option(
        "device.of",
        "DEVICE",
        str,
        "emulate this device, as it is now, instead of the configuration's: the URL of its "
        "service, or the file of its configuration",
    ),
    "token-file": Option(
        "device.token_file", "FILE", str, "bearer token for the URL of --twin-of"
    ),
    "name": Option("device.name", "NAME", str, "name of the QPU (default emulator)"),
    "technology": Option(
        "device.technology",
        "NAME",
        str,
        "annealer (default), superconducting, neutral-atom or photonic",
    ),
    "time-scale": Option(
        "device.time_scale",
        "FACTOR",
        float,
        "seconds to run per second on a real QPU (default 1)",
    ),
    "vqpus": Option("vqpus", "N", int, "leases held at once (default 1)"),
    "qubits": Option("device.qubits", "N", int, "largest problem (default 5000)"),
    "topology": Option(
        "device.topology",
        "NAME",
        str,
        "an annealer's graph: pegasus (default) or zephyr; of a superconducting QPU: "
        "square (default with 5, 20 or 54 qubits) or complete",
    ),
    "noise": Option(
        "device.noise",
        "FACTOR",
        float,
        "multiplies the errors of a real QPU, 0 for an ideal one (default 1; 0 in "
        "sfq.emulator)",
    ),
    "seed": Option(
        "device.seed", "SEED", int, "seed of faults, errors, and jobs without a seed"
    ),
    "faults": Option(
        "device.faults",
        "JSON",
        str,
        '{"fail": 0..1, "slow": 1 or more, "offline": 0..1, "calibration": 0..1, '
        '"drift": 0..1}',
    ),
    "drain": Option(
        "drain_seconds",
        "SECONDS",
        float,
        "grace period of the running job after SIGTERM, 0 to 3 (default 2)",
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        'Once the service listens, it prints one line of JSON, {"url": "..."}. SIGTERM '
        "drains it: new jobs are refused, and the running job has --drain seconds to "
        "finish. Ctrl-C stops it at once. SIGHUP reads the configuration again: users, shares, "
        "classes, limits and certificates. Unfinished jobs stay in the state folder for the "
        "next start. Options override the configuration file. An address that other "
        "machines can reach needs --certificate, --key and --auth token or munge."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML, see deployments/"
    )
    address = parser.add_mutually_exclusive_group()
    for name, option in OPTIONS.items():
        group = address if name in ("socket", "host") else parser
        group.add_argument(
            f"--{name}",
            dest=option.key,
            type=option.parse,
            metavar=option.metavar,
            help=option.help,
        )
    parser.add_argument(
        "--log",
        choices=LEVELS,
        default="warning",
        help="log level on standard error (default warning: failed logins and trouble; info: "
        "also each request, and each event of jobs and leases)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="of the log: lines of text or JSON objects, with the same data (default text)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="do not start: print every finding in the configuration and in the files it "
        "names, one per line",
    )
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="stop when standard input closes; remove the state folder if it was created",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until stopped; an invalid configuration has a line for each error."""
    # the web framework is imported only after the options have been parsed
    if args.check:
        from sf_quantum.service.check import check

        check(*_sources(args))
        print(f"{args.config or 'configuration'}: OK (QPU service)")
        return 0
    config = _configuration(args)
    from sf_quantum.service.config import make_device
    from sf_quantum.service.http.logs import configure as configure_logs
    from sf_quantum.service.run import serve

    configure_logs(args.log, args.log_format)
    try:
        device = make_device(config.device)
    except InputError as error:
        where = f"{args.config}: device" if args.config else "device"
        if getattr(args, OPTIONS["twin-of"].key) is not None:
            where = "--twin-of"
        raise InputError(f"{where}: {error}") from error
    serve(
        config,
        device,
        lambda url: print(json.dumps({"url": url}), flush=True),
        load=lambda: _configuration(args),
        until_eof=args.until_eof,
    )
    return 0


def _configuration(args: argparse.Namespace) -> Configuration:
    from sf_quantum.service.config import load

    return load(*_sources(args))


def _sources(args: argparse.Namespace) -> tuple[Path | None, Values, Flags]:
    """The configuration file, the values that override it, and their options."""
    keys = {option.key: f"--{name}" for name, option in OPTIONS.items()}
    values = {key: value for key in keys if (value := getattr(args, key)) is not None}
    if "listen.socket" not in values and values.keys() & {"listen.host", "listen.port"}:
        values["listen.socket"] = None  # override the configuration file
    if "device.of" in values:
        values = {"device": {"type": "twin"}, **values}
        keys["device"] = "--twin-of"
    elif "device.token_file" in values:
        raise InputError("--token-file is for the URL of --twin-of")
    if (faults := values.get("device.faults")) is not None:
        values["device.faults"] = _faults(str(faults))
    return (
        args.config,
        {tuple(key.split(".")): value for key, value in values.items()},
        {tuple(key.split(".")): flag for key, flag in keys.items()},
    )


def _faults(text: str) -> dict[str, JSON]:
    try:
        faults = parse_json(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--faults: not JSON ({error.msg})") from error
    if not isinstance(faults, dict):
        raise InputError("--faults: expected a JSON object")
    return faults
