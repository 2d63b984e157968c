"""Scattered lists whose lengths are known before a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.files import JSON

TOOL: JSON = {
    "class": "CommandLineTool",
    "baseCommand": "true",
    "inputs": {"x": "int", "y": "int"},
    "outputs": {},
}
DOTPRODUCT: dict[str, JSON] = {
    "scatter": ["x", "y"],
    "scatterMethod": "dotproduct",
    "in": {"x": "xs", "y": "ys"},
}


def found(
    folder: Path, settings: Mapping[str, JSON], step: JSON, *, declared: JSON = "int[]"
) -> list[str]:
    """What the check finds in a workflow with one step and two inputs."""
    workflow: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {
            "ScatterFeatureRequirement": {},
            "SubworkflowFeatureRequirement": {},
            "StepInputExpressionRequirement": {},
        },
        "inputs": {"xs": declared, "ys": declared},
        "outputs": {},
        "steps": {"s": step},
    }
    (folder / "main.cwl").write_text(json.dumps(workflow))
    (folder / "job.json").write_text(json.dumps(settings))
    config: JSON = {"file": "main.cwl", "settings": "job.json"}
    file = folder / "sf.yml"
    file.write_text(
        json.dumps(
            {
                "version": "v1.0",
                "workflows": {"main": {"type": "cwl", "config": config}},
                "database": {"type": "default", "config": {"connection": ":memory:"}},
            }
        )
    )
    return [f"{one.what}; {one.right}" for one in check_file(file).problems]


def scattered(**changes: JSON) -> JSON:
    return {"run": TOOL, "out": [], **DOTPRODUCT, **changes}


@pytest.mark.parametrize("sizes", [(3, 2), (0, 1), (2, 2), (0, 0)])
@pytest.mark.parametrize("is_default", [False, True])
def test_lists_are_compared_before_the_run(
    tmp_path: Path, sizes: tuple[int, int], is_default: bool
) -> None:
    xs, ys = ([1] * size for size in sizes)
    given: dict[str, JSON] = {"xs": [*xs], "ys": [*ys]}
    step = scattered()
    if is_default:
        inputs: JSON = {"x": "xs", "y": {"default": given.pop("ys")}}
        step = scattered(**{"in": inputs})
        given["ys"] = []
    differ = (
        f"the lists of step /s differ in length: x {sizes[0]}, y {sizes[1]}; "
        "make them equally long, or use another scatterMethod"
    )
    problems = [one for one in found(tmp_path, given, step) if "no step" not in one]
    assert problems == [differ] * (sizes[0] != sizes[1])


@pytest.mark.parametrize("method", ["flat_crossproduct", "nested_crossproduct"])
def test_lists_of_a_crossproduct_may_differ(tmp_path: Path, method: str) -> None:
    step = scattered(scatterMethod=method)
    assert not found(tmp_path, {"xs": [1, 2], "ys": [1]}, step)


@pytest.mark.parametrize(
    ("outer", "is_found"),
    [
        ({}, True),
        ({"when": "$(inputs.xs.length > 9)"}, False),
        ({"scatter": "xs"}, False),
    ],
)
def test_lists_are_not_compared_where_a_step_may_get_others(
    tmp_path: Path, outer: dict[str, JSON], is_found: bool
) -> None:
    """A step above may be skipped, or scatter the list that the inner one is linked to."""
    is_scattered = "scatter" in outer
    inner: JSON = {
        "class": "Workflow",
        "inputs": {"xs": "int[]", "ys": "int[]"},
        "outputs": {},
        "steps": {"s": scattered()},
    }
    step: JSON = {"run": inner, "in": {"xs": "xs", "ys": "ys"}, "out": [], **outer}
    xs: JSON = [[1], [1], [1]] if is_scattered else [1, 1, 1]
    declared = "Any" if is_scattered else "int[]"
    problems = found(tmp_path, {"xs": xs, "ys": [1]}, step, declared=declared)
    assert any("differ in length: x 3, y 1" in one for one in problems) == is_found


@pytest.mark.parametrize("default", [5, "a", [1, "a"], [], [1, 2]])
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_default_that_is_scattered_is_a_list_of_the_declared_type(
    tmp_path: Path, default: JSON, is_changed: bool
) -> None:
    """With valueFrom, the items may be of any type."""
    link: dict[str, JSON] = {"default": default}
    if is_changed:
        link["valueFrom"] = "$(inputs.y)"
    links: dict[str, JSON] = {"x": link, "y": {"default": 1}}
    step: JSON = {"run": TOOL, "out": [], "scatter": "x", "in": links}
    problems = found(tmp_path, {"xs": [], "ys": []}, step)
    is_good = isinstance(default, list) and (is_changed or "a" not in default)
    assert any("does not fit" in one for one in problems) != is_good, problems
