"""Points come from CSV, TSV and .npy; what is wrong is said in one line."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sf_quantum.clustering.points import HASHED_ROWS, LARGEST, digest, read_points
from sf_quantum.errors import InputError

VALUES = [[1.0, -2.5], [3e2, 4.0]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.csv", b"x,y\n1,-2.5\n3e2,4\n"),
        ("p.csv", b"x,y\n1,-2.5\n3e2,4"),
        ("p.csv", b"x,y\n1,-2.5\n3e2,4\n\n \n"),
        ("p.csv", b"x,y\r\n1,-2.5\r\n3e2,4\r\n"),
        ("p.csv", b"\xef\xbb\xbfx,y\n1,-2.5\n3e2,4\n"),
        ("p.csv", b'"x","y"\n1,-2.5\n3e2,4\n'),
        ("p.csv", b"x, y\n 1 , -2.5\n+3e2,4.\n"),
        ("p.txt", b"x,y\n1,-2.5\n3e2,4\n"),
        ("p.tsv", b"x\ty\n1\t-2.5\n3e2\t4\n"),
        ("p.tsv", b"\xef\xbb\xbfx\ty\r\n1\t-2.5\r\n3e2\t4\r\n"),
    ],
)
def test_text_is_read(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    points = read_points(path)
    assert points.values.tolist() == VALUES
    assert points.features == ["x", "y"]
    assert points.truth is None


@pytest.mark.parametrize("column", [0, 1, 2])
def test_the_label_column_is_truth_and_no_feature(tmp_path: Path, column: int) -> None:
    rows = [["x", "y"], ["1", "-2.5"], ["3e2", "4"]]
    for row, text in zip(rows, ["kind", "cat # 1", " nan "], strict=True):
        row.insert(column, text)
    path = tmp_path / "p.csv"
    path.write_text("\n".join(map(",".join, rows)))
    points = read_points(path, "kind")
    assert points.values.tolist() == VALUES
    assert points.features == ["x", "y"]
    assert points.truth == ["cat # 1", "nan"]


@settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.integers(1, 3).flatmap(
        lambda d: st.lists(
            st.lists(st.floats(-LARGEST, LARGEST), min_size=d, max_size=d), min_size=2
        )
    )
)
def test_every_number_survives_its_text(
    tmp_path: Path, rows: list[list[float]]
) -> None:
    spread = float(np.ptp(np.array(rows), axis=0).max())
    assume(spread == 0 or spread >= 1 / LARGEST)  # closer points are refused
    path = tmp_path / "p.csv"
    header = [f"f{i}" for i in range(len(rows[0]))]
    lines = [header, *[[repr(value) for value in row] for row in rows]]
    path.write_text("\n".join(map(",".join, lines)))
    assert read_points(path).values.tolist() == rows


@pytest.mark.parametrize(
    "array",
    [
        np.array(VALUES),
        np.array(VALUES, np.float32),
        np.array(VALUES, ">f8"),
        np.asfortranarray(VALUES),
    ],
)
def test_npy_is_read(tmp_path: Path, array: NDArray[np.generic]) -> None:
    np.save(tmp_path / "p.npy", array)
    points = read_points(tmp_path / "p.npy")
    assert points.values.tolist() == VALUES
    assert points.values.dtype == np.float64
    assert points.values.flags.c_contiguous
    assert points.features == ["column 0", "column 1"]


@pytest.mark.parametrize("kind", ["u1", "i2", "i8", "f2"])
def test_npy_of_other_numbers_becomes_double(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "p.npy", np.array([[1], [2], [3]], kind))
    assert read_points(tmp_path / "p.npy").values.tolist() == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", ": empty; expected a header and one line per point"),
        ("\n \n", ": empty; expected a header and one line per point"),
        ("x,y\n", ": 0 points; clustering needs at least two"),
        ("x,y\n1,2\n", ": 1 points; clustering needs at least two"),
        ("1,2\n3,4\n", ", line 1: numbers; expected a header with the columns' names"),
        ("x,y\n1,2\n3\n", ", line 3: 1 columns; the header has 2"),
        ("x,y\n1,2,3\n3,4\n", ", line 2: 3 columns; the header has 2"),
        ("x,y\n1,2\n\n3,4\n", ", line 3: 0 columns; the header has 2"),
        ("x\n1\n\n3\n", ", line 3: 0 columns; the header has 1"),
        ("x\n1\n \n3\n", ", line 3: 0 columns; the header has 1"),
        ("x,y\n1,2\n3,cat\n", ", line 3, y: 'cat' is not a number; TRUTH"),
        ("x,y\n1,2\n3,\n", ", line 3, y: no number; TRUTH"),
        ('x,y\n1,"cat, big"\n3,4\n', ", line 2, y: 'cat, big' is not a number; TRUTH"),
        (",x\n0,1\n1,2\n", ", line 1: column 1 has no name; each column needs a name of its own"),
        ("x,x\n0,1\n1,2\n", ", line 1: column 2 has the name 'x' again; each column needs a name of its own"),
        ("x\n1e-200\n2e-200\n", ": all points within 1e-200 of each other; scale the features"),
        ("x;y\n1;2\n3;4\n", ", line 1: columns separated by ';'; expected commas, or tabs in a file that ends in .tsv"),
        ("x,y\n1,2\nnan,4\n", ", line 3, x: nan is not a finite number up to 1e+150"),
        ("x,y\n1,inf\n3,4\n", ", line 2, y: inf is not a finite number up to 1e+150"),
        ("x,y\n1,-inf\n3,4\n", ", line 2, y: -inf is not a finite number up to 1e+150"),
        ("x,y\n1,2\n3,1e999\n", ", line 3, y: inf is not a finite number up to 1e+150"),
        ("x,y\n1,2\n3,-1e200\n", ", line 3, y: -1e+200 is not a finite number up to 1e+150"),
    ],
)  # fmt: skip
def test_bad_text_is_one_line_that_says_where(
    tmp_path: Path, content: str, line: str
) -> None:
    path = tmp_path / "p.csv"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_points(path)
    truth = "name a column of ground truth with --label"
    assert str(caught.value) == f"{path}{line.replace('TRUTH', truth)}"


@pytest.mark.parametrize("text", ["1_000", "٣"])
def test_a_number_only_python_reads_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(f"x,y\n1,2\n3,{text}\n")
    with pytest.raises(InputError, match=f"^{path}: could not convert .*{text}"):
        read_points(path)


@pytest.mark.parametrize(
    ("label", "line"),
    [
        ("z", ", line 1: no column 'z'; there are: x, y"),
        ("X", ", line 1: no column 'X'; there are: x, y"),
    ],
)
def test_a_label_that_is_no_column(tmp_path: Path, label: str, line: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text("x,y\n1,2\n3,4\n")
    with pytest.raises(InputError) as caught:
        read_points(path, label)
    assert str(caught.value) == f"{path}{line}"


def test_a_label_as_the_only_column_leaves_no_feature(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("x\n1\n2\n")
    with pytest.raises(InputError, match="no feature; give at least one numeric"):
        read_points(path, "x")


def test_text_that_is_no_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes("größe,y\n1,2\n3,4\n".encode("latin-1"))
    with pytest.raises(
        InputError, match="cannot be read as points: it is not text in UTF-8"
    ):
        read_points(path)


@pytest.mark.parametrize("name", ["p.csv", "p.npy"])
def test_a_missing_file_and_a_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InputError) as missing:
        read_points(path)
    assert str(missing.value) == (
        f"{path}: cannot be read as points: No such file or directory"
        "; name a readable file"
    )
    path.mkdir()
    with pytest.raises(InputError) as folder:
        read_points(path)
    assert (
        str(folder.value)
        == f"{path}: cannot be read as points: Is a directory; name a readable file"
    )


@pytest.mark.parametrize(
    ("array", "line"),
    [
        (np.ones(3), "an array of float64 with shape (3,)"),
        (np.ones((2, 2, 2)), "an array of float64 with shape (2, 2, 2)"),
        (np.array(5.0), "an array of float64 with shape ()"),
        (np.ones((3, 2), complex), "an array of complex128 with shape (3, 2)"),
        (np.ones((3, 2), bool), "an array of bool with shape (3, 2)"),
        (np.array([["a"], ["b"]]), "an array of <U1 with shape (2, 1)"),
    ],
)
def test_npy_of_no_points(
    tmp_path: Path, array: NDArray[np.generic], line: str
) -> None:
    path = tmp_path / "p.npy"
    np.save(path, array)
    with pytest.raises(InputError) as caught:
        read_points(path)
    assert str(caught.value) == (
        f"{path}: {line}; expected n points by d features, numbers"
    )


@pytest.mark.parametrize(
    "content", [b"", b"x,y\n1,2\n", b"PK\x03\x04", b"\x93NUMPY\x01\x00v\x00{'descr'"]
)
def test_a_file_that_is_no_npy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.npy"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_points(path)
    assert str(caught.value) == f"{path}: not a .npy file of numbers"


def test_npy_of_objects_or_several_arrays_or_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    np.save(path, np.array([[1, "a"], [{}, 2]], object))
    contents = [path.read_bytes()]
    with path.open("wb") as file:
        np.savez(file, a=np.ones((3, 2)))
    contents.append(path.read_bytes())
    np.save(path, np.ones((30, 2)))
    contents.append(path.read_bytes()[:-8])
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"not a \.npy file of numbers$"):
            read_points(path)


def test_npy_that_is_not_finite_or_too_few_or_has_no_feature(tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    for array, line in [
        (np.array([[0, 1], [2, np.nan]]), ", row 1, column 1: nan is not a finite number"),
        (np.ones((1, 2)), ": 1 points"),
        (np.ones((0, 2)), ": 0 points"),
        (np.ones((3, 0)), ": no feature"),
    ]:  # fmt: skip
        np.save(path, array)
        with pytest.raises(InputError) as caught:
            read_points(path)
        assert str(caught.value).startswith(f"{path}{line}")


def test_npy_has_no_label(tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    np.save(path, np.ones((3, 2)))
    with pytest.raises(InputError, match=r"no column 'kind' in a \.npy file; drop"):
        read_points(path, "kind")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.integers(-(10**25), 10**25),
                st.integers(-(2**54), 2**54),
                st.builds(lambda n, k: n << k, st.integers(0, 99), st.integers(50, 90)),
            ),
            st.sampled_from(["", " ", "+", "0000"]),
        ),
        min_size=2,
        max_size=4,
    )
)
def test_whole_numbers_are_kept_or_refused_by_line(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("points")
    wrong = [i for i, (n, _) in enumerate(numbers) if float(n) != n]
    texts = [f"{before}{n}" if n >= 0 else str(n) for n, before in numbers]
    for name, lines in (
        ("p.csv", ["x,kind", *(f"{text},a" for text in texts)]),
        ("p.tsv", ["kind\tx", *(f'"a"\t{text}' for text in texts)]),
    ):
        path = folder / name
        path.write_text("\n".join(lines))
        if wrong:
            words = f"line {wrong[0] + 2}, x: {texts[wrong[0]].strip()} is rounded by"
            with pytest.raises(InputError, match=re.escape(words)):
                read_points(path, "kind")
        else:
            values = read_points(path, "kind").values
            assert [int(value) for (value,) in values] == [n for n, _ in numbers]


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**64 - 1])
def test_whole_numbers_of_npy_that_doubles_round(tmp_path: Path, number: int) -> None:
    path = tmp_path / "p.npy"
    kind = np.uint64 if number > 2**63 else np.int64
    np.save(path, np.array([[1, 2], [1, number]], kind))
    with pytest.raises(InputError, match=f", row 1, column 1: {number} is rounded by"):
        read_points(path)
    np.save(path, np.array([[1, 2], [1, number & ~0xFFF]], kind))
    assert int(read_points(path).values[1, 1]) == number & ~0xFFF


def test_npy_with_a_second_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    with path.open("wb") as file:
        np.save(file, np.ones((3, 2)))
        np.save(file, np.ones((3, 2)))
    with pytest.raises(InputError, match="data after the array; expected one array"):
        read_points(path)


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (['1,"a', "2,b", "3,c"], 2),
        (["1,a", '2,"b', "3,c"], 3),
        (["1,a", '2,"b', '3,"c'], 3),
        (["1,a", '2,"b', 'c"', "3,c"], 3),
        (["1,a", '"2"2,"b"', "3,c"], 3),
        (["1,a", '2,b"', '3,"c'], 4),
        (["1,a", "2,b", '3,"' + "c" * 200_000 + '"'], 4),
    ],
)
def test_quotes_that_would_swallow_points_are_refused(
    tmp_path: Path, lines: list[str], number: int
) -> None:
    path = tmp_path / "q.csv"
    path.write_text("\n".join(["x,kind", *lines]))
    with pytest.raises(InputError, match=f", line {number}: wrong quotes"):
        read_points(path, "kind")


def test_quoted_cells_are_read_as_csv_says(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('"x","the, kind"\n"1","cat, big"\n2,"dog"\n')
    points = read_points(path, "the, kind")
    assert points.values.tolist() == [[1.0], [2.0]]
    assert points.truth == ["cat, big", "dog"]


def test_equal_points_have_the_same_hash() -> None:
    points = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 0.0]])
    assert digest(points) == "07fa5efd0b76f497"
    assert digest(np.where(points == 0, -0.0, points)) == digest(points)
    assert digest(np.asfortranarray(points)) == digest(points)
    assert digest(points[::-1]) != digest(points)
    assert digest(points.reshape(2, 3)) != digest(points)


def test_points_of_several_blocks_are_hashed_without_a_copy() -> None:
    points = np.random.default_rng(0).random((10 * HASHED_ROWS + 1, 4))
    changed = points.copy()
    changed[-1, -1] = 2.0
    assert digest(changed) != digest(points)
    tracemalloc.start()
    try:
        digest(points)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < points.nbytes / 4
