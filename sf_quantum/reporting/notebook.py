"""A report for a notebook: the table of attempts, and the timeline."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape

from sf_quantum.reporting import pictures, report, run_usage
from sf_quantum.reporting.attempts import JobAttempt
from sf_quantum.reporting.run_usage import RunUsage
from sf_quantum.text import plural

# maximum number of rows of the table, and of attempts in the picture
ROWS, DRAWN = 100, 1000


def html(
    attempts: list[JobAttempt], held: RunUsage, title: str, why: Sequence[str]
) -> str:
    """Return the report as HTML, in which every text from a workflow is escaped.

    :param why: reasons for the run's failure
    """
    parts = [f"<p><b>{escape(title)}</b></p>", *_table(report.cells(attempts))]
    texts = (*why, report.totals(attempts), run_usage.table(held))
    parts += [f"<pre>{escape(text)}</pre>" for text in texts if text]
    if (picture := _picture(attempts)) is not None:
        image = base64.b64encode(picture).decode()
        source = f"data:image/png;base64,{image}"
        parts.append(f'<img alt="timeline" style="max-width: 100%" src="{source}">')
    # The classes prevent MathJax from interpreting a dollar in a name as a formula, which may
    # contain links.
    return "\n".join(['<div class="tex2jax_ignore mathjax_ignore">', *parts, "</div>"])


def _table(lines: Sequence[tuple[str, ...]]) -> Iterator[str]:
    header, *rows = lines
    yield "<table>"
    yield f"<thead><tr>{_cells('th', header)}</tr></thead>"
    yield "<tbody>"
    yield from (f"<tr>{_cells('td', row)}</tr>" for row in rows[:ROWS])
    yield "</tbody></table>"
    if (more := len(rows) - ROWS) > 0:
        yield f"<p>and {plural(more, 'more attempt')}: pandas.DataFrame(report)</p>"


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _picture(attempts: list[JobAttempt]) -> bytes | None:
    figure = pictures.timeline(attempts) if len(attempts) <= DRAWN else None
    if figure is None:
        return None
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
