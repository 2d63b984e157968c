"""JSON of any kind, and documents of which one part is another one, or is missing."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from sf_quantum.files import JSON, KeyPath

#: any JSON, with the numbers that Python's reader knows beyond it
ANY_JSON: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@st.composite
def changed(draw: st.DrawFn, document: JSON) -> JSON:
    """Draw any JSON, or the document with a part that is replaced or removed."""
    paths: list[KeyPath] = [*_paths(document)]
    if not (path := paths[draw(st.integers(0, len(paths) - 1))]):
        return draw(ANY_JSON)
    return _with(document, path, draw(st.lists(ANY_JSON, max_size=1)))


def _paths(document: JSON, path: KeyPath = ()) -> Iterator[KeyPath]:
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _paths(value, (*path, key))
    elif isinstance(document, list):
        for n, value in enumerate(document):
            yield from _paths(value, (*path, n))


def _with(document: JSON, path: KeyPath, parts: list[JSON]) -> JSON:
    """Put the parts, of which there is one at most, in the place of another."""
    first, rest = path[0], path[1:]
    if isinstance(document, dict):
        inner = [_with(document[str(first)], rest, parts)] if rest else parts
        others = {key: value for key, value in document.items() if key != first}
        return {**others, **{str(first): part for part in inner}}
    assert isinstance(document, list)
    n = int(first)
    inner = [_with(document[n], rest, parts)] if rest else parts
    return [*document[:n], *inner, *document[n + 1 :]]
