"""What can be seen in a picture."""

from __future__ import annotations

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox, BboxBase


def illegible(figure: Figure) -> list[str]:
    """The texts that stick out of a figure or overlap, once it has been drawn."""
    unseen = set[Text]()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        # matplotlib keeps ticks beyond the ends of an axis
        beyond = (t for t in axis.get_major_ticks() if not low <= t.get_loc() <= high)
        unseen |= {tick.label1 for tick in beyond}
    seen = [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text.get_text() and text not in unseen
    ]
    return [
        *(words for words, box in seen if not _within(box, figure.bbox)),
        *(f"{a} on {b}" for (a, p), (b, q) in combinations(seen, 2) if _cover(p, q)),
    ]


def _within(box: Bbox, whole: BboxBase) -> bool:
    return bool(
        box.x0 >= whole.x0 - 1
        and box.y0 >= whole.y0 - 1
        and box.x1 <= whole.x1 + 1
        and box.y1 <= whole.y1 + 1
    )


def _cover(one: Bbox, other: Bbox) -> bool:
    common = Bbox.intersection(one, other)
    return common is not None and common.width > 2 and common.height > 2
