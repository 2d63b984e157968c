"""The reader of YAML: as StreamFlow's and CWL's readers, and bounded."""

from __future__ import annotations

import io
import math
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from schema_salad.utils import yaml_no_ts

from sf_quantum import yaml
from sf_quantum.errors import InputError
from sf_quantum.files import JSON

WORDS = ("1e-3", "2024-01-01", "yes", "no", "~", "0o17", "010", "1:30", "=", "<<", "a")
SCALARS: st.SearchStrategy[JSON] = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.sampled_from(WORDS)
    | st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=8)
)
CONTENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text("abc12", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(CONTENTS)
def test_written_yaml_is_read_back(content: JSON) -> None:
    assert yaml.parse(yaml.dump(content)).content == content
    line = yaml.dump_line([content])
    assert yaml.parse(line).content == [content]


@given(st.lists(st.sampled_from((*WORDS, "1e3", "+.5", "0x1F", "1_000", "off", "08"))))
def test_plain_words_mean_what_cwl_readers_take_them_for(words: list[str]) -> None:
    text = f"[{', '.join(word for word in words if word not in ('=', '<<'))}]"
    expected = yaml_no_ts().load(io.StringIO(text))
    assert yaml.parse(text).content == list(expected)


def test_dates_are_kept_only_on_request() -> None:
    text = "day: 2024-01-01"
    assert yaml.parse(text).content == {"day": "2024-01-01"}
    assert yaml.parse(text, dates=True).content == YAML(typ="safe").load(text)


def read(text: str) -> tuple[JSON, str]:
    """Return the content, and why there is none."""
    try:
        return yaml.parse(text).content, ""
    except yaml.NotYamlError as error:
        return None, error.why


BOMBS = {
    "lists": ("[x]", "[{}]"),
    "mappings": ("{x: 1}", None),
    "merges": ("{x: 1}", "{{<<: [{}]}}"),
}


@pytest.mark.parametrize("kind", BOMBS)
@settings(max_examples=25)
@given(width=st.integers(2, 30), depth=st.integers(1, 60))
def test_aliases_stand_for_a_bounded_number_of_values(
    kind: str, width: int, depth: int
) -> None:
    first, others = BOMBS[kind]
    lines = [f"a0: &a0 {first}"]
    for level in range(1, depth):
        names = [f"*a{level - 1}"] * width
        keys = ", ".join(f"k{index}: {name}" for index, name in enumerate(names))
        inner = f"{{{keys}}}" if others is None else others.format(", ".join(names))
        lines.append(f"a{level}: &a{level} {inner}")
    content, why = read("\n".join(lines))
    assert _count(content) <= 2 * yaml.MAX_ALIASED
    if why:
        assert "aliases stand for" in why
        assert width**depth > yaml.MAX_ALIASED / 4


def _count(content: JSON) -> int:
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        return 1 + sum(map(_count, content))
    return 1


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_depth_is_bounded(opening: str) -> None:
    with pytest.raises(yaml.NotYamlError, match="nested more than 100 deep"):
        yaml.parse(opening * 5000)


@settings(max_examples=50)
@given(levels=st.integers(1, 430), random=st.randoms(use_true_random=False))
def test_depth_counts_what_aliases_stand_for(levels: int, random: Random) -> None:
    """A chain of aliases is read if and only if it is read when it is written out."""
    chain, written_out = ["- &a0 x"], "x"
    for level in range(1, levels + 1):
        kind = random.choice(["[{}]", "{{x: {}}}"])
        chain.append(f"- &a{level} {kind.format(f'*a{level - 1}')}")
        written_out = kind.format(written_out)
    (content, why), (expected, _) = read("\n".join(chain)), read(f"[{written_out}]")
    assert bool(why) == (expected is None) == (levels + 2 > yaml.MAX_DEPTH)
    assert expected is None or content[-1:] == expected  # type: ignore[index]
    assert not why or "nested more than 100 deep through its aliases" in why


REFUSED = {
    "a: &a [*a]": "an alias stands for what contains it",
    "a: &a\n  b: {c: *a}": "an alias stands for what contains it",
    "a: !!set {b}": "a value is of YAML's type set",
    "a: !!bool maybe": "a value cannot be read",
    f"a: {'9' * 5000}": "a value cannot be read",
    'a: "\\U00110000"': "a value cannot be read",
    "a: 1\n'a': 2": "line 2: duplicate key 'a'",
    "1: 1\n'1': 2": "line 2: duplicate key '1'",
}


@pytest.mark.parametrize("text", REFUSED)
def test_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(yaml.NotYamlError, match=REFUSED[text]) as caught:
        yaml.parse(text)
    assert "\n" not in str(caught.value)


@given(st.text("-?:,[]{}&*!|>'\"%@ab1.\n \t#~<=\0\x85\u2028\ud800", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert "\n" not in read(text)[1]


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml, "MAX_BYTES", 2**20)
    file = tmp_path / "large.yml"
    file.write_text(f"a: {'x' * 2**20}")
    with pytest.raises(InputError, match=r"large.yml: not YAML: more than 1 MB"):
        yaml.read(file, "a test")


def test_infinity_is_written_as_yaml_has_it() -> None:
    assert yaml.dump_line(math.inf) == ".inf"
