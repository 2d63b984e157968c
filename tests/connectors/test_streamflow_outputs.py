"""A job's outputs are of their declared types, as cwltool checks them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import zlib
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import cwl_utils.parser
import pytest
from cwltool.builder import INPUT_OBJ_VOCAB
from cwltool.factory import Factory
from schema_salad.exceptions import ValidationException
from schema_salad.validate import validate_ex
from streamflow.core.exception import ProcessorTypeError, WorkflowExecutionException
from streamflow.core.processor import PopCommandOutputProcessor
from streamflow.core.utils import make_future
from streamflow.core.workflow import Job, Status, Token
from streamflow.cwl.processor import CWLCommandOutput, CWLOutputJSONCommandOutput
from streamflow.cwl.step import CWLEmptyScatterConditionalStep, CWLExecuteStep
from streamflow.cwl.translator import _create_command_output_processor
from streamflow.cwl.workflow import CWLWorkflow
from streamflow.data.remotepath import LocalStreamFlowPath, RemoteStreamFlowPath
from streamflow.workflow.step import ExecuteStep, GatherStep
from streamflow.workflow.token import ListToken
from streamflow.workflow.utils import get_token_value

from sf_quantum.connectors import streamflow_outputs
from sf_quantum.files import JSON
from tests.support.candidate_runs import bind
from tests.support.slurm_jobs import over_ssh

if TYPE_CHECKING:
    from tests.support.projects import Project


def _array(items: JSON) -> JSON:
    return {"type": "array", "items": items}


RECORD: JSON = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string?"}],
}
TYPES: list[JSON] = [
    *("int", "float", "boolean", "string", "Any", "File", "int?", "Any?", "string?"),
    *("int[]", "string[]", "File[]", "int[]?", "File[]?", "Any[]"),
    ["int", "string"],
    _array(["int", "string"]),
    _array(["null", "int"]),
    RECORD,
    _array(RECORD),
]
VALUES: list[Any] = [
    *(None, 5, 5.5, "x", [], [5], [5, 6], ["x"], [None], [5, None], [[5]]),
    *({"a": 5}, {"a": 5, "b": "x"}, {"b": "x"}, {}, {"a": "x"}),
    *([{"a": 5}], [{"b": "x"}], ["x", 5], [[]]),
]
# StreamFlow does not keep whether a list or its items may be null.
AMBIGUOUS = (_array(["null", "int"]), "int[]?", "File[]?", "Any[]")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, method in streamflow_outputs.REPLACEMENTS:
        monkeypatch.setattr(owner, name, method)


def _collect(file: Path, output: CWLCommandOutput, **inputs: Token) -> JSON:
    """What StreamFlow makes of the output ``out`` of a tool."""
    (declared,) = cwl_utils.parser.load_document_by_uri(file.as_uri()).outputs
    scheduler = SimpleNamespace(
        get_hardware=lambda _: None,
        get_connector=lambda _: None,
        get_locations=lambda _: [],
    )
    context = SimpleNamespace(scheduler=scheduler)
    workflow = cast(CWLWorkflow, SimpleNamespace(context=context, cwl_version="v1.2"))
    processor = _create_command_output_processor(
        *("out", workflow, None, declared.type_, declared, "/out", {}),
        {"hints": {}, "requirements": {}, "version": "v1.2"},
    )
    if isinstance(output, CWLOutputJSONCommandOutput):
        processor = PopCommandOutputProcessor("out", workflow, processor)
    job = Job("/tool/0", 1, dict(inputs), "/in", "/out", "/tmp")

    async def collect() -> Token | None:
        return await processor.process(job, make_future(output))

    return cast(JSON, get_token_value(cast(Token, asyncio.run(collect()))))


@pytest.mark.parametrize(
    ("owner", "method", "checksum"),
    [
        (ExecuteStep, "_execute_command", 3610233133),
        (ExecuteStep, "_retrieve_output", 1778483435),
        (CWLExecuteStep, "_retrieve_output", 550247056),
        (CWLEmptyScatterConditionalStep, "_eval", 2194198313),
        (CWLEmptyScatterConditionalStep, "_on_false", 223032248),
        (GatherStep, "run", 3566170385),
    ],
)
def test_what_is_rewritten_has_not_changed(
    owner: type, method: str, checksum: int
) -> None:
    """If StreamFlow has changed one, ours has to be compared with it again."""
    source = inspect.getsource(owner)
    (code,) = (
        ast.get_source_segment(source, node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AsyncFunctionDef) and node.name == method
    )
    assert zlib.crc32(str(code).encode()) == checksum


def _tool(folder: Path, type_: JSON, **binding: JSON) -> Path:
    file = folder / "tool.cwl"
    out: JSON = {"id": "out", "type": type_, "outputBinding": binding}
    tool: JSON = {
        "cwlVersion": "v1.2",
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": [],
        "outputs": [out],
    }
    file.write_text(json.dumps(tool))
    return file


def _is_valid(schema: Any, value: JSON) -> bool:
    try:
        validate_ex(schema, {"out": value}, strict=False, vocab=INPUT_OBJ_VOCAB)
    except ValidationException:
        return False
    return True


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_value_is_collected_iff_cwltool_accepts_it(
    type_: JSON, tmp_path: Path
) -> None:
    file = _tool(tmp_path, type_)
    schema = Factory().make(str(file)).t.names.get_name("outputs_record_schema", None)
    for value in VALUES:
        if type_ in AMBIGUOUS and (
            value is None or (isinstance(value, list) and None in value)
        ):
            continue
        output = CWLOutputJSONCommandOutput({"out": deepcopy(value)}, Status.COMPLETED)
        if _is_valid(schema, value):
            assert _collect(file, output) == value, value
        else:
            with pytest.raises(ProcessorTypeError):
                pytest.fail(f"{value} is collected as {_collect(file, output)}")


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("int[]", 5, "Expected out of type long[], got long 5"),
        ("int", [5], "Expected out of type long, got array [5]"),
        ("int[]", [5], ""),
        ("int", 5, ""),
        ("int[]?", None, ""),
        (RECORD, {"b": "x"}, "record with the field a, got record {'b': 'x'}"),
        (RECORD, 5, "Expected out of type"),
        (RECORD, {"a": 5}, ""),
    ],
)
def test_an_expressions_value_is_of_its_type(
    type_: JSON, value: JSON, expected: str, tmp_path: Path
) -> None:
    file = _tool(tmp_path, type_, outputEval="$(inputs.x)")
    token = ListToken([Token(5)]) if isinstance(value, list) else Token(value)
    output = CWLCommandOutput(None, Status.COMPLETED)
    if not expected:
        assert _collect(file, output, x=token) == value
        return
    with pytest.raises(ProcessorTypeError) as error:
        _collect(file, output, x=token)
    assert expected in str(error.value)


@pytest.mark.process
@pytest.mark.parametrize(
    ("type_", "script", "reason"),
    [
        (
            "int[]",
            'echo "{\\"xs\\": 5}" >cwl.output.json',
            "of type long[], got long 5",
        ),
        ("int[]?", 'echo "{}" >cwl.output.json', "input x is scattered and must be"),
        ("string[]", "echo x", "got null"),
        ("int[]?", 'echo "{\\"xs\\": []}" >cwl.output.json', ""),
    ],
)
def test_a_scatter_over_no_list_fails_the_run(
    project: Project, type_: str, script: str, reason: str
) -> None:
    file = project.folder / "make.sh"
    file.write_text(script)
    make: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", str(file)],
        "inputs": {},
        "outputs": {"xs": type_},
    }
    use: JSON = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "stdout": "out",
        "inputs": {"x": "Any"},
        "outputs": {"out": "stdout"},
    }
    scattered: JSON = {
        "run": use,
        "scatter": "x",
        "in": {"x": "make/xs"},
        "out": ["out"],
    }
    project.document = {
        "inputs": {},
        "steps": {"make": {"run": make, "in": {}, "out": ["xs"]}, "use": scattered},
        "outputs": {"out": {"type": "File[]", "outputSource": "use/out"}},
    }
    project.deployment("host", "local")
    bind(project, {})
    del project.extra["failureManager"]
    assert project.run() == bool(reason), project.log[-2000:]
    assert reason in project.log


@pytest.mark.parametrize(
    ("method", "sizes", "reason"),
    [
        ("dotproduct", (3, 2), "its lists differ in length: a 3, b 2;"),
        ("dotproduct", (3, 0), "its lists differ in length: a 3, b 0;"),
        ("dotproduct", (2, 2), ""),
        ("flat_crossproduct", (3, 2), ""),
        ("nested_crossproduct", (3, 2), ""),
    ],
)
def test_lists_of_unequal_length_fail_before_any_job(
    method: str, sizes: tuple[int, int], reason: str
) -> None:
    step = CWLEmptyScatterConditionalStep(
        "/s-empty-scatter-condition", cast(CWLWorkflow, SimpleNamespace()), method
    )
    inputs: dict[str, Token] = {
        name: ListToken([Token(0)] * size)
        for name, size in zip("ab", sizes, strict=True)
    }
    with (
        pytest.raises(WorkflowExecutionException, match=reason)
        if reason
        else nullcontext()
    ):
        assert asyncio.run(step._eval(inputs))


@pytest.mark.process
@pytest.mark.parametrize("impossible", range(3))
def test_a_scatter_with_a_job_that_no_host_can_run_is_not_gathered(
    project: Project, impossible: int
) -> None:
    ran = project.folder / "ran"
    part: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["echo", "x"],
        "requirements": [
            {"class": "InlineJavascriptRequirement"},
            {"class": "ResourceRequirement", "coresMin": "$(inputs.cores)"},
        ],
        "stdout": "out",
        "inputs": {"cores": "int"},
        "outputs": {"out": "stdout"},
    }
    whole: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["touch", str(ran)],
        "inputs": {"parts": "File[]"},
        "outputs": {},
    }
    cores: list[JSON] = [10**6 if n == impossible else 1 for n in range(3)]
    project.document = {
        "inputs": {"cores": {"type": "int[]", "default": cores}},
        "steps": {
            "part": {
                "run": part,
                "scatter": "cores",
                "in": {"cores": "cores"},
                "out": ["out"],
            },
            "whole": {"run": whole, "in": {"parts": "part/out"}, "out": []},
        },
        "outputs": {"parts": {"type": "File[]", "outputSource": "part/out"}},
    }
    project.deployment("host", "local")
    bind(project, {})
    del project.extra["failureManager"]
    assert project.run() != 0
    assert "the job requires 1,000,000 cores" in project.log
    assert not ran.exists()
    assert not [*project.folder.glob("out*")]


def test_null_of_a_record_without_required_fields_is_taken(tmp_path: Path) -> None:
    """StreamFlow does not keep whether a record is optional."""
    fields: JSON = [{"name": "a", "type": "string?"}]
    file = _tool(tmp_path, ["null", {"type": "record", "name": "r", "fields": fields}])
    output = CWLOutputJSONCommandOutput({"out": None}, Status.COMPLETED)
    assert _collect(file, output) == {"a": None}


@pytest.mark.process
@pytest.mark.parametrize("is_remote", [False, True])
def test_the_contents_of_a_file_are_read_as_they_are(
    project: Project, request: pytest.FixtureRequest, *, is_remote: bool
) -> None:
    content = " first\r\n\tsecond \u00e9\n\n"
    (project.folder / "content").write_bytes(content.encode())
    project.deployment("host", "local")
    if is_remote:
        over_ssh(project, request.getfixturevalue("sshd"))
    binding: JSON = {
        "glob": "out.txt",
        "loadContents": True,
        "outputEval": "$(self[0].contents)",
    }
    tool: JSON = {
        "class": "CommandLineTool",
        "requirements": {"InlineJavascriptRequirement": {}},
        "baseCommand": ["cat", str(project.folder / "content")],
        "inputs": {},
        "outputs": {"out": {"type": "string", "outputBinding": binding}},
        "stdout": "out.txt",
    }
    project.document = {
        "steps": {"s": {"run": tool, "in": {}, "out": ["out"]}},
        "outputs": {"out": {"type": "string", "outputSource": "s/out"}},
    }
    bind(project, {"/s": [{"deployment": "host"}]})
    assert project.run() == 0, project.log
    assert project.outputs == {"out": content}


@pytest.mark.process
@pytest.mark.parametrize("is_remote", [False, True])
def test_a_text_of_the_work_directory_is_in_a_new_folder(
    project: Project, request: pytest.FixtureRequest, *, is_remote: bool
) -> None:
    project.deployment("host", "local")
    if is_remote:
        over_ssh(project, request.getfixturevalue("sshd"))
    texts: dict[str, JSON] = {"new/in it/a b": "one\n", "new/c": "two\n", "d": "3\n"}
    listing: list[JSON] = [{"entryname": n, "entry": texts[n]} for n in texts]
    tool: JSON = {
        "class": "CommandLineTool",
        "requirements": {"InitialWorkDirRequirement": {"listing": listing}},
        "baseCommand": ["cat", *texts],
        "inputs": {},
        "outputs": {"out": "stdout"},
        "stdout": "out.txt",
    }
    project.document = {
        "steps": {"s": {"run": tool, "in": {}, "out": ["out"]}},
        "outputs": {"out": {"type": "File", "outputSource": "s/out"}},
    }
    bind(project, {"/s": [{"deployment": "host"}]})
    assert project.run() == 0, project.log
    collected = project.outputs
    assert Path(collected["out"]["path"]).read_text() == "one\ntwo\n3\n"


@pytest.mark.process
def test_remote_files_are_moved_whatever_their_names(
    project: Project, sshd: int
) -> None:
    over_ssh(project, sshd)
    name = "a  b $(true) `true` it's & $HOME"
    source = project.folder / name
    source.write_text("content\n")
    files: JSON = {"type": "File", "outputBinding": {"glob": "copies/*"}}
    folder: JSON = {"type": "Directory", "outputBinding": {"glob": "copies"}}
    script = project.folder / "copy.sh"
    script.write_text('mkdir copies && cat "$1" >"copies/$(basename "$1")"')
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", str(script)],
        "inputs": {"file": {"type": "File", "inputBinding": {}}},
        "outputs": {"file": files, "folder": folder},
    }
    step: JSON = {"run": tool, "in": {"file": "file"}, "out": ["file", "folder"]}
    again: JSON = {"run": tool, "in": {"file": "s/file"}, "out": ["file", "folder"]}
    project.document = {
        "inputs": {
            "file": {"type": "File", "default": {"class": "File", "path": str(source)}}
        },
        "steps": {"s": step, "t": again},
        "outputs": {
            "file": {"type": "File", "outputSource": "t/file"},
            "folder": {"type": "Directory", "outputSource": "t/folder"},
        },
    }
    bind(project, {"/s": [{"deployment": "host"}], "/t": [{"deployment": "host"}]})
    assert project.run() == 0, project.log
    collected = project.outputs
    assert collected["file"]["basename"] == name
    assert collected["file"]["size"] == len("content\n")
    assert Path(collected["file"]["path"]).read_text() == "content\n"
    (inside,) = collected["folder"]["listing"]
    assert inside["basename"] == name


@pytest.mark.process
def test_remote_files_are_found_whatever_their_names(
    project: Project, sshd: int
) -> None:
    over_ssh(project, sshd)
    names = ["a b", "it's", "a;b", "plain", "\u00e9 1"]
    script = project.folder / "write.sh"
    script.write_text('for name; do echo >"$name"; done')
    patterns = {
        "all": "$(inputs.names)",
        "some": "[ai]*[b;s]",
        "none": "$(inputs.none)",
        "run": "x",
    }
    outputs: dict[str, JSON] = {
        name: {
            "type": "int",
            "outputBinding": {"glob": pattern, "outputEval": "$(self.length)"},
        }
        for name, pattern in patterns.items()
    }
    tool: JSON = {
        "class": "CommandLineTool",
        "requirements": {"InlineJavascriptRequirement": {}},
        "baseCommand": ["sh", str(script)],
        "inputs": {
            "names": {"type": "string[]", "inputBinding": {}},
            "none": "string",
        },
        "outputs": outputs,
    }
    project.document = {
        "inputs": {
            "names": {"type": "string[]", "default": [*names]},
            "none": {"type": "string", "default": "$(touch x)"},
        },
        "steps": {
            "s": {
                "run": tool,
                "in": {"names": "names", "none": "none"},
                "out": [*outputs],
            }
        },
        "outputs": {
            name: {"type": "int", "outputSource": f"s/{name}"} for name in patterns
        },
    }
    bind(project, {"/s": [{"deployment": "host"}]})
    assert project.run() == 0, project.log
    assert project.outputs == {"all": 5, "some": 3, "none": 0, "run": 0}


async def test_no_more_than_the_first_bytes_are_read() -> None:
    path = LocalStreamFlowPath("/dev/zero", context=cast(Any, None), location=None)
    assert await streamflow_outputs._read_local(path, 3) == "\0\0\0"


async def test_a_host_that_cannot_read_its_files_is_an_error() -> None:
    async def run(**_: object) -> tuple[str, int]:
        return "sh: base64: not found", 127

    async def inner() -> object:
        return host

    host = SimpleNamespace(
        connector=SimpleNamespace(run=run), location="far", _get_inner_path=inner
    )
    path = cast(RemoteStreamFlowPath, host)
    with pytest.raises(WorkflowExecutionException, match="base64: not found"):
        await streamflow_outputs._read_remote(path, 3)
    with pytest.raises(WorkflowExecutionException, match="base64: not found"):
        [one async for one in streamflow_outputs._glob_remote(path, "*")]
