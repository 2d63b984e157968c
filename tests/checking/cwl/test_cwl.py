"""``sfq check`` of CWL: one line for each mistake, with its file, line and remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.checking.cwl.expressions import JAVASCRIPT, MENTION
from sf_quantum.cli import parser_for
from tests.support.checked_files import edited, found

FILE = """\
version: v1.0
workflows:
  main:
    type: cwl
    config: {file: main.cwl, settings: job.yml}
deployments: {}
"""
MAIN = """\
cwlVersion: v1.2
class: Workflow
$namespaces: {cwltool: "http://commonwl.org/cwltool#", edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  SubworkflowFeatureRequirement: {}
inputs:
  points: {type: File, format: edam:format_3752}
  folder: Directory?
  names: {type: "string[]", default: [a, b]}
  limit: {type: int, default: 3}
  mode:
    type: {type: enum, symbols: [fast, exact]}
    default: fast
  pair:
    type: ["null", {type: record, fields: {left: int, right: float?}}]
outputs:
  best: {type: File, outputSource: loop/table}
  all: {type: "File[]", outputSource: many/table}
steps:
  first:
    run: tool.cwl
    in: {points: points, count: limit}
    out: [table, size]
  loop:
    run: tool.cwl
    in:
      points: first/table
      count: limit
      go: {default: true}
    requirements:
      cwltool:Loop:
        loopWhen: $(inputs.go)
        loop:
          points: table
          count: size
        outputMethod: last
    out: [table, size]
  many:
    run: tool.cwl
    scatter: name
    in: {points: points, count: {default: 2}, name: names, ready: {default: true}}
    when: $(inputs.ready)
    out: [table]
  nested:
    run:
      class: Workflow
      inputs: {rows: File}
      outputs: {}
      steps:
        - id: inner
          run: tool.cwl
          in: [{id: points, source: rows}, {id: count, default: 1}]
          out: []
    in: {rows: first/table}
    out: []
"""
TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: cat
arguments: [-n, $(runtime.cores), $(inputs.count)]
inputs:
  points: {type: File, inputBinding: {position: 1}}
  count: int
  name: string?
stdout: table.txt
outputs:
  table: stdout
  size: {type: int, outputBinding: {outputEval: $(inputs.count)}}
"""
SEVERAL = "{points: {source: [points, loop/table]}, count: limit}"
JOB = """\
points: {class: File, path: points.csv, format: "http://edamontology.org/format_3752"}
folder: {class: Directory, path: data}
pair: {left: 1}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a workflow that is right."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    files = {"sf.yml": FILE, "main.cwl": MAIN, "tool.cwl": TOOL, "job.yml": JOB}
    for name, text in {**files, "points.csv": "x\n1\n"}.items():
        Path(name).write_text(text)


def test_a_good_workflow_is_fine() -> None:
    findings = check_file("sf.yml", parser_for)
    assert findings.problems == []
    unused = "no step takes this input"
    assert all(remark.what.startswith(unused) for remark in findings.remarks)


WIRING = {
    "source": ("rows: first/table", "rows: frist/table", "55: steps.nested.in.rows: there is no input or output of a step 'frist/table'; did you mean first/table?"),
    "output of a step": ("rows: first/table", "rows: first/tabel", "55: steps.nested.in.rows: step first has no output 'tabel' in its out; did you mean table?"),
    "output that is not listed": ("rows: first/table", "rows: many/size", "55: steps.nested.in.rows: step many has no output 'size' in its out; add size to the out of many"),
    "step for its output": ("rows: first/table", "rows: first", "55: steps.nested.in.rows: first is a step; name its output: first/table, first/size"),
    "source inside": ("source: rows", "source: row", "53: steps.nested.run.steps[0].in[0].source: there is no input or output of a step 'row'; did you mean rows?"),
    "outputSource": ("outputSource: loop/table", "outputSource: loop/tabel", "18: outputs.best.outputSource: step loop has no output 'tabel' in its out; did you mean table?"),
    "output without a source": (", outputSource: loop/table", "", "18: outputs.best: the output best has no source; add outputSource: STEP/OUTPUT"),
    "out": ("when: $(inputs.ready)\n    out: [table]", "when: $(inputs.ready)\n    out: [table, siz]", "44: steps.many.out[1]: what step many runs has no output 'siz'; did you mean size?"),
    "input that is missing": ("in: {points: points, count: limit}", "in: {points: points}", "23: steps.first.in: step first has no value for the input count (int); add count: and a source"),
    "input that is misspelt": ("in: {points: points, count: limit}", "in: {points: points, coutn: limit}", "23: steps.first.in.coutn: step first has no value for the input count (int); write count for coutn"),
    "input without a source": ("{id: count, default: 1}", "{id: count}", "53: steps.nested.run.steps[0].in: step inner has no value for the input count (int); add count: and a source"),
    "loop variable": ("count: size", "coutn: size", "36: steps.loop.requirements.cwltool:Loop.loop.coutn: step loop has no input 'coutn' in its in; did you mean count?"),
    "loop source": ("count: size", "count: sise", "36: steps.loop.requirements.cwltool:Loop.loop.count: step loop has no output 'sise' in its out; did you mean size?"),
    "loop condition": ("$(inputs.go)", "$(inputs.goo)", "33: steps.loop.requirements.cwltool:Loop.loopWhen: inputs.goo: step loop has no input goo; did you mean go?"),
    "condition": ("when: $(inputs.ready)", "when: $(inputs.nam)", "43: steps.many.when: inputs.nam: step many has no input nam; did you mean name?"),
    "condition that is text": ("when: $(inputs.ready)", "when: inputs.name", "43: steps.many.when: 'inputs.name' is no expression; write $(inputs.NAME), or JavaScript in $(...)"),
    "scattered input": ("scatter: name", "scatter: nam", "41: steps.many.scatter: step many has no input 'nam' in its in; did you mean name?"),
    "scatter without its requirement": ("  ScatterFeatureRequirement: {}\n", "", "40: steps.many.scatter: scatter needs a requirement; add ScatterFeatureRequirement: {} to the requirements"),
    "scatter of two": ("scatter: name\n    in: {points: points, count: {default: 2}", "scatter: [name, count]\n    in: {points: points, count: {default: [2]}", "41: steps.many.scatter: 2 inputs are scattered; add scatterMethod: dotproduct, nested_crossproduct or flat_crossproduct"),
    "two sources": ("rows: first/table", "rows: [first/table, loop/table]", "55: steps.nested.in.rows: there are several sources; add MultipleInputFeatureRequirement: {} to the requirements"),
    "valueFrom": ("count: {default: 2}", "count: {valueFrom: $(self)}", "42: steps.many.in.count: valueFrom needs a requirement; add StepInputExpressionRequirement: {} to the requirements"),
    "loop with a condition": ("  many:", "    when: $(inputs.go)\n  many:", "39: steps.loop.when: a step with a loop cannot have when; put it in a workflow inside"),
    "loop that is a hint": ("    requirements:\n      cwltool:Loop", "    hints:\n      cwltool:Loop", "32: steps.loop.hints.cwltool:Loop: a loop is no hint; write it under requirements"),
}  # fmt: skip

TYPES = {
    "file for a number": ("in: {points: points, count: limit}", "in: {points: points, count: points}", "23: steps.first.in.count: points is File; int is expected"),
    "array for its item": ("rows: first/table", "rows: many/table", "55: steps.nested.in.rows: many/table is (File?)[]; File is expected: add rows to the scatter of step nested"),
    "item to be scattered": ("name: names", "name: limit", "42: steps.many.in.name: limit is int; (string?)[] is expected"),
    "output": ("best: {type: File,", "best: {type: int,", "18: outputs.best.outputSource: loop/table is File; int is expected"),
    "output of a scatter": ('all: {type: "File[]",', "all: {type: File,", "19: outputs.all.outputSource: many/table is (File?)[]; File is expected"),
    "next iteration": ("count: size", "count: table", "36: steps.loop.requirements.cwltool:Loop.loop.count: table is File; count of the next iteration is int"),
    "default of a step": ("count: {default: 2}", "count: {default: two}", "42: steps.many.in.count.default: 'two' does not fit; its type is int"),
    "default of the workflow": ("{type: int, default: 3}", "{type: int, default: three}", "11: inputs.limit.default: 'three' does not fit; its type is int"),
    "symbol": ("default: fast", "default: fats", "14: inputs.mode.default: 'fats' does not fit; did you mean fast?"),
    "name of a type": ("folder: Directory?", "folder: Directry?", "9: inputs.folder: unknown type 'Directry'; did you mean Directory?"),
    "short form in items": ('names: {type: "string[]",', 'names: {type: {type: array, items: "string?"},', "10: inputs.names.type.items: items has no short form such as 'string?'; write [\"null\", string]"),
    "short list in items": ("right: float?", 'right: {type: ["null", {type: array, items: "float[]"}]}', "16: inputs.pair.type[1].fields.right.type[1].items: items has no short form such as 'float[]'; write {type: array, items: float}"),
    "name of a type inside": ("right: float?", "right: flot?", "16: inputs.pair.type[1].fields.right: unknown type 'flot'; did you mean float?"),
}  # fmt: skip

FIELDS = {
    "process": ("outputs:\n  best", "outptus:\n  best", "17: outptus: unknown field; did you mean outputs?"),
    "input": ("{type: int, default: 3}", "{type: int, defalt: 3}", "11: inputs.limit.defalt: unknown field; did you mean default?"),
    "field of a record": ("right: float?", "right: {tpye: float}", "16: inputs.pair.type[1].fields.right.tpye: unknown field; did you mean type?"),
    "binding of a record's field": ("right: float?", "right: {type: float, inputBinding: {positon: 1}}", "16: inputs.pair.type[1].fields.right.inputBinding.positon: unknown field; did you mean position?"),
    "no type of a record's field": ("right: float?", "right: 3", "16: inputs.pair.type[1].fields.right: 3 is no type; write a type"),
    "items of an array": ('names: {type: "string[]",', "names: {type: {type: array, itms: string},", "10: inputs.names.type.itms: unknown field; did you mean items?"),
    "symbols of an enum": ("symbols: [fast, exact]", "symbols: fast", "13: inputs.mode.type.symbols: the symbols are no list; write a list"),
    "step": ("scatter: name", "scater: name", "41: steps.many.scater: unknown field; did you mean scatter?"),
    "step inside": ("source: rows", "sorce: rows", "53: steps.nested.run.steps[0].in[0].sorce: unknown field; did you mean source?"),
    "run": ("  nested:\n    run:", "  nested:\n    rum:", "46: steps.nested.rum: unknown field; did you mean run?"),
    "requirement": ("ScatterFeatureRequirement", "ScaterFeatureRequirement", "5: requirements.ScaterFeatureRequirement: unknown requirement ScaterFeatureRequirement; did you mean ScatterFeatureRequirement?"),
    "loop": ("loopWhen", "loopwhen", "33: steps.loop.requirements.cwltool:Loop.loopwhen: unknown field; did you mean loopWhen?"),
    "loop's output": ("outputMethod: last", "outputMethod: lst", "37: steps.loop.requirements.cwltool:Loop.outputMethod: unknown outputMethod 'lst'; did you mean last?"),
    "scatter's method": ("scatter: name", "scatter: name\n    scatterMethod: dotprodct", "42: steps.many.scatterMethod: unknown scatterMethod 'dotprodct'; did you mean dotproduct?"),
    "class of a process inside": ("class: Workflow\n      inputs", "class: Workfow\n      inputs", "47: steps.nested.run.class: unknown class 'Workfow'; did you mean Workflow?"),
    "merge of links": ("rows: first/table", "rows: {source: first/table, linkMerge: merge_flat}", "55: steps.nested.in.rows.linkMerge: unknown linkMerge 'merge_flat'; did you mean merge_flattened?"),
    "version": ("v1.2", "v1.3", "1: cwlVersion: StreamFlow does not read version v1.3; write one of v1.0, v1.1, v1.2"),
}  # fmt: skip

TOOLS = {
    "field": ("baseCommand", "baseComand", "3: baseComand: unknown field; did you mean baseCommand?"),
    "field of a binding": ("position: 1", "positon: 1", "6: inputs.points.inputBinding.positon: unknown field; did you mean position?"),
    "type": ("count: int", "count: itn", "7: inputs.count: unknown type 'itn'; did you mean int?"),
    "input of an expression": ("$(inputs.count)]", "$(inputs.coutn)]", "4: arguments[2]: inputs.coutn: the process has no input coutn; did you mean count?"),
    "what a job is told": ("$(runtime.cores)", "$(runtime.core)", "4: arguments[1]: there is no runtime.core; did you mean cores?"),
    "root of an expression": ("outputEval: $(inputs.count)", "outputEval: $(input.count)", "12: outputs.size.outputBinding.outputEval: $(input.count) starts with none of inputs, self, runtime; did you mean inputs?"),
    "JavaScript": ("outputEval: $(inputs.count)", 'outputEval: "$(inputs.count + 1)"', "12: outputs.size.outputBinding.outputEval: '$(inputs.count + 1)' is JavaScript; add InlineJavascriptRequirement: {} to the requirements"),
    "format that is not made": ("points: {type: File,", 'points: {type: File, format: "http://edamontology.org/format_3752",', "main.cwl:28: steps.loop.in.points: table of step first has no format; http://edamontology.org/format_3752 is expected: add format: to the output"),
}  # fmt: skip

INPUTS = {
    "class": ("{class: Directory", "{class: Directry", "2: folder.class: unknown class 'Directry'; write {class: Directory, path: ...}"),
    "file for a directory": ("{class: Directory", "{class: File", "2: folder.class: the value is a File; its type is Directory"),
    "directory that is a file": ("path: data", "path: points.csv", "2: folder: points.csv is not a Directory; write class: File, or name a directory"),
    "key of a file": ("path: data", "pth: data", "2: folder: the Directory has no path; did you mean path?"),
    "no class": ("{class: Directory, path: data}", "{path: data}", "2: folder.class: class is missing; write {class: Directory, path: ...}"),
    "missing file": ("points.csv", "point.csv", "1: points: point.csv: no such file; did you mean points.csv?"),
    "format": ("format_3752", "format_2330", "1: points.format: the format is http://edamontology.org/format_2330; edam:format_3752 is expected"),
    "no format": (', format: "http://edamontology.org/format_3752"', "", "1: points: the file has no format; add format: edam:format_3752, which the workflow expects"),
    "empty": ("{class: File, path: points.csv, format: \"http://edamontology.org/format_3752\"}", "", "1: points: the value is empty; its type is File"),
    "misspelt": ("pair:", "limt: 3\npair:", "3: limt: the workflow has no such input; did you mean limit?"),
    "misspelt, needed": ("points:", "poinst:", "1: poinst: the workflow has no such input; did you mean points?"),
    "list": ("pair:", "names: a\npair:", "3: names: 'a' does not fit; its type is string[]: write a list"),
    "item": ("pair:", "names: [a, 1]\npair:", "3: names[1]: 1 does not fit; its type is string"),
    "symbol": ("pair:", "mode: exct\npair:", "3: mode: 'exct' does not fit; did you mean exact?"),
    "field": ("{left: 1}", "{lefft: 1}", "3: pair.lefft: the record has no field lefft; did you mean left?"),
    "missing field": ("{left: 1}", "{right: 1}", "3: pair: the field left is missing; add it"),
    "value in a field": ("{left: 1}", "{left: one}", "3: pair.left: 'one' does not fit; its type is int"),
}  # fmt: skip


def test_a_source_that_is_listed_twice_is_refused() -> None:
    edited(
        "main.cwl", "  ScatterF", "  MultipleInputFeatureRequirement: {}\n  ScatterF"
    )
    edited("main.cwl", "rows: first/table", "rows: [first/table, first/table]")
    assert found() == [
        "main.cwl:56: steps.nested.in.rows[1]: first/table is listed before, and "
        "StreamFlow takes it once; let a step repeat it"
    ]


TABLES: list[tuple[str, str, Mapping[str, tuple[str, ...]]]] = [
    ("main.cwl", "wiring", WIRING),
    ("main.cwl", "type", TYPES),
    ("main.cwl", "field", FIELDS),
    ("tool.cwl", "tool", TOOLS),
    ("job.yml", "input", INPUTS),
]


@pytest.mark.parametrize(
    ("file", "case"),
    [
        pytest.param(file, case, id=f"{what}, {name}")
        for file, what, cases in TABLES
        for name, case in cases.items()
    ],
)
def test_one_line_for_one_mistake(file: str, case: tuple[str, ...]) -> None:
    old, new, *lines = case
    edited(file, old, new)
    said = [line if line.startswith("main.cwl") else f"{file}:{line}" for line in lines]
    assert found() == said


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ("{left: string, right: float?}", "left of pair is int; string is expected"),
        ("{left: int, wide: int}", "wide of pair is missing; int is expected"),
        ("{left: 'int[]'}", "left of pair is int; int[] is expected"),
    ],
)
def test_the_field_in_which_records_differ_is_named(fields: str, what: str) -> None:
    record = f"{{type: record, fields: {fields}}}"
    edited(
        "tool.cwl", "  name: string?", f"  name: string?\n  pair: ['null', {record}]"
    )
    old, step = "    in: {points: points, count: limit}", "    run: tool.cwl\n"
    edited("main.cwl", f"{step}{old}", f"{step}{old[:-1]}, pair: pair}}")
    assert found() == [f"main.cwl:23: steps.first.in.pair: the field {what}"]


def test_a_wrong_type_of_an_input_is_reported_once() -> None:
    edited("main.cwl", "limit: {type: int, default: 3}", "limit: string")
    edited("job.yml", "pair:", "limit: 3\npair:")
    assert found() == [
        "main.cwl:23: steps.first.in.count: limit is string; int is expected"
    ]


@pytest.mark.parametrize("type_", ["boolean", "int", "string", "File", "int?"])
@pytest.mark.parametrize(
    "source", ["ready: extra", 'ready: {source: extra, valueFrom: "$(self)"}']
)
def test_only_a_list_is_scattered_over(type_: str, source: str) -> None:
    """The step's tool may not have the input, which ``when`` reads."""
    edited("main.cwl", "  limit:", f"  extra: {type_}\n  limit:")
    edited(
        "main.cwl",
        "scatter: name",
        "scatter: [name, ready]\n    scatterMethod: dotproduct",
    )
    edited("main.cwl", "ready: {default: true}", source)
    (problem,) = (one for one in found() if "extra is" in one)
    right = "Any[] is expected: take ready out of the scatter of step many"
    assert problem.endswith(f"extra is {type_}; {right}")


def test_a_missing_scatter_is_said_once_for_the_steps_behind() -> None:
    edited("main.cwl", "count: limit}", "count: lengths}")
    edited("main.cwl", "  limit:", "  lengths: {type: 'int[]', default: [1]}\n  limit:")
    edited("main.cwl", "points: first/table", "points: {source: first/table}")
    edited(
        "main.cwl",
        "best: {type: File, outputSource: loop/table}",
        "best: {type: 'File[]', outputSource: first/table}",
    )
    assert found() == [
        "main.cwl:24: steps.first.in.count: lengths is int[]; int is expected: "
        "add count to the scatter of step first"
    ]


@pytest.mark.parametrize(
    "expression",
    [
        '$(inputs.name.replace("(", "_"))',
        "$(inputs.name.split(')')[0])",
        "${ // before: return inputs.old;\n return inputs.name; }",
        "${ /* inputs.old */ return inputs.name + 'inputs.old'; }",
        '${ return "\\"inputs.old"; }',
        r"\$(inputs.old) $(inputs.name)",
        "$5, and $(inputs.count) of $(inputs['name'])",
    ],
)
def test_javascript_is_read_as_the_engines_do(expression: str) -> None:
    edited("tool.cwl", "arguments: [", f"arguments: [{json.dumps(expression)}, ")
    edited("tool.cwl", "inputs:", f"requirements: {{{JAVASCRIPT}: {{}}}}\ninputs:")
    assert found() == []


@pytest.mark.parametrize("expression", ["$(inputs.name", "${ return {}; "])
def test_an_expression_without_an_end_is_reported(expression: str) -> None:
    edited("tool.cwl", "arguments: [", f"arguments: [{json.dumps(expression)}, ")
    edited("tool.cwl", "inputs:", f"requirements: {{{JAVASCRIPT}: {{}}}}\ninputs:")
    assert found() == [
        f"tool.cwl:4: arguments[0]: {expression!r} has no end; "
        "add the closing parenthesis or brace"
    ]


def test_each_of_several_sources_has_the_format_of_its_input() -> None:
    edited("tool.cwl", "points: {type: File,", "points: {type: 'File[]', format: x:y,")
    edited("main.cwl", "{points: points, count: limit}", SEVERAL)
    edited(
        "main.cwl", "  ScatterF", "  MultipleInputFeatureRequirement: {}\n  ScatterF"
    )
    assert found()[0] == (
        "main.cwl:24: steps.first.in.points.source: table of step loop has no format; "
        "x:y is expected: add format: to the output"
    )


def test_each_misspelt_class_is_named_with_the_right_one() -> None:
    for kind, file in (("Workflow", "main.cwl"), ("CommandLineTool", "tool.cwl")):
        text = Path(file).read_text()
        wrong = {kind.lower(), kind.upper()}
        for at in range(1, len(kind)):
            wrong |= {kind[:at] + kind[at + 1 :], f"{kind[:at]}q{kind[at:]}"}
        for name in wrong:
            old = f"cwlVersion: v1.2\nclass: {kind}\n"
            assert old in text
            new = old.replace(f"class: {kind}", f"class: {name}")
            Path(file).write_text(text.replace(old, new))
            assert found() == [
                f"{file}:2: class: unknown class {name!r}; did you mean {kind}?"
            ]
        Path(file).write_text(text)


@pytest.mark.parametrize("name", ["[table]", "{a: b}", "1"])
def test_an_id_that_is_not_text_is_one_line(name: str) -> None:
    edited(
        "main.cwl",
        "    out: [table, size]\n  loop",
        f"    out: [{{id: {name}}}]\n  loop",
    )
    lines = found()
    assert lines
    assert all("main.cwl" in line and "unexpected" not in line for line in lines)


def test_of_a_packed_document_only_what_is_used_is_read() -> None:
    tool = {"class": "CommandLineTool", "baseCommand": "true", "outputs": {}}
    step = {"run": "#tool", "in": {"x": "x"}, "out": []}
    graph = [
        {
            "id": "#main",
            "class": "Workflow",
            "$namespaces": {"cwltool": "http://commonwl.org/cwltool#"},
            "inputs": {"x": {"type": "int", "default": 1}},
            "outputs": {},
            "steps": {"s": step},
        },
        {**tool, "id": "#tool", "inputs": {"x": "int"}},
        {**tool, "id": "#other", "inptus": {}},
    ]
    Path("main.cwl").write_text(json.dumps({"cwlVersion": "v1.2", "$graph": graph}))
    Path("job.yml").write_text("x: 1\n")
    assert found() == []
    step["run"] = "#other"
    Path("main.cwl").write_text(json.dumps({"cwlVersion": "v1.2", "$graph": graph}))
    assert any("inptus: unknown field" in line for line in found())


def test_a_process_of_a_packed_document_is_named_after_its_file() -> None:
    workflow = {"class": "Workflow", "outputs": {}, "steps": {}}
    graph = [
        {**workflow, "id": "main", "inputs": {"y": "int"}},
        {**workflow, "id": "other", "inputs": {}},
    ]
    Path("main.cwl").write_text(json.dumps({"cwlVersion": "v1.2", "$graph": graph}))
    Path("job.yml").write_text("{}\n")
    edited("sf.yml", "main.cwl", "main.cwl#other")
    assert found() == []
    edited("sf.yml", "#other", "#main")
    assert [line for line in found() if "y is missing" in line] == found() != []


@pytest.mark.parametrize("begin", ["/*x", "'x", '"x', "`x", "'\\\\", "inputs['x"])
def test_what_javascript_leaves_open_is_read_once(begin: str) -> None:
    # read again from each place, a quarter of a megabyte would take minutes
    assert not any(match[1] for match in MENTION.finditer(begin * 60_000))
    (match,) = (one for one in MENTION.finditer("f('it', inputs.a, 'x") if one[1])
    assert match[2] == "a"
