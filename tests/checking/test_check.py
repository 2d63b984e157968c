"""``sfq check``: one line for each thing that is wrong, none for what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum.checking import schema
from sf_quantum.cli import main
from tests.support.checked_files import FILE, GOOD, edited, found, write_project


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with everything that GOOD names."""
    write_project(tmp_path, monkeypatch)


def test_a_good_file_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", FILE]) == 0
    assert capsys.readouterr().out == "sf.yml: OK (1 workflow, 3 deployments)\n"


def test_every_problem_of_every_file_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    edited(FILE, "retry_delay", "retrydelay")
    edited(FILE, "/prepare", "/prepair")
    edited("cwl/main.cwl", "run: tool.cwl\n    in", "run: tol.cwl\n    in")
    assert main(["check", FILE, "none.yml"]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "sf.yml:9: workflows.main.bindings[0].step: the workflow has no step /prepair;"
        " did you mean /prepare?",
        "sf.yml:37: scheduling.scheduler.config.retrydelay: unknown key;"
        " did you mean retry_delay?",
        "cwl/main.cwl:11: steps.prepare.run: tol.cwl: no such file;"
        " did you mean tool.cwl?",
        "none.yml: cannot be read as a StreamFlow file or a service's configuration:"
        " No such file or directory; name a readable file",
    ]


EXPECTED = "expected a StreamFlow file or a service's configuration"
NOT_YAML = [
    ("", f"sf.yml: the file is empty; {EXPECTED}"),
    (
        "- a\n",
        f"sf.yml:1: the file is not a mapping of keys; {EXPECTED}",
    ),
    (
        "a: 1\nb: ]\n",
        "sf.yml:2: not YAML at column 4 (expected the node content, but found ']');"
        f" {EXPECTED}",
    ),
    (
        "a:\n  b: [1]\n    c: 2\n",
        "sf.yml:3: not YAML at column 5 (its indentation does not fit the lines around it);"
        f" {EXPECTED}",
    ),
    (
        "a: 1\na: 2\n",
        "sf.yml:2: not YAML at column 1 (duplicate key 'a');" f" {EXPECTED}",
    ),
]


@pytest.mark.parametrize(("text", "line"), NOT_YAML)
def test_not_a_yaml_mapping(text: str, line: str) -> None:
    Path(FILE).write_text(text)
    assert found() == [line]


BINDING = "workflows.main.bindings"
KEYS = {
    "top level": ("database:", "databse:", "38: databse: unknown key; did you mean database?"),
    "section that others refer to": ("bindingFilters:", "bindingFilter:", "33: bindingFilter: unknown key; did you mean bindingFilters?"),
    "key that others need": ("settings:", "setting:", "7: workflows.main.config.setting: unknown key; did you mean settings?"),
    "key that belongs inside": ("laptop}\n      - step", "laptop}\n        service: a\n      - step", f"11: {BINDING}[0].service: unknown key; write it inside target"),
    "key that belongs inside what is missing": ("target: {deployment: laptop}\n      - step", "deployment: laptop\n      - step", f"10: {BINDING}[0].deployment: unknown key; write it inside target"),
    "key of a connector outside its config": ("type: slurm\n", "type: slurm\n    pollingInterval: 1\n", "28: deployments.cluster.pollingInterval: unknown key; write it inside config"),
    "key that belongs beside": ("config: {}\n    work", "config: {wraps: front}\n    work", "21: deployments.laptop.config.wraps: unknown key; write it beside config"),
    "workflow": ("bindings:", "binding: []\n    bindings:", "8: workflows.main.binding: unknown key; did you mean bindings?"),
    "workflow config": ("settings:", "setting: x\n      settings:", "7: workflows.main.config.setting: unknown key; did you mean settings?"),
    "binding": ("filters:", "filter:", f"15: {BINDING}[1].filter: unknown key; did you mean filters?"),
    "target": ("workdir: /data", "workdir: /data, locatons: 2", f"17: {BINDING}[2].target.locatons: unknown key; did you mean locations?"),
    "deployment": ("workdir: work", "workDir: work", "22: deployments.laptop.workDir: unknown key; did you mean workdir?"),
    "config, closed": ("config: {}\n    work", "config: {bufferSize: 1}\n    work", "21: deployments.laptop.config.bufferSize: unknown key; did you mean transferBufferSize?"),
    "config, unevaluated": ("maxConcurrentJobs", "maxconcurentjobs", "29: deployments.cluster.config.maxconcurentjobs: unknown key; did you mean maxConcurrentJobs?"),
    "service, open in its schema": ("partition:", "partitoin:", "31: deployments.cluster.config.services.quantum.partitoin: unknown key; did you mean partition?"),
    "service of any name": ("quantum: {partition", "GPU: {nodez: 1}\n        quantum: {partition", "31: deployments.cluster.config.services.GPU.nodez: unknown key; did you mean nodes?"),
    "filter": ("shuffle, config: {}", "shuffle, config: {seed: 1}", "34: bindingFilters.mix.config.seed: unknown key; none is defined"),
    "failure manager": ("max_retries", "maxRetries", "35: failureManager.config.maxRetries: unknown key; did you mean max_retries?"),
    "scheduling": ("scheduler:", "sheduler:", "37: scheduling.sheduler: unknown key; did you mean scheduler?"),
    "database": ("connection:", "conection: x, connection:", "38: database.config.conection: unknown key; did you mean connection?"),
}  # fmt: skip


VALUES = {
    "type": ("type: slurm", "type: slrum", "27: deployments.cluster.type: unknown type 'slrum'; did you mean slurm?"),
    "missing type": ("    type: local\n", "", "19: deployments.laptop: type is missing; add type:"),
    "missing config": ("    config: {}\n", "", "19: deployments.laptop: config is missing; add config:"),
    "empty config": ("config: {}\n    work", "config:\n    work", "21: deployments.laptop.config: the value is empty; write a mapping of keys, {} for none"),
    "wrong kind": ("Jobs: 4", "Jobs: many", "29: deployments.cluster.config.maxConcurrentJobs: 'many' has the wrong type; write a whole number"),
    "number for text": ("{partition: qpu,", "{partition: 1,", '31: deployments.cluster.config.services.quantum.partition: 1 has the wrong type; write text: "1"'),
    "neither kind": ("nodes: [login.example.org]", "nodes: [1]", "25: deployments.front.config.nodes[0]: 1 has the wrong type; write text or a mapping of keys"),
    "range": ("config: {}\n    work", "config: {transferBufferSize: 0}\n    work", "21: deployments.laptop.config.transferBufferSize: 0 is not allowed; write 1 or more"),
    "list": ("local\n    config: {}", "sfq.nodes\n    config: {names: []}", "21: deployments.laptop.config.names: [] is not allowed; list at least 1"),
    "pattern": ("local\n    config: {}", "sfq.nodes\n    config: {names: [a/b]}", "21: deployments.laptop.config.names[0]: 'a/b' is not allowed; write what matches ^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    "version": ("v1.0", "v2.0", "1: version: unknown version 'v2.0'; write version: v1.0"),
    "rivals": ("{deployment: laptop}\n      - step", "{deployment: laptop, model: laptop}\n      - step", f"10: {BINDING}[0].target: deployment and model are both given; keep one"),
    "name": ("  mix: {", "  b: {type: shuffle}\n  mix: {", "34: bindingFilters.b: config is missing; add config:"),
}  # fmt: skip

NAMES = {
    "deployment of a target": ("deployment: laptop}\n      - step", "deployment: labtop}\n      - step", f"10: {BINDING}[0].target.deployment: there is no deployment 'labtop'; did you mean laptop?"),
    "service": ("service: quantum", "service: quantom", f"13: {BINDING}[1].target[0].service: deployment cluster has no service 'quantom'; did you mean quantum?"),
    "filter": ("[mix]", "[mux]", f"15: {BINDING}[1].filters[0]: bindingFilters has no 'mux'; did you mean mix?"),
    "wrapped deployment": ("wraps: front", "wraps: font", "32: deployments.cluster.wraps: there is no deployment 'font'; did you mean front?"),
    "wrapped service": ("wraps: front", "wraps: {deployment: front, service: a}", "32: deployments.cluster.wraps.service: deployment front has no service 'a'; none is defined"),
    "wraps nothing": ("workdir: work\n", "wraps: front\n", "22: deployments.laptop.wraps: a deployment of type local cannot wrap another; remove wraps"),
    "wraps itself": ("wraps: front", "wraps: cluster", "32: deployments.cluster.wraps: the deployment wraps itself (cluster -> cluster); wrap another deployment"),
    "policy": ("workdir: work\n", "scheduling_policy: best\n", "22: deployments.laptop.scheduling_policy: scheduling.policies has no 'best'; known: __DEFAULT__"),
    "port without workdir": (", workdir: /data", "", f"17: {BINDING}[2].target: workdir is missing; add workdir: the folder that holds the port's data"),
    "step": ("step: /loop/solve", "step: /solve", f"11: {BINDING}[1].step: the workflow has no step /solve; did you mean /loop/solve?"),
    "port as a step": ("step: /prepare", "step: /prepare/points", f"9: {BINDING}[0].step: the workflow has no step /prepare/points; it is a port: write port: /prepare/points"),
    "step of another level": ("step: /prepare", "step: /loop/prepare", f"9: {BINDING}[0].step: the workflow has no step /loop/prepare; did you mean /prepare?"),
    "port": ("port: /archive", "port: /achive", f"16: {BINDING}[2].port: the workflow has no port /achive; did you mean /archive?"),
    "relative step": ("step: /prepare", "step: prepare", f"9: {BINDING}[0].step: 'prepare' is not an absolute path; write /prepare"),
}  # fmt: skip

FILES = {
    "workflow": ("cwl/main.cwl", "cwl/man.cwl", "6: workflows.main.config.file: cwl/man.cwl: no such file; did you mean main.cwl?"),
    "settings": ("job.yml", "jop.yml", "7: workflows.main.config.settings: jop.yml: no such file; did you mean job.yml?"),
    "workflow elsewhere": ("cwl/main.cwl", "wf/main.cwl", "6: workflows.main.config.file: wf/main.cwl: no such file; a relative path starts at the StreamFlow file"),
    "no settings": ("      settings: job.yml\n", "", "5: workflows.main.config.settings: settings is missing, and the workflow needs points, archive; name a file with their values"),
    "key": ("sshKey: key", "sshKey: kee", "25: deployments.front.config.sshKey: kee: no such file; name an existing file"),
    "nested key": ("[login.example.org]", "[{hostname: a, passwordFile: no}]", "25: deployments.front.config.nodes[0].passwordFile: no: no such file; name an existing file"),
    "job template": ("job.sh", "jop.sh", "31: deployments.cluster.config.services.quantum.file: jop.sh: no such file; did you mean job.sh?"),
}  # fmt: skip


CASES = {"key": KEYS, "value": VALUES, "name": NAMES, "file": FILES}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        pytest.param(*case, id=f"{what}, {name}")
        for what, cases in CASES.items()
        for name, case in cases.items()
    ],
)
def test_one_line_for_one_fault(old: str, new: str, line: str) -> None:
    Path("far.csv").touch()  # some cases take away the port that lies elsewhere
    edited(FILE, old, new)
    assert found() == [f"{FILE}:{line}"]


INPUTS = {
    "unknown": ("points:", "seeds: 3\npoints:", "1: seeds: the workflow has no such input; did you mean seed?"),
    "missing": ("points: {class: File, path: points.csv}\n", "", "1: the input points is missing; add points: (its type is File)"),
    "missing file": ("points.csv", "point.csv", "1: points: point.csv: no such file; did you mean points.csv?"),
    "text for a file": ("{class: File, path: points.csv}", "points.csv", "1: points: the value is not a File; write {class: File, path: ...}"),
    "text for a number": ("points:", "limit: high\npoints:", "1: limit: 'high' does not fit; its type is int"),
    "truth for a number": ("points:", "limit: true\npoints:", "1: limit: True does not fit; its type is int"),
    "not YAML": ("points:", "{:", "2: not YAML at column 1 (expected ',' or '}', but got '<scalar>'); expected a file of inputs"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), INPUTS.values(), ids=INPUTS)
def test_inputs(old: str, new: str, line: str) -> None:
    edited("job.yml", old, new)
    assert found() == [f"job.yml:{line}"]


def test_a_file_that_is_not_cwl() -> None:
    Path("cwl/main.cwl").write_text("a: 1\n")
    assert found() == [
        "cwl/main.cwl:1: the file does not look like CWL; expected cwlVersion and a class, one"
        " of Workflow, CommandLineTool, ExpressionTool, Operation"
    ]


def test_a_workflow_that_runs_itself() -> None:
    edited("cwl/main.cwl", "run: tool.cwl\n    in", "run: main.cwl\n    in")
    assert found() == [
        "cwl/main.cwl:11: steps.prepare.run: main.cwl runs itself; run another file"
    ]


def test_a_tool_that_is_not_on_the_path() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    assert found() == [
        "cwl/tool.cwl:3: baseCommand: no-such-tool is not on the PATH of this host,"
        f" where {step} runs; install it, or bind the step elsewhere"
        for step in ("/prepare", "/loop/solve")
    ]


def test_nothing_is_said_of_tools_elsewhere() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    edited(FILE, "step: /prepare", "step: /")
    edited(FILE, "          - {deployment: laptop}\n", "")
    edited(
        FILE, "{deployment: laptop}\n      - step", "{deployment: front}\n      - step"
    )
    assert found() == []


def test_nothing_is_said_of_tools_in_containers() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    edited("cwl/main.cwl", "steps:\n  p", "hints: {DockerRequirement: {}}\nsteps:\n  p")
    assert found() == []


def test_our_locations_run_tools_where_what_they_wrap_does() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    edited(FILE, "/loop/solve", "/loop")
    edited(FILE, "local\n    config: {}", "sfq.nodes\n    config: {names: [a]}")
    assert len(found()) == 2
    edited(FILE, "workdir: work\n", "wraps: front\n")
    assert found() == []


def test_keys_of_our_own_connectors() -> None:
    edited(FILE, "local\n    config: {}", "sfq.emulator\n    config: {timescale: 0}")
    assert found() == [
        "sf.yml:21: deployments.laptop.config.timescale: unknown key;"
        " did you mean timeScale?"
    ]


FALLBACK = (
    "onFailure: fallback needs a failureManager, which is missing; add failureManager:"
    " {type: default, config: {max_retries: 3}} or write onFailure: fail"
)


@pytest.mark.parametrize("manager", ["", "failureManager: {type: dummy, config: {}}\n"])
def test_fallback_without_a_failure_manager(manager: str) -> None:
    old = "failureManager: {type: default, config: {max_retries: 3}}\n"
    edited(FILE, old, manager)
    assert found() == []
    edited(FILE, "shuffle, config: {}", "sfq.candidate, config: {}")
    line = f"sf.yml:34: bindingFilters.mix.config.onFailure: {FALLBACK}"
    assert line in found()
    edited(FILE, "candidate, config: {}", "candidate, config: {onFailure: fail}")
    assert line not in found()


def test_nothing_is_said_of_what_is_fetched_from_elsewhere() -> None:
    edited("cwl/main.cwl", "run: tool.cwl\n    in", "run: http://x/a.cwl\n    in")
    edited(FILE, "step: /prepare", "step: /prepare/inner/step")
    assert found() == []


def test_a_packed_workflow() -> None:
    Path("cwl/main.cwl").write_text("""\
cwlVersion: v1.2
$graph:
  - {id: tool, class: CommandLineTool, inputs: [], outputs: [], baseCommand: nope}
  - id: "#main"
    class: Workflow
    inputs: [{id: "#main/points", type: File}, {id: archive, type: ["null", File]}]
    outputs: []
    steps:
      - {id: "#main/prepare", run: "#tool", in: [], out: []}
""")
    edited(FILE, "/loop/solve", "/prepare/inner")
    assert found() == [
        f"sf.yml:11: {BINDING}[1].step: the workflow has no step /prepare/inner;"
        " did you mean /prepare?",
        "cwl/main.cwl:3: $graph[0].baseCommand: nope is not on the PATH of this host,"
        " where /prepare runs; install it, or bind the step elsewhere",
    ]


# Real files, in the forms StreamFlow's documentation and users give them.
REAL = {
    "docker compose": """
        dc-mpi:
          type: docker-compose
          config:
            files: [environment/docker-compose/docker-compose.yml]
            compatibility: true
            projectName: openmpi
        """,
    "kubernetes": """
        k8s-mpi:
          type: kubernetes
          config: {files: [environment/k8s/deployment.yaml]}
          workdir: /tmp
        """,
    "helm": """
        helm-mpi:
          type: helm
          config: {chart: environment/helm/openmpi, releaseName: openmpi-rel}
        """,
    "docker": """
        box:
          type: docker
          config:
            image: qsplit:latest
            workdir: /workspace
            volume: [.:/workspace]
            env: [PYTHONPATH=/workspace/src]
        """,
    "singularity in slurm over ssh": """
        login:
          type: ssh
          config:
            nodes: [{hostname: hpc.example.edu, sshKey: key, username: user}]
            checkHostKey: false
            tunnel: {hostname: gate.example.edu}
            sharedPaths: [/scratch]
        queue:
          type: slurm
          config:
            maxConcurrentJobs: 10
            pollingInterval: 2
            services:
              GPU: {gpus: 2, nodes: 1} # not checked by StreamFlow: a capital
              cpu: {nodes: "1", time: "00:10:00"}
              template: {file: job.sh}
          wraps: {deployment: login}
        box:
          type: singularity
          config: {image: "docker://python:3.10", nv: true}
          wraps: {deployment: queue, service: GPU}
        """,
    "the old inline form": """
        old:
          type: slurm
          config:
            file: job.sh
            hostname: login01.example.it
            maxConcurrentSessions: 5
            sshKey: key
            username: me
          workdir: /scratch
        """,
    "pbs with free resources": """
        pbs:
          type: pbs
          config:
            services:
              small: {destination: short, resources: {select: 1, walltime: "1:00"}}
        flux: {type: flux, config: {}}
        """,
}


@pytest.mark.parametrize("text", REAL.values(), ids=REAL)
def test_no_false_alarm(text: str) -> None:
    name = text.split()[0].rstrip(":")
    body = "\n".join(f"  {line[8:]}" for line in text.splitlines())
    Path(FILE).write_text(f"""\
version: v1.0
workflows:
  main:
    type: cwl
    config:
      file: cwl/main.cwl
      settings: job.yml
      docker:
        - step: /loop
          deployment: {{type: singularity, config: {{}}, wrapper: false}}
    bindings:
      - step: /
        target: [{{deployment: {name}, locations: 2}}]
      - port: /archive
        target: {{deployment: {name}, workdir: /data}}
checkpointManager: {{enabled: false}}
scheduling:
  policies:
    locality: {{type: data_locality, config: {{}}}}
deployments:
{body}
""")
    assert found() == []


def test_the_older_words_are_taken() -> None:
    text = GOOD.replace("deployments:", "models:").replace("{deployment:", "{model:")
    Path(FILE).write_text(text)
    assert found() == []


def test_what_streamflow_refuses_is_never_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema.Rules, "_walk", lambda *_: iter(()))
    edited(FILE, "max_retries: 3", "max_retries: many")
    assert found() == [
        "sf.yml:35: failureManager.config.max_retries: StreamFlow rejects it: 'many' is"
        " not of type 'integer'; see its documentation"
    ]


def test_a_plugin_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ImportError("No module named 'site_plugin'")

    monkeypatch.setattr(schema, "load_extensions", broken)
    monkeypatch.setattr("sf_quantum.checking.rules", schema.Rules)
    assert main(["check", FILE]) == 2
    assert capsys.readouterr().err == (
        "sfq check: a StreamFlow plugin cannot be loaded: No module named 'site_plugin';"
        " install or remove it\n"
    )


@pytest.mark.parametrize("key", ["maxConcurrentJobs", "maxConnections", "retries"])
def test_limits_that_let_nothing_through_are_problems(key: str) -> None:
    if key == "maxConcurrentJobs":
        edited(FILE, "maxConcurrentJobs: 4", "maxConcurrentJobs: 0")
    else:
        edited(FILE, "username: me", f"username: me, {key}: 0")
    (line,) = found()
    assert f".{key}: 0 " in line
    assert line.endswith("; write 1 or more")
