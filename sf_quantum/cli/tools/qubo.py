"""``sfq qubo``: build the problem whose optimum is the consensus of clusterings."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from sf_quantum.cli.arguments import add_clusterings
from sf_quantum.clustering import consensus_qubo
from sf_quantum.clustering.result import read_clustering
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, write_json
from sf_quantum.samplers.problem import document


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_clusterings(parser)
    add(
        "--weights",
        choices=consensus_qubo.WEIGHTS,
        default=consensus_qubo.WEIGHTS[0],
        help="a candidate's weight: size times mean silhouette, or size alone as in "
        "eq. 1 of Rocco et al. (default %(default)s)",
    )
    add(
        "--penalty",
        choices=consensus_qubo.PENALTIES,
        default=consensus_qubo.PENALTIES[0],
        help="the penalty of an overlap: just above the lighter weight, or the number of "
        "candidates as in eq. 1 (default %(default)s); both are exact",
    )
    add("--output", required=True, metavar="FILE", help="the problem, as JSON")
    add(
        "--outputs",
        metavar="FILE",
        help="write the CWL output object (cwl.output.json) to this file",
    )


def run(args: argparse.Namespace) -> int:
    """Build the QUBO, and write it with its candidate clusters."""
    clusterings = [read_clustering(args.clusterings[0])]
    points = clusterings[0].size
    made_of = clusterings[0].points
    clusterings += [
        read_clustering(path, points, made_of) for path in args.clusterings[1:]
    ]
    overlap = consensus_qubo.overlaps(clusterings)
    if not overlap.candidates:
        raise InputError(
            f"{', '.join(args.clusterings)}: no cluster in any of them; "
            "nothing to aggregate (for DBSCAN, raise --radius)"
        )
    model = consensus_qubo.qubo(overlap, args.weights, args.penalty)
    weight = consensus_qubo.weights(overlap.candidates, args.weights)
    write_json(
        args.output,
        {
            "type": "problem",
            "identity": consensus_qubo.identity(clusterings),
            "weights": args.weights,
            "penalty": args.penalty,
            "points": len(overlap.atoms),
            "atoms": int(overlap.members.shape[1]),
            "candidates": [
                asdict(candidate) | {"weight": float(w)}
                for candidate, w in zip(overlap.candidates, weight, strict=True)
            ],
            "bqm": document(
                [*range(len(overlap.candidates))],
                model.linear.tolist(),
                model.pairs.tolist(),
                model.quadratic.tolist(),
                "BINARY",
            ),
        },
    )
    if args.outputs is not None:
        problem: JSON = {"class": "File", "path": args.output}
        write_json(
            args.outputs, {"problem": problem, "variables": len(overlap.candidates)}
        )
    return 0
