"""``sfq score``: score samples, write the best consensus, and decide on another iteration."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from sf_quantum.cli.arguments import (
    add_clusterings,
    add_points,
    not_negative,
    number,
    positive,
    whole,
)
from sf_quantum.clustering import consensus
from sf_quantum.clustering.consensus_qubo import identity, overlaps
from sf_quantum.clustering.points import digest, read_points
from sf_quantum.clustering.result import read_clustering
from sf_quantum.clustering.samples import read_samples
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, replacing, write_json

DEFAULTS = consensus.Criteria()


def configure(parser: argparse.ArgumentParser) -> None:
    add_points(parser)
    add = parser.add_argument
    add_clusterings(parser)
    add("--samples", required=True, metavar="FILE", help="file written by sfq solve")
    add("--previous", metavar="FILE", help="state.json of the previous iteration")
    add("--seed", type=whole, default=0, help="this iteration's seed (default 0)")
    add(
        "--threshold",
        type=number,
        default=DEFAULTS.threshold,
        help="the loop ends when the silhouette reaches this (default %(default)s)",
    )
    add(
        "--limit",
        type=positive,
        default=DEFAULTS.limit,
        help="maximum number of iterations (default %(default)s)",
    )
    add(
        "--window",
        type=not_negative,
        default=DEFAULTS.window,
        help="score samples whose energy exceeds the lowest by at most this fraction "
        "of it; inf for all (default %(default)s)",
    )
    add(
        "--outdir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder for labels.csv, summary.json, state.json and cwl.output.json",
    )


def run(args: argparse.Namespace) -> int:
    """Score one iteration, and write the state of the loop."""
    points, _, truth = read_points(args.points, args.label)
    made_of = digest(points)
    clusterings = [
        read_clustering(path, len(points), made_of) for path in args.clusterings
    ]
    overlap = overlaps(clusterings)
    samples = read_samples(args.samples, len(overlap.candidates))
    problem = samples.info.get("problem")
    if problem is not None and problem != identity(clusterings):
        raise InputError(
            f"{args.samples}: samples of another problem; give the same clusterings as "
            "to sfq qubo, in the same order"
        )
    state = consensus.State()
    if args.previous:
        state = consensus.read_state(args.previous, len(points))
    criteria = consensus.Criteria(
        args.threshold, args.limit, args.window, args.exact_up_to
    )
    best, figures = consensus.best_consensus(points, overlap, samples, criteria)
    if truth is not None:
        rand = consensus.adjusted_rand(best.labels, truth)
        figures = replace(figures, adjusted_rand=rand)
    consensus.advance(state, best, figures, clusterings, samples.info, args.seed)
    summary = consensus.summary(state, criteria, *points.shape)
    write_json(args.outdir / "state.json", consensus.state_content(state))
    write_json(args.outdir / "summary.json", summary, indent=2)
    with replacing(args.outdir / "labels.csv") as file:
        file.write("\n".join(["label", *map(str, state.labels), ""]).encode())
    answer: dict[str, JSON] = {
        "again": state.again(criteria),
        "next_seed": args.seed + 1,
        "iteration": len(state.iterations),
        "score": state.score,
    }
    for name in ("state.json", "summary.json", "labels.csv"):
        answer[Path(name).stem] = {"class": "File", "path": name}
    write_json(args.outdir / "cwl.output.json", answer)
    return 0
