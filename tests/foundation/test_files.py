"""A file appears whole or not at all, and what was there before stays."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import (
    JSON,
    MAX_NESTING,
    DuplicateKey,
    cannot_write,
    check_writable,
    parse_json,
    read_json,
    replacing,
    socket_in,
    write_json,
)


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """The kernel refuses to let a file grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_name_is_taken_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_block_that_fails_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException], before: str | None
) -> None:
    path = tmp_path / "a.txt"
    if before:
        path.write_text(before)

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert os.listdir(tmp_path) == (["a.txt"] if before else [])
    assert not before or path.read_text() == before


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, size: int) -> None:
    # small: found out when the file is closed; large: while it is written
    path = tmp_path / "a.txt"
    path.write_text("old")
    with (
        pytest.raises(
            QuantumError, match=f"^{path}: cannot be written: File too large; "
        ) as caught,
        disk_full_after(50),
        replacing(path) as file,
    ):
        file.write(b"x" * size)
    assert caught.value.exit_code == 1
    assert os.listdir(tmp_path) == ["a.txt"]
    assert path.read_text() == "old"


def test_a_full_disk_is_found_before_anything_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    check_writable(path)
    with pytest.raises(QuantumError, match="cannot be written"), disk_full_after(0):
        check_writable(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "status"),
    [
        *((errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EIO, 1)),
        *(
            (errno.ENOENT, 2),
            (errno.EACCES, 2),
            (errno.ENAMETOOLONG, 2),
            (errno.EROFS, 2),
        ),
    ],
)
def test_only_a_wrong_path_is_bad_input(number: int, status: int) -> None:
    error = cannot_write(Path("a.txt"), OSError(number, os.strerror(number)))
    assert error.exit_code == status
    assert isinstance(error, InputError) == (status == 2)


def test_no_space_left_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(QuantumError) as caught, replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(caught.value) == (
        f"{path}: cannot be written: No space left on device; "
        "make room on this machine, or use another one"
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("missing/a.txt", "No such file or directory"),
        ("file/a.txt", "Not a directory"),
    ],
)
def test_a_place_that_cannot_be_written(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    with pytest.raises(InputError) as caught, replacing(path) as file:
        file.write(b"new")
    assert str(caught.value) == (
        f"{path}: cannot be written: {why}; " "name an existing, writable folder"
    )
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("place", ["/dev/null", "/tmp"])
def test_only_a_file_is_replaced(place: str) -> None:
    with pytest.raises(InputError) as caught, replacing(place):
        pass
    assert str(caught.value) == f"{place}: not a file; name a file that may be replaced"


@given(st.integers(0, 2000), st.sampled_from(['[1, "[", ', '{"[\\"[": ']))
def test_json_is_read_if_it_is_not_nested_too_deeply(depth: int, opening: str) -> None:
    text = opening * depth + "1" + "]}"[opening[0] == "{"] * depth
    if depth > MAX_NESTING:
        with pytest.raises(ValueError, match="nested more than 200 deep"):
            parse_json(text)
    else:
        assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("content", ["9" * 5000, "[" * 100_000])
def test_json_that_python_cannot_hold_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(
        InputError, match=r"nested more than 200 deep|Exceeds the limit"
    ):
        read_json(path, "problem")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with (
        pytest.raises(InputError, match="Permission denied"),
        replacing(tmp_path / "a"),
    ):
        pass


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_mode_is_that_of_any_new_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        assert os.umask(before) == mask
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o666 & ~mask


def test_a_plain_name_is_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json("a.json", {"a": 1})
    assert read_json("a.json", "test") == {"a": 1}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.dictionaries(st.text(), values))
def test_json_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, JSON]
) -> None:
    path = tmp_path_factory.getbasetemp() / "survives.json"
    write_json(path, content)
    assert read_json(path, "test") == content


def test_json_may_begin_with_a_mark_of_the_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "of-an-editor.json"
    path.write_text('{"a": "\ufeffb"}', encoding="utf-8-sig")
    assert read_json(path, "test") == {"a": "\ufeffb"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path: Path, value: float) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": value})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", ", line 1: not JSON (Expecting value); expected a problem file"),
        (b'{"a": 1,\n\n"b" 2}', ", line 3: not JSON (Expecting ':' delimiter); "
         "expected a problem file"),
        (b"[1, 2]", ": expected a problem file, a JSON object"),
        (b"null", ": expected a problem file, a JSON object"),
        (b"\xff\xfe{}", ": cannot be read as problem: it is not text in UTF-8 (byte 0xff); save it in UTF-8, or name another file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_json_object(
    tmp_path: Path, content: bytes, line: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_json(path, "problem")
    assert str(caught.value) == f"{path}{line}"


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError) as missing:
        read_json(tmp_path / "a.json", "state")
    assert str(missing.value) == (
        f"{tmp_path / 'a.json'}: cannot be read as state: No such file or directory"
        "; name a readable file"
    )
    with pytest.raises(InputError, match="read as state: Is a directory"):
        read_json(tmp_path, "state")


def test_what_is_written_is_json_on_one_line(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, 2.5, None, "ü"]})
    text = (tmp_path / "a.json").read_bytes()
    assert text == b'{"a": [1, 2.5, null, "\\u00fc"]}\n'
    assert json.loads(text) == {"a": [1, 2.5, None, "ü"]}


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("unix:qpu.sock", "unix:/site/qpu.sock"),
        ("unix:run/qpu.sock", "unix:/site/run/qpu.sock"),
        ("unix:/run/qpu.sock", "unix:/run/qpu.sock"),
        ("unix:~/qpu.sock", f"unix:{Path.home()}/qpu.sock"),
        ("unix:", "unix:"),
        ("https://qpu.site", "https://qpu.site"),
    ],
)
def test_a_sockets_relative_path_starts_from_a_folder(url: str, absolute: str) -> None:
    assert socket_in(url, "/site") == absolute


def test_a_sockets_relative_path_starts_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert socket_in("unix:a.sock") == f"unix:{tmp_path}/a.sock"


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "\\u0061": 3}}]']
)
def test_a_key_that_stands_twice_is_no_json(text: str) -> None:
    with pytest.raises(DuplicateKey, match=r"^the key .a. stands twice in one object$"):
        parse_json(text)
