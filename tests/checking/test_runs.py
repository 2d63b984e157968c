"""``sfq check``: what StreamFlow or our connectors would refuse when the workflow runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from streamflow.core.utils import create_command

from sf_quantum.checking import check_file
from sf_quantum.checking.bindings.folders import RIGHT, check_files
from sf_quantum.checking.cwl.inputs import SPECIAL, missing_files
from sf_quantum.checking.document import Document
from sf_quantum.cli import main, parser_for
from sf_quantum.files import JSON, KeyPath
from sf_quantum.samplers.problem import document
from tests.support.checked_files import edited, found, sinfo, slurm_lists

FILE = """\
version: v1.0
workflows:
  main:
    type: cwl
    config: {file: main.cwl, settings: job.yml}
    bindings:
      - step: /solve
        target: {deployment: qpu}
      - step: /show
        target: {deployment: host, workdir: work}
deployments:
  host: {type: local, config: {}}
  far: {type: ssh, config: {nodes: [a, b], username: me}}
  nodes: {type: sfq.nodes, config: {names: [a, b]}, wraps: host}
  qpu: {type: sfq.emulator, config: {qubits: 9}, wraps: host}
  cluster: {type: sfq.slurm, config: {services: {s: {time: "10"}}}, wraps: host}
"""
MAIN = """\
cwlVersion: v1.2
class: Workflow
inputs: {problem: File, sampler: string?}
outputs: {}
steps:
  solve: {run: solve.cwl, in: {problem: problem, sampler: sampler}, out: []}
  show: {run: show.cwl, in: {problem: problem}, out: []}
"""
SOLVE = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sfq, solve]
inputs:
  problem: {type: File, inputBinding: {prefix: --problem}}
  sampler: {type: string?, inputBinding: {prefix: --sampler}}
arguments: [--output, samples.json]
outputs: {}
"""
SHOW = """\
cwlVersion: v1.2
class: CommandLineTool
requirements: {ShellCommandRequirement: {}}
arguments: [cd, /]
inputs: {problem: File}
outputs: {}
"""
JOB = "problem: {class: File, path: problem.json}\n"

PROBLEM = json.dumps({"bqm": document([0], [1.0], [], [], "BINARY")})


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a workflow that is right."""
    monkeypatch.chdir(tmp_path)
    files = {"sf.yml": FILE, "main.cwl": MAIN, "job.yml": JOB, "problem.json": PROBLEM}
    for name, text in {**files, "solve.cwl": SOLVE, "show.cwl": SHOW}.items():
        Path(name).write_text(text)


def remarks() -> list[str]:
    return [str(remark) for remark in check_file("sf.yml", parser_for).remarks]


def test_a_good_file_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "sf.yml"]) == 0
    assert capsys.readouterr().out == "sf.yml: OK (1 workflow, 5 deployments)\n"


TARGET = "workflows.main.bindings[0].target"
MACHINE = "wrap a deployment of type local, or of type ssh with one node"
CASES = {
    "no target": ("{deployment: qpu}", "[]", f"8: {TARGET}: the list of targets is empty; name a deployment"),
    "two bindings": ("step: /show", "step: /solve/", "9: workflows.main.bindings[1].step: /solve/ is bound in line 7, too; keep one binding, which may have several targets"),
    "step as a port": ("step: /show", "port: /show", "9: workflows.main.bindings[1].port: the workflow has no port /show; it is a step: write step: /show"),
    "service of an emulator": ("{deployment: qpu}", "{deployment: qpu, service: a}", f"8: {TARGET}.service: deployment qpu (sfq.emulator) has no services; remove service"),
    "one target twice": ("{deployment: qpu}", "[{deployment: qpu}, {deployment: qpu}]", f"8: {TARGET}[1]: it is the same as target[0]; remove it, or name another deployment or service"),
    "service of a local host": ("{deployment: qpu}", "{deployment: host, service: a}", f"8: {TARGET}.service: deployment host (local) has no services; remove service"),
    "service of a wrapped host": ("{qubits: 9}, wraps: host", "{qubits: 9}, wraps: {deployment: host, service: a}", "15: deployments.qpu.wraps.service: deployment host (local) has no services; remove service"),
    "more locations than nodes": ("{deployment: qpu}", "{deployment: nodes, locations: 3}", f"8: {TARGET}.locations: deployment nodes has 2 locations; write 2 or less"),
    "no location": ("{deployment: qpu}", "{deployment: nodes, locations: 0}", f"8: {TARGET}.locations: 0 is too few; write 1 or more"),
    "QPU over nodes": ("{qubits: 9}, wraps: host", "{qubits: 9}, wraps: nodes", f"15: deployments.qpu.wraps: sfq.emulator cannot wrap nodes, which is of type sfq.nodes; {MACHINE}"),
    "QPU over a queue": ("{qubits: 9}, wraps: host", "{qubits: 9}, wraps: cluster", f"15: deployments.qpu.wraps: sfq.emulator cannot wrap cluster, which is of type sfq.slurm; {MACHINE}"),
    "QPU over two machines": ("{qubits: 9}, wraps: host", "{qubits: 9}, wraps: far", f"15: deployments.qpu.wraps: sfq.emulator cannot wrap far, which has 2 nodes; {MACHINE}"),
    "queue over a QPU": ('{time: "10"}}}, wraps: host', '{time: "10"}}}, wraps: qpu', "16: deployments.cluster.wraps: jobs of cluster never get the QPU of qpu, which it wraps; wrap what qpu wraps, and bind steps to qpu itself"),
    "QPU over itself": ("{qubits: 9}, wraps: host", "{qubits: 9}, wraps: qpu", "15: deployments.qpu.wraps: the deployment wraps itself (qpu -> qpu); wrap another deployment"),
    "topology of another technology": ("{qubits: 9}", "{qubits: 9, topology: square}", "15: deployments.qpu.config.topology: a device of technology annealer has pegasus or zephyr, not square; write one that it has, or remove topology"),
    "folder with a space": ("workdir: work", "workdir: /my work", "10: workflows.main.bindings[1].target.workdir: steps cannot run in '/my work', which has a space; " + RIGHT),
    "folder of a deployment": ("{qubits: 9},", "{qubits: 9}, workdir: /my work,", "15: deployments.qpu.workdir: steps cannot run in '/my work', which has a space; " + RIGHT),
    "Slurm's time": ('"10"', '"ten"', "16: deployments.cluster.config.services.s.time: 'ten' is not a value of Slurm's option time; write minutes, MM:SS, HH:MM:SS or DAYS-HH:MM:SS"),
    "Slurm's nodes": ('time: "10"', 'nodes: "one"', "16: deployments.cluster.config.services.s.nodes: 'one' is not a value of Slurm's option nodes; write a number, or a range such as 1-3"),
    "section": ("deployments:", "deployment:", "11: deployment: unknown key; did you mean deployments?"),
    "version": ("v1.0", "1.0", "1: version: unknown version 1.0; write version: v1.0"),
    "settings": ("settings: job.yml", "settings: {a: 1}", "5: workflows.main.config.settings: {'a': 1} has the wrong type; write text"),
    "key of a client": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {ulr: 'https://a'}", "15: deployments.qpu.config.ulr: unknown key; did you mean url?"),
    "URL without a scheme": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 127.0.0.1:8787}", "15: deployments.qpu.config.url: '127.0.0.1:8787' is not allowed; write a value such as https://qpu.site or http://127.0.0.1:8787 or unix:qpu.sock"),
    "port beyond its range": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://a:99999'}", "15: deployments.qpu.config.url: https://a:99999: its port is not a number from 1 to 65535; see the keys of QPUs of type sfq"),
    "port that is no number": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://a:b'}", "15: deployments.qpu.config.url: https://a:b: its port is not a number from 1 to 65535; see the keys of QPUs of type sfq"),
    "port 0": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'http://127.0.0.1:0'}", "15: deployments.qpu.config.url: http://127.0.0.1:0: its port is not a number from 1 to 65535; see the keys of QPUs of type sfq"),
    "bracket in a URL": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://[::1'}", "15: deployments.qpu.config.url: https://[::1: Invalid IPv6 URL; see the keys of QPUs of type sfq"),
    "space in a URL": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://a b'}", "15: deployments.qpu.config.url: https://a b: there is a space or a control character in it; see the keys of QPUs of type sfq"),
    "query in a URL": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://a?b=1'}", "15: deployments.qpu.config.url: https://a?b=1: it has a query or a fragment; write the part before; see the keys of QPUs of type sfq"),
    "password in a URL": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://me:secret@a'}", "15: deployments.qpu.config.url: https://a: a user or password in a URL is not sent; remove it; see the keys of QPUs of type sfq"),
    "token of several lines": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://a', tokenFile: main.cwl}", "15: deployments.qpu.config.tokenFile: main.cwl: not one line of text; write the token alone in it, or name another file"),
    "token that is a folder": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'https://a', tokenFile: .}", "15: deployments.qpu.config.tokenFile: .: a folder; name an existing file"),
    "URL of slurmrestd": ('config: {services', 'config: {slurmrestd: {url: "ftp://a", tokenFile: job.yml}, services', "16: deployments.cluster.config.slurmrestd.url: ftp://a: expected unix:/path.sock, http://127.0.0.1:PORT or https://HOST; see the key slurmrestd of sfq.slurm"),
    "URL that a client refuses": ("type: sfq.emulator, config: {qubits: 9}", "type: sfq.rest, config: {url: 'http://example.org'}", "15: deployments.qpu.config.url: http://example.org: http is for this machine only; use https; see the keys of QPUs of type sfq"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), CASES.values(), ids=CASES)
def test_one_line_for_one_mistake(old: str, new: str, line: str) -> None:
    edited("sf.yml", old, new)
    assert found() == [f"sf.yml:{line}"]


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        (b"a\nb\n", "not one line of text"),
        (b"\xef\xbb\xbfa\n", "begins with a byte order mark"),
    ],
)
def test_a_token_that_no_header_has_is_told_once(token: bytes, fault: str) -> None:
    Path("token").write_bytes(token)
    rest = "type: sfq.rest, config: {url: 'http://127.0.0.1:1', tokenFile: token}"
    edited("sf.yml", "type: sfq.emulator, config: {qubits: 9}", rest)
    (line,) = found()
    assert f"tokenFile: token: {fault}; write the token alone" in line
    assert remarks() == []


@pytest.mark.parametrize(
    "inner", ["nodes", "far", "cluster", "{deployment: cluster, service: s}"]
)
def test_the_client_of_a_qpu_runs_on_any_deployment(inner: str) -> None:
    edited(
        "sf.yml",
        "type: sfq.emulator, config: {qubits: 9}, wraps: host",
        f"type: sfq.rest, config: {{url: 'https://a'}}, wraps: {inner}",
    )
    assert not [line for line in found() if "wrap" in line]


@pytest.mark.parametrize(("name", "kind"), [("job.yml", "a file"), (".", "a folder")])
def test_a_url_of_what_is_no_socket_is_named(name: str, kind: str) -> None:
    edited(
        "sf.yml",
        "type: sfq.emulator, config: {qubits: 9}",
        f"type: sfq.rest, config: {{url: 'unix:{name}'}}",
    )
    assert found() == [
        f"sf.yml:15: deployments.qpu.config.url: unix:{Path(name).absolute()}: it is "
        f"{kind}, not the socket of a service; see the keys of QPUs of type sfq"
    ]


def test_a_value_that_the_command_of_a_step_refuses() -> None:
    edited("main.cwl", "problem: File, ", "problem: File, reads: int, ")
    edited("main.cwl", "sampler: sampler}", "sampler: sampler, reads: reads}")
    reads = "inputs:\n  reads: {type: int, inputBinding: {prefix: --reads}}\n"
    edited("solve.cwl", "inputs:\n", reads)
    edited("job.yml", "}\n", "}\nreads: -5\n")
    (line,) = found()
    assert line == (
        "job.yml:2: reads: '-5': expected a whole number of at least 1; "
        "/solve passes it to sfq solve --reads"
    )


CANDIDATE = """\
bindingFilters: {choose: {type: sfq.candidate, config: {%s}}}
failureManager: {type: default, config: {max_retries: 3}}
scheduling: {scheduler: {type: sfq.journal, config: {}}}
"""


def candidate(config: str, *targets: str) -> None:
    """Make /solve a candidate."""
    names = ", ".join(f"{{deployment: {name}}}" for name in targets)
    edited("sf.yml", "{deployment: qpu}\n", f"[{names}]\n        filters: [choose]\n")
    edited("sf.yml", "deployments:\n", f"{CANDIDATE % config}deployments:\n")


def test_a_wrong_target_of_a_candidate_is_said_once() -> None:
    candidate("", "qpi", "nodes")
    assert found() == [
        f"sf.yml:8: {TARGET}[0].deployment: there is no deployment 'qpi'; did you mean qpu?"
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("failureManager", "failuremanager", "13: failuremanager: unknown key; did you mean failureManager?"),
        ("scheduling:", "schedulling:", "14: schedulling: unknown key; did you mean scheduling?"),
        ("scheduler:", "sheduler:", "14: scheduling.sheduler: unknown key; did you mean scheduler?"),
        ("sfq.journal", "sfq.jurnal", "14: scheduling.scheduler.type: unknown type 'sfq.jurnal'; did you mean sfq.journal?"),
    ],
)  # fmt: skip
def test_a_misspelt_key_of_a_candidate_is_reported_once(
    old: str, new: str, line: str
) -> None:
    candidate("", "qpu", "nodes")
    edited("sf.yml", old, new)
    assert found() == [f"sf.yml:{line}"]


def test_limits_that_no_problem_meets() -> None:
    candidate("variables: problem, minVariables: 9, maxVariables: 5", "qpu", "nodes")
    config = "sf.yml:12: bindingFilters.choose.config"
    assert found() == [
        f"{config}.variables: input 'problem' of step /solve has the type File; variables "
        "must name an int input of the tool",
        f"{config}.minVariables: minVariables is 9, but maxVariables is 5; no problem of "
        "/solve fits: set a smaller minVariables",
    ]
    assert remarks() == []


def test_a_problem_too_large_for_an_undeployed_qpu_is_reported() -> None:
    larger = document([*range(10)], [1.0] * 10, [], [], "BINARY")
    Path("problem.json").write_text(json.dumps({"bqm": larger}))
    why = "10 variables do not fit on 9 qubits"
    assert found() == [
        f"sf.yml:8: {TARGET}: /solve cannot run now: qpu: {why}; bind it elsewhere, or wait "
        "for the QPU"
    ]
    edited("sf.yml", "{deployment: qpu}", "[{deployment: qpu}, {deployment: nodes}]")
    said = f"{TARGET}[0]: qpu can never run /solve: {why}"
    right = "remove the target, or name a filter sfq.candidate"
    assert found() == [f"sf.yml:8: {said}; {right}"]
    Path("sf.yml").write_text(FILE)
    candidate("", "qpu", "nodes")
    assert (found(), remarks()) == (
        [],
        [f"sf.yml:8: remark: {said}; the other targets run it"],
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "character",
    [*(chr(code) for code in range(32, 127) if chr(code) != "/"), "\t", "é"],
)
def test_a_folder_is_refused_iff_its_command_fails(
    character: str, tmp_path: Path
) -> None:
    folder = tmp_path / f"a{character}b"
    folder.mkdir()
    command = create_command("local", ["pwd"], workdir=str(folder))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    works = done.stdout == f"{folder}\n"
    assert works is (SPECIAL.search(str(folder)) is None)


@pytest.mark.parametrize(
    "character",
    [*(chr(code) for code in range(1, 127) if chr(code) != "/"), "é", "\udcff"],
)
def test_a_file_is_refused_iff_the_parser_reads_another(
    character: str, tmp_path: Path
) -> None:
    from cwl_utils.parser import load_document_by_uri
    from schema_salad.exceptions import ValidationException

    tool = (
        "{cwlVersion: v1.2, class: CommandLineTool, inputs: [], outputs: [], "
        "baseCommand: a, label: %s}"
    )
    for name in ("a", "ab", f"a{character}b"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "t.cwl").write_text(tool % "another")
    folder = tmp_path / f"a{character}b"
    (folder / "t.cwl").write_text(tool % "own")
    try:
        works = load_document_by_uri(str(folder / "t.cwl")).label == "own"
    except (OSError, ValidationException, ValueError):
        works = False
    lines: dict[KeyPath, int] = {("workflows", "w", "config", "file"): 1}
    document = Document(str(folder / "sf.yml"), {}, lines)
    refused = [*check_files(document, {"file": "t.cwl"}, ("workflows", "w"))]
    # Python 3.13 reads a path that is not UTF-8, which earlier ones do not
    assert works is not bool(refused) or (works and character == "\udcff")


@pytest.mark.parametrize("key", ["path", "location"])
@pytest.mark.parametrize(
    ("name", "read"),
    [("x%41", "xA"), ("x\ty", "xy"), ("x\ny", "xy"), ("x%", None), ("x#y", None)],
)
def test_a_name_that_streamflow_misreads_is_refused(
    key: str, name: str, read: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).touch()
    value: JSON = {"class": "File", key: name}
    document = Document(str(tmp_path / "job.yml"), {"f": value}, {("f",): 1})
    problems = [str(one) for one in missing_files(document, value, ("f",))]
    assert bool(problems) is (read is not None)
    assert all(f"names the file {read!r} to StreamFlow" in one for one in problems)


def test_an_escaped_name_that_streamflow_misreads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x%41").touch()
    value: JSON = {"class": "File", "location": "x%2541"}
    document = Document(str(tmp_path / "job.yml"), {"f": value}, {("f",): 1})
    (problem,) = missing_files(document, value, ("f",))
    assert "'x%41' names the file 'xA' to StreamFlow" in str(problem)


def test_a_temporary_folder_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/my tmp")
    assert found() == [
        "sf.yml:3: workflows.main: local steps cannot run in '/my tmp', which has a space;"
        f" set TMPDIR to such a path, or add workdir: {RIGHT}"
    ]


@pytest.mark.process
def test_a_job_without_the_options_of_a_service_is_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_lists(tmp_path / "bin", monkeypatch, sinfo(("p", 1)))
    edited("sf.yml", "{deployment: qpu}", "{deployment: cluster}")
    assert found() == []
    assert remarks() == [
        f"sf.yml:8: remark: {TARGET}: no service of cluster is named, so that none of their "
        "options apply; name one: service: s"
    ]


@pytest.mark.process
def test_no_remark_on_a_service_that_is_misspelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_lists(tmp_path / "bin", monkeypatch, sinfo(("p", 1)))
    edited("sf.yml", "{deployment: qpu}", "{deployment: cluster, services: s}")
    assert found() == [
        f"sf.yml:8: {TARGET}.services: unknown key; did you mean service?"
    ]
    assert remarks() == []


def test_inputs_that_streamflow_ignores_are_remarks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    edited("job.yml", "problem:", "note: made in May\nproblem:")
    assert main(["check", "sf.yml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job.yml:1: remark: note: the workflow has no such input, StreamFlow ignores it;"
        " known: problem, sampler",
        "sf.yml: OK (1 workflow, 5 deployments)",
    ]


def test_a_command_that_no_shell_has() -> None:
    edited("show.cwl", "[cd, /]", "[no-such-tool, /]")
    assert found() == [
        "show.cwl:4: arguments: no-such-tool is not on the PATH of this host, where /show"
        " runs; install it, or bind the step elsewhere"
    ]


def test_commands_and_options_that_sfq_has_not() -> None:
    edited("solve.cwl", "prefix: --problem", "prefix: --problm")
    where = "inputs.problem.inputBinding.prefix"
    line = f"{where}: sfq solve has no option --problm; did you mean --problem?"
    assert found() == [f"solve.cwl:5: {line}"]
    edited("solve.cwl", "solve]", "slove]")
    line = "baseCommand[1]: sfq has no command slove; did you mean solve?"
    assert found() == [f"solve.cwl:3: {line}"]


def test_misspelt_keys_still_mark_a_services_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("service.yml").write_text("devcie: {type: emulated}\n")
    assert main(["check", "service.yml"]) == 2
    said = capsys.readouterr().out
    assert said.startswith(
        "service.yml: devcie: unknown key 'devcie', did you mean 'device'"
    )


def test_findings_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    edited("sf.yml", "{qubits: 9}", "{qubits: 0}")
    Path("service.yml").write_text("device: {type: emulatr}\n")
    edited("job.yml", "problem:", "note: made in May\nproblem:")
    assert main(["check", "--json", "sf.yml", "service.yml"]) == 2
    workflow, service = json.loads(capsys.readouterr().out)["files"]
    key, what = "deployments.qpu.config.qubits", "0 is not allowed"
    assert workflow["problems"] == [
        {
            "text": f"sf.yml:15: {key}: {what}; write 1 or more",
            "file": "sf.yml",
            "line": 15,
            "key": key,
            "what": what,
            "right": "write 1 or more",
        }
    ]
    assert [remark["key"] for remark in workflow["remarks"]] == ["note"]
    assert (workflow["kind"], workflow["ok"]) == ("workflow", False)
    assert (service["kind"], service["ok"]) == ("QPU service", False)
    assert "device" in service["problems"][0]["text"]
