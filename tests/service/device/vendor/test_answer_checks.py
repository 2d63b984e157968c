"""What a vendor answers is checked before it counts: results, times, ids and texts."""

from __future__ import annotations

import json
import math
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from dimod import BinaryQuadraticModel, SampleSet
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Timing, Topology
from sf_quantum.protocol.tasks import Outcome, Progress, Result, State, Task
from sf_quantum.qpu import QpuStatus
from sf_quantum.service.device.foreign import TooLarge, plain
from sf_quantum.service.device.processes.verification import WrongResult, verified
from sf_quantum.service.device.vendor import answer_checks as vendor_answers
from sf_quantum.service.device.vendor import evidence, job_ids
from sf_quantum.service.device.vendor.answer_checks import Passed, VendorAnswers
from sf_quantum.service.device.vendor.job_ids import VendorJobIds
from sf_quantum.text import shortened
from tests.support.results import Honest, circuit, honest, lies, problems, samples
from tests.support.service import example_bqm

Content = dict[str, JSON]
ESCAPES = "\x1b[2Jboo\n" + "x" * 10**6
TASK = Task("sfq-1-1", "problem", json.dumps(example_bqm()), {"num_reads": 5})
SAMPLES: Content = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
    [{"a": 1, "b": 0, "c": 1}] * 5,
    BinaryQuadraticModel.from_serializable(example_bqm()),
).to_serializable()
del SAMPLES["info"]
RESULT = Result(json.dumps(SAMPLES), {"sampler": "acme"})
LONG = Passed(1e6, 1e6)


def is_plain(text: str | None) -> bool:
    return text is not None and 0 < len(text) <= 1000 and text.isprintable()


# results


@given(honest())
@settings(deadline=None)
def test_an_honest_result_is_accepted(job: Honest) -> None:
    told = verified(*job.verified_with(job.result))
    assert told.difference == 0
    # and again, as it is now, whatever form it had
    again = verified(*job.verified_with(told.content))
    assert again == told


@given(lies())
@settings(deadline=None, max_examples=300)
def test_a_lie_is_turned_down(case: tuple[Honest, Content]) -> None:
    job, lie = case
    with pytest.raises(WrongResult) as caught:
        verified(*job.verified_with(lie))
    assert is_plain(str(caught.value))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    ),
    honest(),
)
@settings(deadline=None)
def test_any_json_is_read_or_turned_down(told: JSON, job: Honest) -> None:
    kind, payload, _, shots = job.verified_with(job.result)
    # only what has no reads at all may pass: of photons, none may meet the conditions
    try:
        read = verified(kind, payload, json.dumps(told), shots)
    except WrongResult:
        return
    assert (kind, read.content) == ("photonic", {"counter": {}})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", '{"x": <<<not json>>>}', "[]", "1", '"counter"', "{" * 10**5),
        *("[" * 10**6, '{"counter": NaN}', '{"counter": {"0": Infinity}}'),
        *(
            "9" * 5000,
            '{"counter": {"0": 1e999}}',
            '{"a": ' * 10**5 + "1" + "}" * 10**5,
        ),
    ],
)
def test_what_is_not_json_is_turned_down(text: str) -> None:
    with pytest.raises(WrongResult):
        verified("circuit", json.dumps(circuit(1)), text, 1)


@given(st.data())
@settings(deadline=None)
def test_energies_are_those_of_the_problem(data: st.DataObject) -> None:
    bqm = data.draw(problems())
    told = data.draw(samples(bqm, 3))
    vectors = mapping(told["vectors"])
    energy = mapping(vectors["energy"])
    given_energies = [float(str(one)) for one in cast("list[JSON]", energy["data"])]
    added = data.draw(st.floats(-1e6, 1e6))
    changed: JSON = [one + added for one in given_energies]
    array = {**energy, "data": changed, "data_type": "float64"}
    lie = {**told, "vectors": {**vectors, "energy": array}}
    right = verified("problem", json.dumps(bqm), json.dumps(told), 3)
    read = verified("problem", json.dumps(bqm), json.dumps(lie), 3)
    assert read.content == right.content
    sizes = [*cast("list[float]", bqm["linear_biases"]), cast("float", bqm["offset"])]
    sizes += cast("list[float]", bqm["quadratic_biases"])
    largest = sum(map(abs, sizes))
    if abs(added) > 1e-12 * largest + 1e-300:
        assert read.difference == pytest.approx(abs(added), abs=1e-14 * largest)
    elif abs(added) < 1e-17 * largest:
        assert read.difference == 0


def test_energies_off_by_rounding_are_not_told() -> None:
    bqm = BinaryQuadraticModel({"a": 0.1, "b": 0.2}, {"ab": 0.3}, 1e9, "BINARY")
    found = SampleSet.from_samples_bqm({"a": 1, "b": 1}, bqm)  # type: ignore[no-untyped-call]
    told: Content = found.to_serializable()
    other = 1e9 + 0.1 + 0.2 + 0.3
    told["vectors"]["energy"]["data"] = [other]  # type: ignore[index,call-overload]
    payload = json.dumps(bqm.to_serializable())
    assert verified("problem", payload, json.dumps(told), 1).difference == 0


def test_fewer_reads_are_accepted_where_documented() -> None:
    payload = {**example_bqm(), "info": {"solver_parameters": {"max_answers": 2}}}
    text = json.dumps(SAMPLES)
    # as they are, there is a sample for each read
    few = json.dumps(_aggregated(SAMPLES))
    for told, fewer in ((payload, False), (example_bqm(), True)):
        job = json.dumps(told)
        read = verified("problem", job, text, 9, fewer=fewer).content
        assert mapping(mapping(read["vectors"])["energy"])["data"] == [-1.75] * 5
        with pytest.raises(WrongResult, match="5 reads, up to 3"):
            verified("problem", job, few, 3, fewer=fewer)
    with pytest.raises(WrongResult, match="5 reads, 9 were"):
        verified("problem", json.dumps(example_bqm()), text, 9)


def _aggregated(told: Content) -> Content:
    whole = SampleSet.from_serializable({**told, "info": {}})  # type: ignore[no-untyped-call]
    content: Content = json.loads(json.dumps(whole.aggregate().to_serializable()))
    return content


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("bit[2] a;\nbit b;\nb = measure q[0];", 3),
        ('qubit[2] q; bit[2] c = "00";', 2),
        ('include "stdgates.inc";\ncreg a[2];creg b[3];', 5),
        ("gate g q { x q; } bit[4] c;", 4),
        # what only a parser could tell: as many bits in each
        ("const int n = 3; bit[n] c;", None),
        ("output bit[3] c;", None),
        ("qubit q;", None),
    ],
)
def test_bit_strings_have_the_bits_that_a_circuit_declares(
    text: str, width: int | None
) -> None:
    for bits in range(1, 7):
        result = json.dumps({"counter": {"0" * bits: 1, "1" * bits: 1}})
        if width in (None, bits):
            verified("circuit", json.dumps(text), result, 2)
        else:
            with pytest.raises(
                WrongResult, match=f"of {bits} bits, the job has {width}"
            ):
                verified("circuit", json.dumps(text), result, 2)
    unlike = json.dumps({"counter": {"0": 1, "11": 1}})
    with pytest.raises(WrongResult):
        verified("circuit", json.dumps(text), unlike, 2)


@pytest.mark.parametrize(
    ("counter", "wrong"),
    [
        ({"|1,0>": 3, "|0,1>": 1}, ""),
        # of threshold detectors that were reached by two photons in one mode
        ({}, ""),
        ({"|1,1,0>": 3}, "of 3 modes, the job has 2"),
        ({"|0,0>": 3}, "of 0 photons, at least 1 are detected"),
        ({"|1,x>": 3}, "not a state"),
        ({"10": 3}, "not a state"),
        ({"|1,0>": 5}, "has 5 reads, up to 4"),
    ],
)
def test_photons_are_those_of_modes_without_heralds(counter: JSON, wrong: str) -> None:
    experiment = {"circuit": "c", "input_state": "|1,1,0>", "heralds": {"1": 1}}
    arguments = "photonic", json.dumps(experiment), json.dumps({"counter": counter}), 4
    if not wrong:
        assert verified(*arguments).content == {"counter": counter}  # type: ignore[arg-type]
        return
    with pytest.raises(WrongResult, match=wrong):
        verified(*arguments)  # type: ignore[arg-type]


def test_a_result_has_nothing_beside_what_was_checked() -> None:
    lie = {
        **SAMPLES,
        "info": {"x": "y"},
        "more": [1],
        "vectors": {
            **mapping(SAMPLES["vectors"]),
            "good": _array([0.5] * 5),
            "infinite": _array([1e999] * 5),
            "vartype": _array([1.0] * 5),
            "\x1b[2J": _array([1.0] * 5),
            "text": {**_array([]), "data": ["x"] * 5, "data_type": "U1"},
        },
    }
    text = json.dumps(lie).replace("Infinity", "1e999")
    read = verified("problem", json.dumps(example_bqm()), text, 5).content
    assert {*read} == {*SAMPLES}
    assert {*mapping(read["vectors"])} == {"energy", "num_occurrences", "good"}


def _array(data: list[float]) -> Content:
    told: Content = {"type": "array", "data": [*data], "data_type": "float64"}
    return {**told, "shape": [5], "use_bytes": False}


# what the device makes of it


@pytest.fixture
def answers(tmp_path: Path) -> VendorAnswers:
    made = VendorAnswers("one")
    made.keep_in(tmp_path, "0123456789abcdef-more")
    return made


def kept(folder: Path) -> list[Path]:
    return sorted((folder / evidence.FOLDER).glob("*"))


def test_a_wrong_result_is_a_failure_with_evidence(
    answers: VendorAnswers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Outcome(Result('{"x": <<<not json>>>}'), qpu_seconds=0.5)
    outcome = answers.outcome(told, "job-1", TASK, LONG)
    failure = "the QPU's result is not one of this job: it is not JSON"
    assert (outcome.result, outcome.failure) == (None, failure)
    assert outcome.qpu_seconds == 0.5
    (file,) = kept(tmp_path)
    assert file.name == "sfq-1-1.txt"
    assert str(file) in caplog.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    head, _, text = file.read_text().partition("\n")
    assert text == '{"x": <<<not json>>>}'
    assert mapping(json.loads(head))["reason"] == "is not JSON"
    assert mapping(json.loads(head))["job"] == "job-1"


def test_evidence_is_bounded(
    answers: VendorAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MAX_FILES", 3)
    monkeypatch.setattr(evidence, "MAX_BYTES", 100)
    kept_in = answers._evidence
    for number in range(9):
        kept_in.keep(f"../{number}", "wrong", "\ud800é" * 1000)
    files = kept(tmp_path)
    assert [file.name for file in files] == [f"___{n}.txt" for n in (6, 7, 8)]
    assert all(file.stat().st_size <= 200 for file in files)


def test_evidence_that_cannot_be_kept_fails_nothing(
    answers: VendorAnswers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / evidence.FOLDER).write_text("in its place")
    outcome = answers.outcome(Outcome(Result()), "job-1", TASK, LONG)
    assert outcome.failure
    assert "not kept" in caplog.text


def test_a_right_result_is_kept_with_its_info(answers: VendorAnswers) -> None:
    outcome = answers.outcome(Outcome(RESULT, qpu_seconds=0.5), "job-1", TASK, LONG)
    assert outcome.result is not None
    assert json.loads(outcome.result.text) == json.loads(RESULT.text)
    assert outcome.result.info == {"sampler": "acme"}


def test_recomputed_energies_are_told(answers: VendorAnswers) -> None:
    lie = json.loads(RESULT.text)
    lie["vectors"]["energy"]["data"] = [-1.75, -1.75, -9.75, -1.75, 0.25]
    outcome = answers.outcome(Outcome(Result(json.dumps(lie))), "job-1", TASK, LONG)
    assert outcome.result is not None
    assert json.loads(outcome.result.text) == json.loads(RESULT.text)
    told = {"energies_recomputed": {"largest_difference": 8.0}}
    assert outcome.result.info == told


@given(
    st.floats(),
    st.floats(),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
)
def test_no_more_time_is_booked_than_has_passed(
    billed: float, ran: float, at_vendor: float, on_qpu: float
) -> None:
    passed = Passed(at_vendor, min(at_vendor, on_qpu))
    for told in (
        Outcome(failure="it burnt", qpu_seconds=billed, seconds=ran),
        Outcome(qpu_seconds=billed, seconds=ran),
    ):
        outcome = VendorAnswers("one").outcome(told, "job-1", TASK, passed)
        most = 1.01 * at_vendor + 1
        for before, after in ((billed, outcome.qpu_seconds), (ran, outcome.seconds)):
            if after is None:
                assert not 0 <= before <= 1e12
            elif 0 <= before <= most:
                assert after == before
            else:
                assert after == passed.on_qpu
        assert (outcome.failure is None) == (told.failure is None)


def test_times_that_cannot_be_are_told(answers: VendorAnswers) -> None:
    result = replace(RESULT, info={"timing": {"qpu_seconds": 1e9}})
    told = Outcome(result, qpu_seconds=1e9, seconds=0.1)
    outcome = answers.outcome(told, "job-1", TASK, Passed(0.2, 0.125))
    assert (outcome.qpu_seconds, outcome.seconds) == (0.125, 0.1)
    assert outcome.result is not None
    assert outcome.result.info == {"vendor_times": {"qpu_seconds": 1e9}}
    failed = Outcome(failure="it burnt", qpu_seconds=1e9)
    outcome = answers.outcome(failed, "job-1", TASK, Passed(0.2, 0.125))
    words = "qpu_seconds 1e+09, of a job that it had for 0.2 s"
    assert outcome.failure == f"it burnt; the vendor tells {words}"
    # without a submission that is known, nothing can be said
    outcome = answers.outcome(failed, "job-1", TASK, Passed(None))
    assert outcome.qpu_seconds == 1e9


def test_texts_are_bounded_and_printable(answers: VendorAnswers) -> None:
    calibration = CalibrationData(ESCAPES, ESCAPES, {ESCAPES: 1.0})
    large_one = CalibrationData(values={f"{n}{ESCAPES}": 1.0 for n in range(1000)})
    for told in (
        Outcome(failure=ESCAPES, note=ESCAPES, calibration=calibration),
        Outcome(lost=ESCAPES, calibration=large_one),
        Outcome(failure=""),
    ):
        outcome = answers.outcome(told, "job-1", TASK, LONG)
        texts = [outcome.failure, outcome.lost, outcome.note]
        assert all(is_plain(text) for text in texts if text)
        assert bool(outcome.failure) == (told.failure is not None)
        kept = outcome.calibration or CalibrationData()
        text = json.dumps(kept.to_json(), ensure_ascii=False)
        assert len(text) < 5000
        assert text.isprintable()
    info: Content = {ESCAPES: ESCAPES, "x": [{"y": math.nan}] * 9}
    told = Outcome(replace(RESULT, info=info))
    result = answers.outcome(told, "job-1", TASK, LONG).result
    assert result is not None
    text = json.dumps(result.info, ensure_ascii=False, allow_nan=False)
    assert len(text) < 5000
    assert text.isprintable()
    large: Content = {"x": ["y"] * 10**6}
    result = answers.outcome(
        Outcome(replace(RESULT, info=large)), "j", TASK, LONG
    ).result
    assert result is not None
    assert [*result.info] == ["left_out"]


def test_content_is_plain_json_or_too_large() -> None:
    deep: JSON = []
    for _ in range(100):
        deep = [deep]
    many: JSON = ["x"] * 10**5
    keys: JSON = {"x": {str(n): n for n in range(10**5)}}
    for large in (deep, many, keys):
        with pytest.raises(TooLarge):
            plain(large, 10**4)
    odd = cast("JSON", {"a": {1}, "b": (1, 2.5), "c": -math.inf, "d": 10**400})
    expected: JSON = {"a": None, "b": [1, 2.5], "c": None, "d": None}
    assert plain(odd, 1000) == expected


@given(st.text(), st.integers(20, 400))
def test_a_shortened_text_is_one_line_of_its_length(text: str, most: int) -> None:
    for told in (text, 10**3 * text):
        short = shortened(told, most)
        assert len(short) <= most
        assert short.isprintable()


# ids


@pytest.mark.parametrize("wrong", ["", "a\nb", "\x1b[2J", "x" * 256, 5, None, ["a"]])
def test_an_id_is_a_short_printable_text(answers: VendorAnswers, wrong: JSON) -> None:
    with pytest.raises(InputError, match="the vendor's id of the job") as caught:
        answers.job_id(wrong, "sfq-1-1")
    assert is_plain(str(caught.value))


def test_an_id_belongs_to_one_submission(
    answers: VendorAnswers, tmp_path: Path
) -> None:
    assert answers.job_id("17", "sfq-1-1") == "17"
    # a submission that was repeated, since its answer was lost, is the same job
    assert answers.job_id("17", "sfq-1-1") == "17"
    again = VendorAnswers("one")
    again.keep_in(tmp_path, "0123456789abcdef-more")
    other_vendor = VendorAnswers("one")
    other_vendor.keep_in(tmp_path, "another")
    for one in (answers, again):
        assert one.jobs.is_other("17", "sfq-2-1")
        assert not one.jobs.is_other("17", "sfq-1-1")
        with pytest.raises(InputError, match="the id 17, which is that of an earlier"):
            one.job_id("17", "sfq-2-1")
    assert other_vendor.job_id("17", "sfq-2-1") == "17"
    (file,) = tmp_path.glob("vendor-jobs-0123456789abcdef.txt")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # an id may be a secret of the vendor's
    assert "17 " not in file.read_text()


def test_submissions_are_remembered_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_ids, "MAX_SUBMISSIONS", 5)
    jobs, file = VendorJobIds(), tmp_path / "jobs"
    jobs.keep_in(file)
    for number in range(100):
        jobs.begin(f"t-{number}")
        jobs.claim(f"id-{number}", f"t-{number}")
        assert len(file.read_text().splitlines()) <= 32
    file.write_text(file.read_text() + "id cut sho")
    after = VendorJobIds()
    after.keep_in(file)
    for one in (jobs, after):
        assert one.is_other("id-99", "t-1")
        assert not one.is_other("id-1", "t-2")
        assert one.seconds_since("t-99") is not None
        assert one.seconds_since("t-1") is None


def test_a_file_of_submissions_that_is_none_is_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    file.write_bytes(b"\xff\nsent x never .\nid a\n")
    jobs = VendorJobIds()
    jobs.keep_in(file)
    assert jobs.seconds_since("x") is None
    assert jobs.claim("1", "x") == "1"
    missing = VendorJobIds()
    missing.keep_in(tmp_path / "no" / "such")
    missing.begin("x")
    assert missing.claim("1", "x") == "1"


def test_the_time_since_a_submission_of_a_former_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000 + 1 / 1024]  # rounded to milliseconds, it would lie in the future
    monkeypatch.setattr(time, "time", lambda: clock[0])
    before, after = VendorJobIds(), VendorJobIds()
    before.keep_in(tmp_path / "jobs")
    before.begin("x")
    after.keep_in(tmp_path / "jobs")
    assert after.seconds_since("x") == 0
    clock[0] += 500
    before.begin("x")
    after.keep_in(tmp_path / "jobs")
    assert after.seconds_since("x") == 500
    clock[0] = 0.0  # it was set back
    assert after.seconds_since("x") is None


# what it says of itself

NUMBERS = st.one_of(
    st.floats(), st.integers(-(10**20), 10**20), st.none(), st.booleans(), st.text()
)


@given(st.lists(NUMBERS, min_size=8, max_size=8), st.text())
def test_a_status_has_numbers_and_texts_of_a_qpu(odd: list[JSON], text: str) -> None:
    each = cast("list[int]", odd)
    told = vendor_answers.status(
        QpuStatus(
            f"{text}\n",
            ESCAPES,
            True,
            ESCAPES,
            *(each[0], each[1], each[2], each[3]),
            calibration=ESCAPES,
            eta_seconds=each[4],
            position=each[5],
            cost_per_second=each[6],
            maintenance_seconds=each[7],
            trouble=text,
        )
    )
    for size in (told.qubits, told.vqpus, told.leases, told.queue_length):
        assert type(size) is int
        assert 0 <= size <= 10**7
    for number in (told.eta_seconds, told.cost_per_second, told.maintenance_seconds):
        assert number is None or 0 <= number <= 1e12
    texts = [told.name, told.technology, told.reason, told.trouble, told.calibration]
    assert all(is_plain(one) for one in texts if one)


@given(NUMBERS, NUMBERS)
def test_progress_is_of_known_states_and_numbers(position: JSON, eta: JSON) -> None:
    told = Progress("Queued", cast("int", position), cast("float", eta))
    known = vendor_answers.progress(told)
    assert known.position is None or known.position >= 0
    assert known.eta_seconds is None or 0 <= known.eta_seconds < math.inf
    with pytest.raises(QpuError, match="unknown state") as caught:
        vendor_answers.progress(Progress(cast("State", ESCAPES)))
    assert is_plain(str(caught.value))


@given(st.lists(NUMBERS, min_size=6, max_size=6))
def test_a_description_has_sizes_of_a_qpu(odd: list[JSON]) -> None:
    each = cast("list[float]", odd)
    told = vendor_answers.description(
        Description(
            ESCAPES,
            cast("int", each[0]),
            ("problem",),
            frozenset(cast("list[int]", each[1:2])),
            cast("int", each[2]),
            Timing(*each[3:]),
            CalibrationData(str(each[0]), "9999-01-01", {"x": each[1]}),
        )
    )
    assert is_plain(told.technology)
    assert 0 <= told.qubits <= 10**7
    assert all(0 <= qubit <= 10**7 for qubit in told.out_of_service)
    assert told.shots is None or told.shots >= 1
    if told.timing is not None:
        assert 0 <= told.timing.job_seconds(10**6) < math.inf
    assert told.calibration is not None
    assert told.calibration.time == ""
    json.dumps(told.calibration.to_json(), allow_nan=False)


GRAPH = Topology("chimera", (1,), 4, ((0, 1), (1, 2)))
ANNEALER = Description("annealer", 4, ("problem",), topology=GRAPH, specs="{}")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"topology": replace(GRAPH, labels=-1)}, "impossible size"),
        ({"topology": replace(GRAPH, labels=2)}, "coupler that cannot be"),
        ({"topology": replace(GRAPH, couplers=((1, 1),))}, "coupler that cannot be"),
        ({"topology": replace(GRAPH, couplers=((1, 2), (0, 1)))}, "cannot be"),
        (
            {"topology": replace(GRAPH, couplers=((0, cast("int", math.nan)),))},
            "not of two qubits",
        ),
        ({"topology": replace(GRAPH, couplers=((False, True),))}, "not of two qubits"),
        ({"topology": replace(GRAPH, couplers=((-1, 2),))}, "not of two qubits"),
        ({"specs": "<<<"}, "not JSON"),
        ({"specs": "[]"}, "not a JSON object"),
        ({"specs": "[" * 10**6}, "not JSON"),
        ({"specs": '{"x": NaN}'}, "not JSON"),
        ({"solver": {"x": ["y"] * 10**6}}, "too large"),
    ],
)
def test_a_description_by_which_no_job_can_be_checked(
    wrong: dict[str, JSON], words: str
) -> None:
    assert vendor_answers.description(ANNEALER) == ANNEALER
    with pytest.raises(QpuError, match=words):
        vendor_answers.description(replace(ANNEALER, **wrong))  # type: ignore[arg-type]
