"""``sfq plot``: draw the consensus next to its input clusterings, and the scores."""

from __future__ import annotations

import argparse
import os
import pwd
from pathlib import Path
from typing import cast

from sf_quantum.cli.arguments import add_points, number, picture
from sf_quantum.clustering.consensus import Criteria, read_state
from sf_quantum.clustering.points import read_points
from sf_quantum.files import replacing


def configure(parser: argparse.ArgumentParser) -> None:
    add_points(parser)
    add = parser.add_argument
    add("--state", required=True, metavar="FILE", help="state.json of sfq score")
    add(
        "--threshold",
        type=number,
        default=Criteria().threshold,
        help="the threshold, drawn as a line (default %(default)s)",
    )
    add(
        "--output",
        required=True,
        type=picture,
        metavar="FILE.png|svg",
        help="the picture",
    )


def run(args: argparse.Namespace) -> int:
    """Draw the picture."""
    _share_font_list()
    # Imported here: Matplotlib takes half a second, too long for --help and sfq check.
    from sf_quantum.clustering.picture import draw

    points = read_points(args.points, args.label)
    state = read_state(args.state, len(points.values))
    figure = draw(points, state, args.threshold)
    with replacing(args.output) as file:
        figure.savefig(cast(str, file), format=args.output.suffix[1:], dpi=110)
    return 0


def _share_font_list() -> None:
    """Let Matplotlib use the list of fonts in the user's home folder, if there is one.

    In a CWL job, ``HOME`` is the job's folder, which has no such list, so Matplotlib would
    search the machine for fonts again.
    """
    try:
        cache = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache"
    except KeyError:  # the user may be unknown in a container
        return
    if os.access(cache / "matplotlib", os.W_OK):
        os.environ.setdefault("XDG_CACHE_HOME", str(cache))
