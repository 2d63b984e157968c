"""What is to be read in a picture is in it, and nothing is drawn over something else."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sf_quantum import structs
from sf_quantum.clustering import picture
from sf_quantum.clustering.consensus import BestInput, Figures, Iteration, State
from sf_quantum.clustering.points import Points
from sf_quantum.journal.events import Qpu
from sf_quantum.reporting import pictures
from sf_quantum.reporting.attempts import JobAttempt
from tests.support.journals import typed
from tests.support.pictures import illegible


def iteration(score: float) -> Iteration:
    counts = dict.fromkeys((one.name for one in fields(Figures)), 1)
    figures = {**counts, "score": score, "exact": True}
    return structs.read(
        Iteration, {**figures, "iteration": 1, "seed": 1, "clusterings": []}
    )


@pytest.mark.parametrize(("iterations", "labelled"), [(10, 10), (60, 1)])
def test_scores_of_many_iterations_do_not_cover_each_other(
    iterations: int, labelled: int
) -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, 40).tolist()
    scores = random.uniform(0.4, 0.7, iterations)
    records = [iteration(score) for score in scores]
    clusterings = [BestInput(f"kmeans {number}", {}, labels) for number in range(2)]
    state = State(records, int(scores.argmax()) + 1, labels, clusterings)
    names = ["length / cm", "a name that is much too long to stand beside its axis"]
    points = Points(random.normal(size=(40, 2)), names, None)
    figure = picture.draw(points, state, 0.8)
    figure.draw_without_rendering()
    assert illegible(figure) == []
    annotated = [text for text in figure.axes[-1].texts if text.get_text()]
    assert len(annotated) == labelled
    assert f"{scores.max():.4f}" in [text.get_text() for text in annotated]


def test_a_timeline_of_many_steps_has_them_all_in_its_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[Figure]()
    save = Figure.savefig

    def saved(figure: Figure, file: str, format: str) -> None:
        drawn.append(figure)
        save(figure, file, format=format)

    monkeypatch.setattr(Figure, "savefig", saved)
    names = [f"{'preparation-of-the-data/' * 3}step-{n}" for n in range(25)]
    rows = [
        JobAttempt(
            *(name, f"0.{number}", 1, 1, 20.0 * number),
            location=f"deployment/{'node-with-a-long-name-' * 3}{number % 3}",
            started=20.0 * number + 3,
            ended=20.0 * number + 19,
            status="completed",
        )
        for number, name in enumerate(names)
    ]
    pictures.draw_timeline(rows, tmp_path / "t.png")
    (figure,) = drawn
    assert illegible(figure) == []
    (legend,) = figure.legends
    keys = [text.get_text() for text in legend.get_texts()]
    assert [key.rpartition("/")[2] for key in keys] == [
        *(f"step-{number}" for number in range(25)),
        "waiting (lighter)",
    ]
    (axes,) = figure.axes
    assert axes.get_ylabel() == "location"
    assert axes.get_xlabel().startswith("seconds since")


def test_a_timeline_shows_how_long_a_qpu_was_held() -> None:
    """The wait for a lease is a wait, and not a run."""
    (qpu_job,) = typed([{"event": "qpu", "qpu": "q$1$"}])
    assert isinstance(qpu_job, Qpu)
    attempt = JobAttempt(
        *("solve", "0", 0, 1, 0.0),
        location="nodes",
        started=1.0,
        ended=9.0,
        status="completed",
        qpu_jobs=[qpu_job, qpu_job],
        waits={"a lease of q$1$": 3.0},
    )
    figure = pictures.timeline([attempt])
    assert figure is not None
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["nodes", "QPU q$1$"]
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    ran, held = (bar for bar in bars if bar.get_height() == 0.72)
    assert (ran.get_x(), ran.get_width()) == (held.get_x(), held.get_width()) == (4, 5)
    assert pictures.timeline([]) is None
