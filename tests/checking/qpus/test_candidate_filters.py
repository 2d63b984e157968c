"""``sfq check`` of the filters of quantum candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.qpu.vendors.dwave import DWaveQpu
from tests.support.checked_files import FILE, candidate, edited, found, write_project


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with everything that GOOD names."""
    write_project(tmp_path, monkeypatch)


def test_a_candidate_that_is_right() -> None:
    config = "{variables: n, costs: {q: 1}, steps: {/loop: {prefer: earliest}}}"
    candidate("{deployment: q}", config)
    assert found() == []


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            "{maxwait: 3}",
            "bindingFilters.mix.config.maxwait: unknown key; did you mean maxWait?",
        ),
        (
            "{steps: {/loop/solve: {cooldown: 3}}}",
            "bindingFilters.mix.config.steps./loop/solve.cooldown: unknown key; write it "
            "beside steps",
        ),
        (
            "{prefer: earlier}",
            "bindingFilters.mix.config.prefer: unknown prefer 'earlier'; did you mean "
            "earliest?",
        ),
        (
            # said once, though the cost of q is missing, too
            "{costs: {qq: 3}, budget: {cost: 9}}",
            "bindingFilters.mix.config.costs.qq: qq is not a target of any binding that "
            "names this filter; did you mean q?",
        ),
        (
            "{priority: 1001}",
            "bindingFilters.mix.config.priority: 1001 is not allowed; write 1000 or less",
        ),
        (
            "{latestStart: '2026-12-01T08:00'}",
            "bindingFilters.mix.config.latestStart: '2026-12-01T08:00' is not allowed; "
            "use a time with its zone, such as 2026-12-01T08:00:00+01:00",
        ),
        (
            "{steps: {/loop: {latestStart: '2026-02-30T08:00Z'}}}",
            "bindingFilters.mix.config.steps./loop.latestStart: '2026-02-30T08:00Z' is "
            "not allowed; use a time with its zone, such as 2026-12-01T08:00:00+01:00",
        ),
        (
            "{steps: {/prepare: {maxWait: 3}}}",
            "bindingFilters.mix.config.steps./prepare: no binding of /prepare names the "
            "filter mix; known: /loop/solve",
        ),
        (
            "{variables: size}",
            "bindingFilters.mix.config.variables: the tool of step /loop/solve has no "
            "input 'size'; variables must name an int input of the tool, one of: n",
        ),
        (
            "{steps: {/loop: {reads: points}}}",
            "bindingFilters.mix.config.steps./loop.reads: input 'points' of step "
            "/loop/solve has the type File; reads must name an int input of the tool, one "
            "of: n",
        ),
        (
            "{maxVariables: 3}",
            "bindingFilters.mix.config.maxVariables: maxVariables needs the number of "
            "variables of the step's problem; name the int input that holds it: "
            "variables: INPUT",
        ),
        (
            "{steps: {/loop: {minVariables: 3}}}",
            "bindingFilters.mix.config.steps./loop.minVariables: minVariables needs the "
            "number of variables of the step's problem; name the int input that holds it: "
            "variables: INPUT",
        ),
    ],
)
def test_a_filter_that_does_not_fit_its_steps(config: str, line: str) -> None:
    candidate("{deployment: q}", config)
    assert found() == [f"sf.yml:35: {line}"]


@pytest.mark.parametrize(
    ("targets", "config", "what"),
    [
        ("{deployment: q}", "{forecast: plan}", "without prefer: earliest"),
        (
            "{deployment: q}",
            "{forecast: plan, steps: {/loop: {prefer: earliest}}}",
            "as no target is on sfq.slurm",
        ),
    ],
)
def test_forecasts_without_effect(targets: str, config: str, what: str) -> None:
    candidate(targets, config)
    (remark,) = check_file(FILE).remarks
    assert what in str(remark)


def test_the_size_of_a_problem_is_an_input_of_the_tool() -> None:
    """StreamFlow passes no further input of the workflow's step on to its jobs."""
    candidate("{deployment: q}", "{variables: size}")
    edited("cwl/main.cwl", "in: {table: prepare/table}", IN.replace("n:", "size:"))
    edited("cwl/main.cwl", "inputs: {table: File}", "inputs: {table: File, size: int}")
    edited(
        "cwl/main.cwl", "source: table}]", "source: table}, {id: size, source: size}]"
    )
    edited("job.yml", "archive:", "limit: 9\narchive:")
    (line,) = [line for line in found() if "bindingFilters" in line]
    assert "the tool of step /loop/solve has no input 'size'" in line


def test_a_limit_on_variables_that_another_level_names_is_right() -> None:
    candidate("{deployment: q}", "{maxVariables: 3, steps: {/loop: {variables: n}}}")
    assert found() == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{budget: {cost: 3}}", True),
        ("{steps: {/loop/solve: {budget: {cost: 3}}}}", True),
        ("{steps: {/prepare: {budget: {cost: 3}}}}", False),
        ("{budget: {qpuSeconds: 3}}", False),
        ("{budget: {cost: 3}, costs: {q: 0}}", False),
    ],
)
def test_a_limit_on_costs_of_a_qpu_that_has_no_price(config: str, said: bool) -> None:
    candidate("{deployment: q}", config)
    line = (
        "sf.yml:13: workflows.main.bindings[1].target[0]: q is emulated and costs nothing, so "
        "budget.cost does not limit it; set the cost of a QPU second: costs: {q: ...}"
    )
    assert (line in found()) == said


@pytest.mark.parametrize("config", ["{}", "{onFailure: fail}"])
def test_a_candidate_with_fewer_attempts_than_places(config: str) -> None:
    candidate("{deployment: q}", config)
    edited(FILE, "max_retries: 3", "max_retries: 2")
    assert found() == []
    edited(FILE, "max_retries: 2", "max_retries: 1")
    said = (
        "sf.yml:36: failureManager.config.max_retries: /loop/solve needs 2 attempts to "
        "try all its targets; use 2 or more"
    )
    assert found() == ([said] if config == "{}" else [])


def test_a_candidate_that_has_nothing_to_decide() -> None:
    candidate("{deployment: cluster}", "{}")
    said = "without a quantum target, the filter has nothing to decide; add a quantum target"
    assert found() == [f"sf.yml:12: workflows.main.bindings[1].target: {said}"]
    edited(FILE, "          - {deployment: cluster}\n", "")
    edited(FILE, "          - {deployment: laptop}\n", "          - {deployment: q}\n")
    said = (
        "with only one target, the filter has nothing to decide; add a classical target"
    )
    assert found() == [f"sf.yml:12: workflows.main.bindings[1].target: {said}"]
    twice = "          - {deployment: q}\n"
    edited(FILE, twice, 2 * twice)
    said = (
        "it is the same as target[0]; remove it, or name another deployment or service"
    )
    assert found() == [f"sf.yml:14: workflows.main.bindings[1].target[1]: {said}"]


def test_a_candidate_without_a_journal() -> None:
    candidate("{deployment: q}", "{}")
    edited(FILE, "type: sfq.journal, config: {}", "type: default, config: {}")
    assert found() == [
        "sf.yml:35: bindingFilters.mix: sfq.candidate learns from the run's journal, "
        "which is missing; add scheduling: {scheduler: {type: sfq.journal, config: {}}}"
    ]


def test_a_candidate_filter_that_no_binding_names_is_a_remark() -> None:
    candidate("{deployment: q}", "{}")
    edited(FILE, "        filters: [mix]\n", "")
    findings = check_file(FILE)
    assert not findings.problems
    step, unnamed = map(str, findings.remarks)
    assert "has quantum and classical targets, but no filter" in step
    line = "bindingFilters.mix: no binding names this filter; add filters: [mix] to "
    assert (
        unnamed
        == f"sf.yml:34: remark: {line}the binding of the step, or remove the filter"
    )


@pytest.mark.parametrize(
    ("target", "are_mixed"), [("{deployment: q}", True), ("{deployment: host}", False)]
)
def test_two_kinds_of_targets_without_a_filter_are_a_remark(
    target: str, *, are_mixed: bool
) -> None:
    candidate(target, "{}")
    edited(FILE, "        filters: [mix]\n", "")
    edited(FILE, "mix: ", "other: ")
    edited(FILE, "deployments:\n", "deployments:\n  host: {type: local, config: {}}\n")
    what = "/loop/solve has quantum and classical targets, but no filter: StreamFlow "
    remarks = [*map(str, check_file(FILE).remarks)]
    assert any(what in line for line in remarks) == are_mixed


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("sfw", "unknown QPU type 'sfw'; did you mean sfq?"),
        (
            "dwave",
            "QPUs of type dwave cannot be used: it is gone; install what is missing",
        ),
    ],
)
def test_kinds_of_qpu(kind: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DWaveQpu, "problem", lambda: "it is gone")
    candidate("{deployment: q}", "{}")
    edited(
        FILE,
        "sfq.emulator, config: {}",
        f"sfq.rest, config: {{url: 'https://q', type: {kind}}}",
    )
    assert found() == [f"sf.yml:33: deployments.q.config.type: {line}"]


REFUSED = [
    ("priority: 5", "QPUs of type dwave have no priorities; omit priority"),
    ("reservation: r", "QPUs of type dwave have no reservations; omit reservation"),
]


@pytest.mark.parametrize(("hint", "line"), REFUSED)
def test_hints_that_a_kind_of_qpu_has_not(hint: str, line: str) -> None:
    key, config = hint.partition(":")[0], f"{{{hint}, url: 'https://q', type: dwave}}"
    candidate("{deployment: q}", "{}")
    edited(FILE, "sfq.emulator, config: {}", f"sfq.rest, config: {config}")
    assert found() == [f"sf.yml:33: deployments.q.config.{key}: {line}"]


@pytest.mark.parametrize(("hint", "line"), REFUSED)
def test_hints_of_candidates_that_their_qpu_has_not(hint: str, line: str) -> None:
    key, config = hint.partition(":")[0], "{url: 'https://q', type: dwave}"
    candidate("{deployment: q}", f"{{{hint}}}")
    edited(FILE, "sfq.emulator, config: {}", f"sfq.rest, config: {config}")
    (told,) = [one for one in found() if key in one]
    where = f"sf.yml:35: bindingFilters.mix.config.{key}: "
    assert told == f"{where}q can never run /loop/solve: {line}"


def limited(config: str) -> list[str]:
    """The remarks on a candidate's limits, for a problem of nine variables."""
    candidate = f"type: sfq.candidate, config: {config}"
    edited(FILE, "type: shuffle, config: {}", candidate)
    edited(FILE, "{deployment: cluster, service: quantum}", "{deployment: q}")
    edited(FILE, "  front:\n", "  q: {type: sfq.emulator, config: {}}\n  front:\n")
    edited(FILE, "type: default, config: {retry_delay: 1}", JOURNAL)
    edited("cwl/main.cwl", "inputs: {table: File}", "inputs: {table: File, n: int?}")
    edited("cwl/main.cwl", "source: table}]", "source: table}, {id: n, source: n}]")
    edited("cwl/main.cwl", "in: {table: prepare/table}", IN)
    edited("cwl/tool.cwl", "inputs: {points: File}", "inputs: {points: File, n: int?}")
    edited("job.yml", "archive:", "limit: 9\narchive:")
    text = "no job of /loop/solve goes to a QPU"
    return [str(one) for one in check_file(FILE).remarks if text in one.what]


JOURNAL = "type: sfq.journal, config: {}"
IN = "in: {table: prepare/table, n: limit}"
NOTHING: dict[str, tuple[str, bool]] = {
    "no seconds": ("{budget: {qpuSeconds: 0}}", True),
    "no seconds of the step": (
        "{budget: {qpuSeconds: 9}, steps: {/loop: {budget: {qpuSeconds: 0}}}}",
        True,
    ),
    "less than a job": ("{budget: {qpuSeconds: 9}, expectedSeconds: 10}", True),
    "a job": ("{budget: {qpuSeconds: 10}, expectedSeconds: 10}", False),
    "less than a job costs": (
        "{budget: {cost: 9}, costs: {q: 2}, expectedSeconds: 5}",
        True,
    ),
    "what a job costs": (
        "{budget: {cost: 10}, costs: {q: 2}, expectedSeconds: 5}",
        False,
    ),
    "free QPUs alone": ("{budget: {cost: 0}, costs: {q: 0}}", False),
    "below the size": ("{variables: n, maxVariables: 8}", True),
    "the size": ("{variables: n, maxVariables: 9, minVariables: 9}", False),
    "above the size": ("{variables: n, minVariables: 10}", True),
    # a QPU that is free starts the job at once
    "no wait": ("{maxWait: 0}", False),
    "a time that has passed": ("{latestStart: '2026-01-01T00:00Z'}", True),
    "a time to come": ("{latestStart: '2999-01-01T00:00Z'}", False),
}


@pytest.mark.parametrize(("config", "remarked"), NOTHING.values(), ids=NOTHING)
def test_limits_that_allow_no_qpu_are_remarks(config: str, remarked: bool) -> None:
    lines = limited(config)
    assert found() == []
    assert len(lines) == remarked


@pytest.mark.parametrize(
    "config",
    [
        "{budget: {qpuSeconds: .nan}}",
        "{budget: {cost: .nan}, costs: {q: 1}}",
        "{budget: {qpuSeconds: 9}, expectedSeconds: .nan}",
    ],
)
def test_a_limit_that_is_not_a_number_is_told_once(config: str) -> None:
    assert limited(config) == []
    (line,) = found()
    assert "nan is not allowed" in line
