"""``sfq serve``: run the QPU service."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sf_quantum.errors import InputError

TECHNOLOGIES = "annealer, superconducting or neutral-atom"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        'When it listens, it prints one line of JSON, {"url": "..."}. '
        "SIGTERM and Ctrl-C stop it: the running job is cancelled, waiting jobs stay "
        "in the state folder."
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", type=Path, metavar="PATH", help="Unix socket")
    where.add_argument(
        "--host", default="127.0.0.1", help="loopback address (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="0 takes any free one (default)"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="folder for jobs and results; without it they end with the service",
    )
    parser.add_argument(
        "--name", default="emulator", help="of the QPU (default emulator)"
    )
    parser.add_argument(
        "--technology", default="annealer", help=f"{TECHNOLOGIES} (default annealer)"
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="seconds to wait per second of the real QPU, 0 for none (default 1)",
    )
    parser.add_argument(
        "--vqpus", type=int, default=1, help="leases held at once (default 1)"
    )
    parser.add_argument(
        "--qubits", type=int, default=5000, help="largest problem (default 5000)"
    )
    parser.add_argument(
        "--seed", type=int, help="for jobs without a seed, and for the faults"
    )
    parser.add_argument(
        "--faults",
        default="{}",
        metavar="JSON",
        help='{"fail": 0..1, "slow": 1 or more, "offline": 0..1}',
    )
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="stop when standard input closes, and remove the state folder made here",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop.

    :returns: 0
    :raises InputError: if an option is wrong
    """
    faults = _faults(args.faults)
    if args.vqpus < 1:
        raise InputError(f"--vqpus {args.vqpus}: expected 1 or more")
    # the web framework is imported only once the options are read
    from sf_quantum.service.device import Device, Faults
    from sf_quantum.service.run import Settings, serve

    device = Device(
        name=args.name,
        technology=args.technology,
        time_scale=args.time_scale,
        qubits=args.qubits,
        seed=args.seed,
        faults=Faults.from_mapping(faults),
    )
    serve(
        Settings(
            device,
            vqpus=args.vqpus,
            socket=args.socket,
            host=args.host,
            port=args.port,
            state=args.state,
            until_eof=args.until_eof,
        ),
        ready=lambda url: print(json.dumps({"url": url}), flush=True),
    )
    return 0


def _faults(text: str) -> dict[str, float]:
    try:
        faults = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--faults: not JSON ({error.msg})") from error
    if not isinstance(faults, dict):
        raise InputError("--faults: expected a JSON object")
    return faults
