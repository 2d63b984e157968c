"""The tools ``cluster``, ``qubo``, ``score`` and ``plot``: files in, files out, or one line."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pytest
from dimod import BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_score

from sf_quantum.cli import main
from sf_quantum.clustering.methods import canonical, single_linkage
from sf_quantum.clustering.points import read_points
from sf_quantum.clustering.result import assess, read_clustering
from sf_quantum.files import JSON, read_json, write_json

METHODS = ("kmeans", "dbscan", "single-linkage")
# dimod has no types for them
from_samples: Callable[..., SampleSet] = SampleSet.from_samples
serializable: Callable[[SampleSet], JSON] = SampleSet.to_serializable


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with three blobs of ten points in ``points.csv``."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    centres = np.repeat([[0, 0], [9, 0], [0, 9]], 10, axis=0)
    write_points("points.csv", centres + random.normal(size=(30, 2)))
    return tmp_path


def write_points(name: str, points: NDArray[np.floating]) -> None:
    header = ",".join(f"f{i}" for i in range(points.shape[1]))
    np.savetxt(name, points, delimiter=",", header=header, comments="")


def write_labels(name: str, labels: list[int], method: str = "kmeans") -> None:
    """A clustering file with labels made by hand."""
    sizes = np.bincount([label for label in labels if label >= 0])
    clusters = [
        {"label": i, "size": int(s), "silhouette": 0.5, "error": 0.0}
        for i, s in enumerate(sizes)
    ]
    content = {"type": "clustering", "method": method, "parameters": {}, "seed": 0}
    content |= {"exact": True, "clusters": clusters, "labels": labels}
    write_json(name, cast(JSON, content))


def write_samples(name: str, rows: list[list[int]], energies: list[float]) -> None:
    samples = from_samples(
        rows, "BINARY", energies, info={"sampler": "test", "seed": 3}
    )
    write_json(name, serializable(samples))


def read(name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(Path(name).read_text()))


class Sfq:
    """Runs ``sfq`` in process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> None:
        """Succeed, and say nothing."""
        assert main([str(a) for a in arguments]) == 0
        assert self.capsys.readouterr() == ("", "")

    def refuses(self, *arguments: object, status: int = 2) -> str:
        """Fail as bad input does.

        :param status: exit status of another failure
        :returns: its one line, without ``sfq TOOL:``
        """
        assert main([str(a) for a in arguments]) == status
        out, err = self.capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith(f"sfq {arguments[0]}: ")
        return err.removeprefix(f"sfq {arguments[0]}: ").removesuffix("\n")

    def misuse(self, *arguments: object) -> str:
        """Fail as argparse does.

        :returns: its last line
        """
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        assert stop.value.code == 2
        return self.capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def sfq(capsys: pytest.CaptureFixture[str]) -> Sfq:
    return Sfq(capsys)


def cluster(
    method: str = "kmeans", *more: object, points: str = "points.csv"
) -> list[object]:
    return [
        "cluster", "--points", points, "--method", method, "--clusters", "3",
        "--radius", "1.5", "--least", "3", "--output", "out.json", *more,
    ]  # fmt: skip


def score(*more: object, points: str = "points.csv") -> list[object]:
    return [
        "score",
        "--points",
        points,
        "a.json",
        "b.json",
        "--samples",
        "s.json",
        *more,
    ]


@pytest.fixture
def solved() -> None:
    """Two clusterings of the 30 points, and samples of both."""
    write_labels("a.json", [0] * 10 + [1] * 10 + [2] * 10)
    write_labels("b.json", [0] * 10 + [-1] * 5 + [1] * 15, "dbscan")
    write_samples(
        "s.json", [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 0, 0, 1, 0]], [-3, -2.9, 5]
    )


@pytest.fixture
def disk_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing fails half-way, as on a disk without room."""
    fdopen = os.fdopen

    def full(descriptor: int, mode: str) -> IO[Any]:
        file = fdopen(descriptor, mode)

        class Full:
            def __enter__(self) -> Full:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def write(self, data: bytes) -> int:
                file.write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

        return cast("IO[Any]", Full())

    monkeypatch.setattr("sf_quantum.files.os.fdopen", full)


class TestCluster:
    @pytest.mark.parametrize("method", METHODS)
    def test_the_file_says_what_was_done(self, sfq: Sfq, method: str) -> None:
        sfq(*cluster(method, "--seed", 7))
        points = read_points("points.csv").values
        result = read_clustering("out.json", 30)
        assert (result.method, result.seed, result.exact) == (method, 7, True)
        assert result.clusters == assess(points, result.labels, 1_000)[0]
        assert len(result.clusters) >= 2

    def test_the_ranges_are_what_is_drawn_from(self, sfq: Sfq) -> None:
        sfq(*cluster("dbscan"))
        assert read("out.json")["parameters"] == {"radius": 1.5, "least": 3}
        sfq(*cluster("single-linkage"))
        assert read("out.json")["parameters"] == {"clusters": 3}
        points = read_points("points.csv").values
        assert read("out.json")["labels"] == single_linkage(points, 3).tolist()

    def test_the_same_seed_writes_the_same_bytes(self, sfq: Sfq) -> None:
        written = set()
        for _ in range(2):
            sfq(*cluster("kmeans", "--seed", 3))
            written.add(Path("out.json").read_bytes())
        assert len(written) == 1

    def test_parameters_come_from_a_file(self, sfq: Sfq) -> None:
        write_json("p.json", {"4": {"kmeans": {"centres": [0, 15]}}})
        sfq(*cluster("kmeans", "--parameters", "p.json", "--seed", 4))
        assert read("out.json")["parameters"] == {"centres": [0, 15]}

    def test_above_the_bound_silhouettes_are_estimates(self, sfq: Sfq) -> None:
        sfq(*cluster("kmeans", "--exact-up-to", 29))
        assert read("out.json")["exact"] is False
        sfq(*cluster("kmeans", "--exact-up-to", 30))
        assert read("out.json")["exact"] is True

    def test_a_text_column_is_left_out_by_label(self, sfq: Sfq) -> None:
        first, *rest = Path("points.csv").read_text().splitlines()
        lines = [f"{first},kind", *(f"{line},cat" for line in rest)]
        Path("labelled.csv").write_text("\r\n".join(lines))
        sfq(*cluster("kmeans", "--label", "kind", points="labelled.csv"))
        labels = read("out.json")["labels"]
        sfq(*cluster("kmeans"))
        assert labels == read("out.json")["labels"]

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("d", [1, 5])
    def test_any_number_of_features(self, sfq: Sfq, method: str, d: int) -> None:
        write_points("d.csv", np.random.default_rng(0).normal(size=(20, d)))
        sfq(*cluster(method, points="d.csv"))
        assert len(read("out.json")["labels"]) == 20

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("places", [1, 4])
    def test_duplicate_points(self, sfq: Sfq, method: str, places: int) -> None:
        write_points("same.csv", 9.0 * (np.arange(20)[:, None] % places))
        sfq(*cluster(method, points="same.csv"))
        assert len(read("out.json")["labels"]) == 20

    def test_no_cluster_is_no_error(self, sfq: Sfq) -> None:
        sfq(*cluster("dbscan", "--least", 31))
        assert read("out.json")["clusters"] == []
        assert set(read("out.json")["labels"]) == {-1}

    @pytest.mark.parametrize(
        ("content", "line"),
        [
            (None, ": cannot be read as points: No such file or directory; name a readable file"),
            ("", ": empty; expected a header and one line per point"),
            ("x,y\n", ": 0 points; clustering needs at least two"),
            ("x,y\n1,2\n", ": 1 points; clustering needs at least two"),
            ("x,y\n1,2\n3,4\n",
             ": 3 clusters of 2 points: choose from 1 to 2 (--clusters)"),
            ("x,y\n1,cat\n2,dog\n", ", line 2, y: 'cat' is not a number; "
             "name a column of ground truth with --label"),
            ("x,y\n1,2\n3,4\n5\n", ", line 4: 1 columns; the header has 2"),
            ("x,y\n1,2\n3,nan\n", ", line 3, y: nan is not a finite number up to 1e+150"),
            ("x,y\ninf,2\n3,4\n", ", line 2, x: inf is not a finite number up to 1e+150"),
        ],
    )  # fmt: skip
    def test_bad_points(self, sfq: Sfq, content: str | None, line: str) -> None:
        if content is not None:
            Path("bad.csv").write_text(content)
        assert sfq.refuses(*cluster(points="bad.csv")) == f"bad.csv{line}"
        assert not Path("out.json").exists()

    def test_a_label_that_is_no_column(self, sfq: Sfq) -> None:
        line = "points.csv, line 1: no column 'kind'; there are: f0, f1"
        assert sfq.refuses(*cluster("kmeans", "--label", "kind")) == line

    @pytest.mark.parametrize(
        ("content", "line"),
        [
            ({"1": {}}, ": no seed 0; the seeds are 1"),
            ({"0": {"kmeans": {"centers": [1]}}},
             ", 0.kmeans: expected an object with centres"),
            ({"0": {"kmeans": {"centres": [1, 30]}}},
             ": centre 30: no such point; rows are 0 to 29"),
            ({"0": {"kmeans": {"centres": [0] * 31}}},
             ": 31 clusters of 30 points: choose from 1 to 30 (--clusters)"),
        ],
    )  # fmt: skip
    def test_bad_parameters(
        self, sfq: Sfq, content: dict[str, JSON], line: str
    ) -> None:
        write_json("p.json", content)
        assert (
            sfq.refuses(*cluster("kmeans", "--parameters", "p.json")) == f"p.json{line}"
        )
        assert not Path("out.json").exists()

    @pytest.mark.parametrize(
        ("option", "value", "line"),
        [
            ("--method", "kmedians", "invalid choice: 'kmedians'"),
            (
                "--clusters",
                "5:4",
                "'5:4': expected a range such as 4:10, the lower bound first",
            ),
            ("--clusters", "0:4", "'0:4': expected a range such as 4:10"),
            ("--clusters", "4:10:2", "'4:10:2': expected a range such as 4:10"),
            ("--clusters", "2.5", "'2.5': expected a range such as 4:10"),
            ("--radius", "2:1", "'2:1': expected a range such as 1.2:4.5"),
            ("--radius", "0:1", "'0:1': expected a range such as 1.2:4.5"),
            ("--radius", "1:inf", "'1:inf': expected a range such as 1.2:4.5"),
            ("--radius", "nan", "'nan': expected a range such as 1.2:4.5"),
            ("--least", "0", "'0': expected a whole number of at least 1"),
            ("--seed", "-1", "'-1': expected a whole number of at least 0"),
            ("--seed", "x", "'x': expected a whole number of at least 0"),
            ("--exact-up-to", "1e5", "'1e5': expected a whole number of at least 0"),
        ],
    )
    def test_bad_options(self, sfq: Sfq, option: str, value: str, line: str) -> None:
        last = sfq.misuse(*cluster("kmeans", f"{option}={value}"))
        assert last.startswith(f"sfq cluster: argument {option}: {line}")

    def test_an_unknown_option_and_a_missing_one(self, sfq: Sfq) -> None:
        last = sfq.misuse(*cluster("kmeans", "--colour", "red"))
        said = "unrecognized arguments: --colour red (see sfq cluster --help)"
        assert last == f"sfq cluster: {said}"
        last = sfq.misuse("serve", "--prot", "8700")
        said = "unrecognized arguments: --prot 8700; did you mean --port? (see"
        assert last == f"sfq serve: {said} sfq serve --help)"
        last = sfq.misuse("serve", "--por", "8700")
        assert "unrecognized arguments: --por 8700; did you mean --port?" in last
        last = sfq.misuse("jobs", "list", "--every")
        assert last.endswith("(see sfq jobs list --help)")
        last = sfq.misuse("admin", "audit", "--limmit=3")
        assert last.startswith("sfq admin audit: ")
        assert "did you mean --limit?" in last
        last = sfq.misuse("cluster")
        assert "required: --points, --method, --output (see sfq" in last

    def test_a_traceback_only_with_debug(self, sfq: Sfq) -> None:
        from sf_quantum.errors import InputError

        with pytest.raises(InputError):
            main([str(a) for a in cluster("kmeans", "--debug", points="no.csv")])

    @pytest.mark.parametrize(
        "words",
        ["jobs list --debug", "jobs --debug list", "--debug jobs list", "jobs list"],
    )
    def test_a_traceback_of_a_subcommand(self, words: str) -> None:
        from sf_quantum.errors import InputError

        debug = "--debug" in words
        with pytest.raises(InputError) if debug else nullcontext():
            assert main([*words.split(), "--url", "nowhere"]) == 2


class TestOutput:
    """What holds of every tool that writes."""

    TOOLS = pytest.mark.parametrize(
        ("tool", "output"),
        [
            (cluster(), "out.json"),
            (["qubo", "a.json", "b.json"], "p.json"),
            (score(), "state.json"),
            (["solve", "--problem", "p.json", "--reads", "1"], "s.json"),
            (["plot", "--points", "points.csv", "--state", "before.json"], "p.png"),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )

    @pytest.fixture(autouse=True)
    def state(self, solved: None, sfq: Sfq) -> None:
        Path("before").mkdir()
        sfq(*score("--outdir", "before"))
        Path("before/state.json").rename("before.json")
        sfq("qubo", "a.json", "b.json", "--output", "p.json")

    def into(self, tool: list[object], folder: str, output: str) -> list[object]:
        if tool[0] == "score":
            return [*tool, "--outdir", folder]
        return [*tool, "--output", f"{folder}/{output}"]

    @TOOLS
    @pytest.mark.parametrize(
        ("place", "why"),
        [("none", "No such file or directory"), ("a.json", "Not a directory")],
    )
    def test_no_folder(
        self, sfq: Sfq, tool: list[object], output: str, place: str, why: str
    ) -> None:
        assert sfq.refuses(*self.into(tool, place, output)) == (
            f"{place}/{output}: cannot be written: {why}; "
            "name an existing, writable folder"
        )

    @TOOLS
    def test_no_permission(
        self, sfq: Sfq, tool: list[object], output: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(**_: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        # root may write to a folder without permission
        monkeypatch.setattr("sf_quantum.files.tempfile.mkstemp", refuse)
        line = sfq.refuses(*self.into(tool, ".", output))
        assert line.startswith(f"{output}: cannot be written: Permission denied; ")

    @TOOLS
    @pytest.mark.usefixtures("disk_full")
    def test_a_full_disk_leaves_what_was_there(
        self, sfq: Sfq, tool: list[object], output: str
    ) -> None:
        Path("out").mkdir()
        Path("out", output).write_text("old")
        # not 2, with which a candidate would not be tried on another machine
        assert sfq.refuses(*self.into(tool, "out", output), status=1) == (
            f"out/{output}: cannot be written: No space left on device; "
            "make room on this machine, or use another one"
        )
        assert os.listdir("out") == [output]
        assert Path("out", output).read_text() == "old"


@pytest.mark.usefixtures("solved")
class TestQubo:
    def test_the_file_holds_the_model_and_its_candidates(self, sfq: Sfq) -> None:
        sfq("qubo", "a.json", "b.json", "--weights", "size",
            "--penalty", "candidates", "--output", "p.json")  # fmt: skip
        problem = read("p.json")
        assert problem["weights"] == "size"
        assert problem["penalty"] == "candidates"
        assert (problem["points"], problem["atoms"]) == (30, 4)
        sizes = [c["size"] for c in problem["candidates"]]
        assert sizes == [10, 10, 10, 10, 15]
        # rounded so that equal sums of sizes are equal sums of weights
        expected = pytest.approx([s / 15 for s in sizes], rel=1e-9)
        weights = [c["weight"] for c in problem["candidates"]]
        assert weights == expected
        model = BinaryQuadraticModel.from_serializable(problem["bqm"])
        assert [-model.get_linear(i) for i in range(len(sizes))] == weights
        pairs = {frozenset(pair): bias for pair, bias in model.quadratic.items()}
        assert pairs == dict.fromkeys(map(frozenset, [(0, 3), (1, 4), (2, 4)]), 5)

    def test_the_default_is_quality_and_tight(self, sfq: Sfq) -> None:
        sfq("qubo", "a.json", "b.json", "--output", "p.json")
        problem = read("p.json")
        assert (problem["weights"], problem["penalty"]) == ("quality", "tight")

    def test_labels_of_another_length(self, sfq: Sfq) -> None:
        write_labels("c.json", [0] * 29)
        line = sfq.refuses("qubo", "a.json", "b.json", "c.json", "--output", "p.json")
        assert line == "c.json: 29 labels, but there are 30 points"

    def test_no_cluster_at_all(self, sfq: Sfq) -> None:
        write_labels("n.json", [-1] * 30)
        assert sfq.refuses("qubo", "n.json", "n.json", "--output", "p.json") == (
            "n.json, n.json: no cluster in any of them; nothing to aggregate "
            "(for DBSCAN, raise --radius)"
        )

    @pytest.mark.parametrize(
        "change",
        [
            {"labels": None}, {"labels": "no"}, {"labels": [0.5] * 30}, {"labels": []},
            {"labels": [[0] * 30]}, {"labels": [0] * 30}, {"labels": [-2] + [0] * 29},
            {"labels": [0] * 10 + [1] * 10 + [2] * 9 + [-2]},
            {"clusters": None}, {"clusters": [{}]}, {"clusters": []}, {"method": "kmedians"},
            {"seed": None}, {"seed": "x"},
        ],
    )  # fmt: skip
    def test_a_file_that_is_no_clustering(
        self, sfq: Sfq, change: dict[str, JSON]
    ) -> None:
        write_json("c.json", read("a.json") | change)
        line = sfq.refuses("qubo", "c.json", "--output", "p.json")
        assert line.startswith("c.json: not a clustering as sfq cluster writes it (")

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("label", 1),
            ("size", 11),
            ("silhouette", float("nan")),
            ("silhouette", None),
        ],
    )
    def test_a_cluster_that_does_not_agree(
        self, sfq: Sfq, key: str, value: JSON
    ) -> None:
        content = read("a.json")
        content["clusters"][0][key] = value
        Path("c.json").write_text(json.dumps(content))
        line = sfq.refuses("qubo", "c.json", "--output", "p.json")
        assert line.startswith("c.json: not a clustering as sfq cluster writes it (")

    def test_a_label_below_that_of_noise(self, sfq: Sfq) -> None:
        write_labels("c.json", [0] * 29 + [-2])
        line = sfq.refuses("qubo", "c.json", "--output", "p.json")
        assert "labels: expected a list of whole numbers from -1" in line

    def test_unknown_weights_and_penalty_and_no_file(self, sfq: Sfq) -> None:
        for option in ("--weights", "--penalty"):
            last = sfq.misuse("qubo", "a.json", option, "x", "--output", "p.json")
            assert f"argument {option}: invalid choice: 'x'" in last
        assert sfq.refuses("qubo", "no.json", "--output", "p.json") == (
            "no.json: cannot be read as clustering: No such file or directory; name a readable file"
        )


@pytest.mark.usefixtures("solved")
class TestScore:
    def test_the_best_sample_is_written_everywhere(self, sfq: Sfq) -> None:
        sfq(*score("--threshold", 0.7))
        points = read_points("points.csv").values
        labels = [0] * 10 + [1] * 10 + [2] * 10
        expected = silhouette_score(cdist(points, points), labels, metric="precomputed")
        header, *lines = Path("labels.csv").read_text().splitlines()
        assert (header, [int(line) for line in lines]) == ("label", labels)
        answer = read("cwl.output.json")
        assert answer.pop("score") == pytest.approx(expected)
        assert answer == {
            "again": False,
            "next_seed": 1,
            "iteration": 1,
            "state": {"class": "File", "path": "state.json"},
            "summary": {"class": "File", "path": "summary.json"},
            "labels": {"class": "File", "path": "labels.csv"},
        }
        summary = read("summary.json")
        # people read it
        assert Path("summary.json").read_text() == json.dumps(summary, indent=2) + "\n"
        assert summary["score"] == pytest.approx(expected)
        assert (summary["reached"], summary["clusters"]) == (True, 3)
        (record,) = summary["per_iteration"]
        assert (record["sampler"], record["sampler_seed"]) == ("test", 3)
        assert (record["reads"], record["feasible_reads"]) == (3, 2)
        assert record["scored_samples"] == 2

    def test_clusterings_in_another_order_are_another_problem(self, sfq: Sfq) -> None:
        sfq("qubo", "a.json", "b.json", "--output", "p.json")
        sfq("solve", "--problem", "p.json", "--reads", 5, "--output", "s.json")
        sfq(*score())
        swapped = ["b.json" if a == "a.json" else a for a in score()]
        swapped[4] = "a.json"
        assert sfq.refuses(*swapped) == (
            "s.json: samples of another problem; give the same clusterings as "
            "to sfq qubo, in the same order"
        )

    def test_three_iterations_through_the_state_file(self, sfq: Sfq) -> None:
        again, best = [], []
        previous: list[object] = []
        # the second is better than the first; the third is infeasible
        samples = {4: [0, 0, 0, 1, 1], 5: [1, 1, 1, 0, 0], 6: [1, 1, 1, 1, 1]}
        for seed, row in samples.items():
            write_samples("s.json", [row], [-1.0])
            sfq(*score("--seed", seed, "--limit", 3, "--threshold", 0.99, *previous))
            answer = read("cwl.output.json")
            assert answer["next_seed"] == seed + 1
            again.append(answer["again"])
            best.append(read("state.json")["best"])
            previous = ["--previous", "state.json"]
        assert again == [True, True, False]
        assert best == [1, 2, 2]
        summary = read("summary.json")
        assert (summary["iterations"], summary["best_iteration"]) == (3, 2)
        assert [i["seed"] for i in summary["per_iteration"]] == [4, 5, 6]
        scores = [i["score"] for i in summary["per_iteration"]]
        assert summary["score"] == scores[1] == max(scores)
        assert scores[2] == -1
        labels = Path("labels.csv").read_text().split()[1:]
        assert labels == ["0"] * 10 + ["1"] * 10 + ["2"] * 10

    def test_no_feasible_sample_is_no_error(self, sfq: Sfq) -> None:
        write_samples("s.json", [[1, 1, 1, 1, 1]], [-1.0])
        sfq(*score())
        answer = read("cwl.output.json")
        assert (answer["again"], answer["score"]) == (True, -1)
        assert Path("labels.csv").read_text().split() == ["label"] + ["0"] * 30

    def test_a_consensus_of_one_cluster_is_no_error(self, sfq: Sfq) -> None:
        write_samples("s.json", [[1, 0, 0, 0, 0]], [-1.0])
        sfq(*score())
        assert read("cwl.output.json")["score"] == -1

    def test_an_infinite_window_and_threshold(self, sfq: Sfq) -> None:
        sfq(*score("--window", "inf", "--threshold", "inf", "--limit", 1))
        criteria = read("summary.json")["criteria"]
        assert (criteria["window"], criteria["threshold"]) == ("inf", "inf")
        assert read("cwl.output.json")["again"] is False

    def test_estimates_say_so(self, sfq: Sfq) -> None:
        sfq(*score("--exact-up-to", 20))
        assert read("summary.json")["exact"] is False

    @pytest.mark.parametrize("option", ["a.json", "b.json"])
    def test_labels_of_another_length(self, sfq: Sfq, option: str) -> None:
        write_labels(option, [0] * 31)
        line = f"{option}: 31 labels, but there are 30 points"
        assert sfq.refuses(*score()) == line

    def test_samples_of_another_problem(self, sfq: Sfq) -> None:
        write_samples("s.json", [[1, 1]], [0.0])
        assert sfq.refuses(*score()) == (
            "s.json: samples of 2 variables, but the clusterings have 5 clusters; "
            "give the clusterings of the problem"
        )

    def test_a_file_that_is_no_sample_set(self, sfq: Sfq) -> None:
        good = read("s.json")
        broken: list[JSON] = [
            {}, {"type": "SampleSet"}, good | {"sample_data": 3}, good | {"vectors": {}},
            good | {"variable_labels": None},
        ]  # fmt: skip
        for content in broken:
            write_json("s.json", content)
            line = sfq.refuses(*score())
            assert line.startswith("s.json: not a dimod SampleSet as sfq solve writes")

    def test_samples_without_energy(self, sfq: Sfq) -> None:
        samples = from_samples([[1, 1, 1, 0, 0]], "BINARY", [float("nan")])
        Path("s.json").write_text(json.dumps(serializable(samples)))
        assert "an energy is not a number" in sfq.refuses(*score())

    def test_a_state_of_other_points(self, sfq: Sfq) -> None:
        sfq(*score())
        Path("points.csv").write_text("x\n1\n2\n")
        write_labels("a.json", [0, 1])
        write_labels("b.json", [0, 1])
        write_samples("s.json", [[1, 1, 0, 0]], [0.0])
        line = sfq.refuses(*score("--previous", "state.json"))
        assert line == "state.json: 30 labels, but there are 2 points"

    @pytest.mark.parametrize("tool", ["score", "plot"])
    def test_a_file_that_is_no_state(self, sfq: Sfq, tool: str) -> None:
        sfq(*score())
        good = read("state.json")
        call = (
            score("--previous", "bad.json")
            if tool == "score"
            else "plot --points points.csv --state bad.json --output p.png".split()
        )
        changes: list[dict[str, JSON]] = [
            {"best": 0}, {"best": 2}, {"best": None}, {"iterations": []},
            {"iterations": [{"score": 1}]}, {"iterations": 5}, {"labels": 5},
            {"labels": ["a"] * 30}, {"labels": [[0] * 30]}, {"clusterings": [5]},
            {"clusterings": [{"labels": [0]}]}, {"clusterings": None},
        ]  # fmt: skip
        for change in changes:
            write_json("bad.json", good | change)
            line = sfq.refuses(*call)
            assert line.startswith("bad.json: not a state as sfq score writes it (")
        write_json("bad.json", {})
        assert sfq.refuses(*call).startswith("bad.json: not a state")

    @pytest.mark.parametrize(
        ("option", "value", "line"),
        [
            ("--limit", "0", "'0': expected a whole number of at least 1"),
            ("--threshold", "nan", "'nan': expected a number"),
            ("--threshold", "high", "'high': expected a number"),
            ("--window", "-0.1", "'-0.1': expected a number of at least 0"),
            ("--window", "nan", "'nan': expected a number"),
        ],
    )
    def test_bad_options(self, sfq: Sfq, option: str, value: str, line: str) -> None:
        last = sfq.misuse(*score(f"{option}={value}"))
        assert last == f"sfq score: argument {option}: {line} (see sfq score --help)"


class TestPlot:
    @pytest.mark.parametrize("d", [1, 2, 5])
    def test_a_picture_with_a_panel_for_each_clustering(self, sfq: Sfq, d: int) -> None:
        random = np.random.default_rng(d)
        write_points("points.csv", random.normal(size=(30, d)))
        write_labels("a.json", canonical(random.integers(0, 3, 30)).tolist())
        write_labels("b.json", [-1] * 30, "dbscan")
        write_samples("s.json", [[1, 1, 1], [1, 0, 0]], [-1.0, -0.9])
        sfq(*score())
        sfq(*score("--previous", "state.json"))
        sfq("plot", "--points", "points.csv", "--state", "state.json",
            "--output", "p.png")  # fmt: skip
        content = Path("p.png").read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", content[16:24]) == (3 * 4 * 110, 792)
        assert content.endswith(b"IEND\xaeB`\x82")
        sfq("plot", "--points", "points.csv", "--state", "state.json",
            "--output", "p.svg")  # fmt: skip
        assert Path("p.svg").read_bytes().startswith(b"<?xml")

    def test_a_missing_state(self, sfq: Sfq) -> None:
        line = sfq.refuses("plot", "--points", "points.csv", "--state", "no.json",
                           "--output", "p.png")  # fmt: skip
        assert (
            line
            == "no.json: cannot be read as state: No such file or directory; name a readable file"
        )
        assert not Path("p.png").exists()


def test_clusterings_of_exchanged_points_are_refused(sfq: Sfq) -> None:
    points = np.random.default_rng(1).normal(size=(30, 2))
    write_points("points.csv", points)
    write_points("exchanged.csv", points[::-1])
    sfq(*cluster("kmeans", "--output", "a.json"))
    sfq(*cluster("kmeans", "--output", "b.json", points="exchanged.csv"))
    reason = (
        "a clustering of other points, or of the same points in another order; give the "
        "file of points that sfq cluster got"
    )
    told = sfq.refuses("qubo", "a.json", "b.json", "--output", "p.json")
    assert told == f"b.json: {reason}"
    sfq("qubo", "a.json", "--output", "p.json")
    sfq("solve", "--problem", "p.json", "--sampler", "neal", "--output", "s.json")
    given = ["a.json", "--samples", "s.json"]
    told = sfq.refuses("score", "--points", "exchanged.csv", *given)
    assert told == f"a.json: {reason}"
    sfq("score", "--points", "points.csv", *given)
    content = read("a.json")
    del content["points"]  # as earlier versions wrote it
    write_json("a.json", content)
    sfq("score", "--points", "points.csv", *given)


def test_the_whole_loop_from_points_to_picture(sfq: Sfq) -> None:
    files = []
    for method in METHODS:
        sfq(*cluster(method, "--output", f"{method}.json"))
        files.append(f"{method}.json")
    sfq("qubo", *files, "--output", "problem.json")
    sfq("solve", "--problem", "problem.json", "--sampler", "neal", "--reads", 50,
        "--seed", 1, "--output", "samples.json")  # fmt: skip
    sfq("score", "--points", "points.csv", *files, "--samples", "samples.json")
    sfq("plot", "--points", "points.csv", "--state", "state.json",
        "--output", "clusters.png")  # fmt: skip
    assert read_json("summary.json", "summary")["clusters"] == 3
    assert Path("labels.csv").read_text().split()[1:] == [
        str(i) for i in np.repeat([0, 1, 2], 10)
    ]
