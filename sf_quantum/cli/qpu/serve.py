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

LOG_LEVELS = ["debug", "info", "warning", "error"]


class Option(NamedTuple):
    """A command-line option that overrides a key of the configuration file.

    :param key: path of the key, with its parts joined by dots
    :param parse: function that converts the option's text to the key's value
    """

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
        "folder for jobs and results; without a folder, they are lost when the service ends",
    ),
    "auth": Option("auth.mode", "MODE", str, "none (default), token or munge"),
    "tokens": Option("auth.tokens", "FILE", str, "file of tokens, see sfq token"),
    "munge-socket": Option(
        "auth.munge", "PATH", str, "socket of munged, if not its default"
    ),
    "twin-of": Option(
        "device.of",
        "DEVICE",
        str,
        "emulate the current state of this device instead of the configured device: URL of its "
        "service, or its configuration file",
    ),
    "token-file": Option(
        "device.token_file",
        "FILE",
        str,
        "file with the bearer token for the URL of --twin-of",
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
        "seconds that a job runs per second on a real QPU (default 1)",
    ),
    "vqpus": Option(
        "vqpus", "N", int, "maximum number of concurrent leases (default 1)"
    ),
    "qubits": Option(
        "device.qubits",
        "N",
        int,
        "number of qubits, the maximum size of a problem (default 5000)",
    ),
    "topology": Option(
        "device.topology",
        "NAME",
        str,
        "graph of the qubits: pegasus (default) or zephyr for an annealer; square (default "
        "with 5, 20 or 54 qubits) or complete for a superconducting QPU",
    ),
    "noise": Option(
        "device.noise",
        "FACTOR",
        float,
        "factor of the errors of a real QPU; 0 emulates an ideal QPU (default 1; 0 in "
        "sfq.emulator)",
    ),
    "seed": Option(
        "device.seed",
        "SEED",
        int,
        "seed of faults, of errors, and of jobs without a seed",
    ),
    "faults": Option(
        "device.faults",
        "JSON",
        str,
        'injected faults: {"fail": 0..1, "slow": 1 or more, "offline": 0..1, "calibration": 0..1, '
        '"drift": 0..1}',
    ),
    "drain": Option(
        "drain_seconds",
        "SECONDS",
        float,
        "time that the running job has to finish after SIGTERM, 0 to 3 (default 2)",
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        'When the service listens, it prints one line of JSON, {"url": "..."}. On SIGTERM, '
        "the service rejects new jobs, and stops when the running job has finished, at most "
        "--drain seconds later. Ctrl-C stops the service immediately. On SIGHUP, the service "
        "reloads users, shares, classes, limits and certificates from the configuration. "
        "Unfinished jobs stay in the state folder for the next start. Options override the "
        "configuration file. An address that other machines can reach requires --certificate, "
        "--key and --auth token or munge."
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration file, YAML; see deployments/",
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
        choices=LOG_LEVELS,
        default="warning",
        help="minimum level of log lines on standard error; warning (default) reports failed "
        "logins and problems, info also each request and each event of jobs and leases",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of log lines, text (default) or JSON objects, with the same data",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="do not start the service; check the configuration and the files that it names, "
        "and print one problem per line",
    )
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="stop when standard input closes; remove the state folder if it was created",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until stopped, or check the configuration.

    :raises InputError: if the configuration is invalid; the error has a line for each fault
    """
    # The service is imported here: its web framework would slow down every sfq command.
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
    """Return the configuration file, the values that override it, and each key's option.

    The file is ``None`` without ``--config``.
    """
    flags = {option.key: f"--{name}" for name, option in OPTIONS.items()}
    values = {key: value for key in flags if (value := getattr(args, key)) is not None}
    if "listen.socket" not in values and values.keys() & {"listen.host", "listen.port"}:
        # The configuration file may name a socket; host and port replace it.
        values["listen.socket"] = None
    if "device.of" in values:
        values = {"device": {"type": "twin"}, **values}
        flags["device"] = "--twin-of"
    elif "device.token_file" in values:
        raise InputError("--token-file requires --twin-of URL")
    if (faults := values.get("device.faults")) is not None:
        values["device.faults"] = _parse_faults(str(faults))
    return (
        args.config,
        {tuple(key.split(".")): value for key, value in values.items()},
        {tuple(key.split(".")): flag for key, flag in flags.items()},
    )


def _parse_faults(text: str) -> dict[str, JSON]:
    try:
        faults = parse_json(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--faults: not JSON ({error.msg})") from error
    if not isinstance(faults, dict):
        raise InputError("--faults: expected a JSON object")
    return faults
