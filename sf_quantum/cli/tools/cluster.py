"""``sfq cluster``: cluster points with one method."""

from __future__ import annotations

import argparse

from sf_quantum.cli import arguments
from sf_quantum.clustering.methods import METHODS, Ranges, apply, draw, from_file
from sf_quantum.clustering.points import digest, read_points
from sf_quantum.clustering.result import Clustering, assess, write_clustering
from sf_quantum.errors import InputError

DEFAULTS = Ranges()


def configure(parser: argparse.ArgumentParser) -> None:
    arguments.add_points(parser)
    add = parser.add_argument
    add("--method", required=True, choices=METHODS)
    add(
        "--seed",
        type=arguments.whole,
        default=0,
        help="the seed that draws the parameters, or selects them in --parameters "
        "(default 0)",
    )
    add(
        "--parameters",
        metavar="FILE",
        help="JSON file with parameters by seed and method, instead of drawing them",
    )
    add(
        "--clusters",
        type=arguments.whole_range,
        default=DEFAULTS.clusters,
        metavar="LOW:HIGH",
        help="k-means and single linkage: number of clusters (default 4:10)",
    )
    add(
        "--radius",
        type=arguments.number_range,
        default=DEFAULTS.radius,
        metavar="LOW:HIGH",
        help="DBSCAN: radius in the features' units (default 1.2:4.5)",
    )
    add(
        "--least",
        type=arguments.positive,
        default=DEFAULTS.least,
        metavar="N",
        help="DBSCAN: minimum number of points within the radius of a core point "
        "(default 10)",
    )
    add("--output", required=True, metavar="FILE", help="the clustering, as JSON")


def run(args: argparse.Namespace) -> int:
    """Cluster the points, and assess each cluster."""
    points = read_points(args.points, args.label).values
    ranges = Ranges(args.clusters, args.radius, args.least)
    given = (
        from_file(args.parameters, args.method, args.seed) if args.parameters else None
    )
    try:
        parameters = given or draw(args.method, len(points), ranges, args.seed)
        labels = apply(args.method, points, parameters)
        clusters, exact = assess(points, labels, args.exact_up_to)
    except InputError as error:
        raise InputError(f"{args.parameters or args.points}: {error}") from error
    clustering = Clustering(
        args.method, parameters, args.seed, exact, clusters, labels, digest(points)
    )
    write_clustering(args.output, clustering)
    return 0
