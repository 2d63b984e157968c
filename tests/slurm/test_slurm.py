"""The output of Slurm's commands, in the shapes that 22.05 and 24.11 print, is read as it is meant."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.slurm import (
    accounting,
    config,
    counts,
    licenses,
    partitions,
    records,
    squeue,
    tres,
)
from sf_quantum.slurm.tres import Resource

# what `scontrol --oneliner show job` prints, as recorded on labs
RELEASES = {
    "22.05": (
        "JobId={job} JobName={name} UserId=root(0) GroupId=root(0) MCS_label=N/A "
        "Priority=0 Nice=0 Account=(null) QOS=(null) JobState=FAILED "
        "Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 "
        "Reboot=0 ExitCode=3:0 RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A "
        "StartTime=100 EndTime=160 Deadline=N/A Partition=compute "
        "AllocNode:Sid=localhost:24405 ReqNodeList=(null) ExcNodeList=(null) "
        "NodeList=c[1-2] BatchHost=c1 NumNodes=2 NumCPUs=4 TRES=cpu=4,node=2 "
        "Socks/Node=* MinCPUsNode=1 MinMemoryNode=0 Features=(null) OverSubscribe=OK "
        "Licenses=(null) Network=(null) Command={command} WorkDir={command} "
        "Comment={comment}  StdErr={command} StdIn=/dev/null StdOut={command} Power= "
        "TresPerNode=gres:gpu:2 \n"
    ),
    "24.11": (
        "JobId={job} JobName={name} UserId=root(0) GroupId=domain users(513) MCS_label=N/A "
        "Priority=0 Nice=0 Account=(null) QOS=(null) JobState=FAILED "
        "Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 "
        "Reboot=0 ExitCode=3:0 RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A "
        "StartTime=100 EndTime=160 Deadline=N/A SuspendTime=None Scheduler=Main "
        "Partition=compute AllocNode:Sid=localhost:24405 ReqNodeList=(null) "
        "ExcNodeList=(null) NodeList=c[1-2] BatchHost=c1 NumNodes=2 NumCPUs=4 "
        "NumTasks=1 ReqTRES=cpu=4,mem=16000M,node=2,billing=4 AllocTRES=(null) "
        "Socks/Node=* MinCPUsNode=1 MinMemoryNode=0 Features=(null) OverSubscribe=OK "
        "Contiguous=0 Licenses=(null) Network=(null) Command={command} "
        "WorkDir={command} Comment={comment}  StdErr={command} StdIn=/dev/null "
        "StdOut={command} TresPerNode=gres/gpu:2 \n"
    ),
}
# parts of names, comments and commands that look like what Slurm prints
PARTS = (
    *("a", " ", "|", ";", "=", "\n", "\t", "\x0b", "\x1c", "\u2028", "\ufffd", "ü"),
    *(" JobState=COMPLETED", " ExitCode=0:0", " Restarts=0", "\nJobId=1 JobName=b"),
    *(" StartTime=5", " EndTime=N/A", " NodeList=x", "JobId=8 JobState=COMPLETED "),
)
FREE = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)
# what a whole record begins with; a name that has it cannot be told from a record
OWNER = " UserId=ada(7) GroupId=ada(7) MCS_label=N/A JobState=COMPLETED ExitCode=0:0"


@pytest.mark.parametrize("release", RELEASES)
@given(name=FREE, comment=FREE, command=FREE)
def test_free_texts_change_no_outcome(
    release: str, name: str, comment: str, command: str
) -> None:
    text = RELEASES[release].format(
        job=7, name=name, comment=comment, command=command or "(null)"
    )
    for shown in (text, text.replace(" UserId=", "\n   UserId=")):
        (one,) = answers.scontrol(shown, "7")
        assert (one.slurm_job, one.state) == ("7", "FAILED")
        assert (one.exit_code, one.signal, one.restarts) == (3, 0, 2)
        assert (one.started, one.ended) == (100.0, 160.0)


@pytest.mark.parametrize("release", RELEASES)
@given(name=FREE, comment=FREE)
def test_each_record_of_an_output_is_its_own(
    release: str, name: str, comment: str
) -> None:
    form = RELEASES[release]
    other = form.format(job=6, name=name, comment=comment, command="(null)")
    text = form.format(job=7, name="b", comment="(null)", command="(null)")
    found = [(one.slurm_job, one.state) for one in answers.scontrol(other + text, "7")]
    # a comment of the record before may look like the beginning of this one
    refused = [] if "\nJobId=" in comment else [("7", "FAILED")]
    assert found in ([("7", "FAILED")], refused)


@pytest.mark.parametrize("release", RELEASES)
def test_a_name_that_imitates_a_record_is_refused(release: str) -> None:
    text = RELEASES[release].format(
        job=7, name=f"a{OWNER}", comment="(null)", command="(null)"
    )
    assert answers.scontrol(text, "7") == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_comment_is_read_whole_or_not_at_all(release: str) -> None:
    form = RELEASES[release]
    text = form.format(job=7, name="n", comment="sfq:a step 2", command="/bin/true")
    assert records.read(text)[0].comment == "sfq:a step 2"
    text = form.format(job=7, name="n", comment="x", command="/bin/e Comment=sfq:b")
    assert records.read(text)[0].comment == ""


@pytest.mark.parametrize("release", RELEASES)
def test_requests_for_resources_are_read_behind_free_texts(release: str) -> None:
    text = RELEASES[release].format(
        job=7, name="n", comment="TresPerNode=gres:gpu:9", command="(null)"
    )
    (record,) = records.read(text)
    assert tres.units(record.fields["TresPerNode"]) == {"gpu": 2}
    assert record.fields["NodeList"] == "c[1-2]"


@pytest.mark.parametrize("release", RELEASES)
def test_details_tell_what_a_task_has_on_each_node(release: str) -> None:
    form = RELEASES[release].replace(
        " MinCPUsNode",
        "   Nodes=c1 CPU_IDs=0-2,5 Mem=400 GRES=gpu:1(IDX:0)"
        "   Nodes=c[2-3] CPU_IDs=0 Mem=0 GRES= MinCPUsNode",
    )
    text = form.format(
        job="7 ArrayJobId=6 ArrayTaskId=1",
        name="n",
        comment="a Nodes=c9 CPU_IDs=0 Mem=1 GRES=",
        command="(null)",
    )
    (record,) = records.read(text)
    assert (record.job, record.array, record.task) == ("7", "6", "1")
    assert record.shares == (
        records.Share("c1", 4, 400, "gpu:1(IDX:0)"),
        records.Share("c[2-3]", 1, 0, ""),
    )


@given(comment=st.text(st.characters(exclude_characters="\n", codec="utf-8")))
def test_any_comment_in_one_line_is_read_from_squeue(comment: str) -> None:
    line = f"7|7|RUNNING|None|1|2|1|c1|0|0|{comment}|\n"
    (row,) = squeue.read(line + line.replace("7", "8", 2)).rows("7") or []
    assert (row.state, row.comment) == ("RUNNING", comment)


@given(code=st.integers(0, 255), signal=st.integers(0, 127))
def test_an_exit_is_read_as_every_release_prints_it(code: int, signal: int) -> None:
    for text in (f"{code}:{signal}", f"{code << 8 | signal}"):
        assert counts.wait_status(text) == code << 8 | signal
    assert counts.wait_status("N/A") is None


NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=6).filter(
    lambda name: name not in ("gres", "license")
)
TYPES = st.just("") | st.sampled_from(("a100", "1g.5gb", "nvidia_h100_80gb_hbm3"))
RESOURCES = st.builds(Resource, NAMES, TYPES, st.integers(1, 10**6))


@given(
    resource=RESOURCES,
    prefix=st.sampled_from(("", "gres:", "gres/")),
    equals=st.booleans(),
    places=st.sampled_from(("", "(S:0-1)", "(IDX:0,2)")),
)
def test_all_spellings_of_a_resource_are_read(
    resource: Resource, prefix: str, equals: bool, places: str
) -> None:
    name, type_, units = resource
    item = ":".join(filter(None, (name, type_)))
    text = f"{prefix}{item}{'=' if equals else ':'}{units}{places}"
    assert tres.parse(text) == [resource]
    assert tres.parse(f"cpu=4,{text},x:2")[1] == resource
    assert tres.parse(str(resource)) == [resource]


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("gpu", {"gpu": 1}),
        ("gpu:a100", {"gpu": 1}),
        ("gres/qpu=1", {"qpu": 1}),
        ("gpu:a100:2,gpu:h100:1", {"gpu": 3}),
        ("gres/gpu=2,gres/gpu:a100=2", {"gpu": 2}),
        ("qpu@site:2", {"qpu": 2}),
        ("gpu:2K", {"gpu": 2048}),
        ("(null)", {}),
        ("N/A", {}),
        ("", {}),
        ("a b:2,:3,gpu:a:b:1", {}),
    ],
)
def test_units_of_a_list_are_summed(text: str, units: dict[str, int]) -> None:
    assert tres.units(text) == units


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("10K", 10240), ("1.5K", 1536), ("2M", 2 * 1024**2)]
    + [(text, None) for text in ("", "-1", "K", "7x", "1e3", "\u0663")],
)
def test_counts_have_suffixes(text: str, number: int | None) -> None:
    assert counts.count(text) == number


def test_a_partition_of_ten_thousand_nodes_is_counted() -> None:
    end = "8|16000|(null)|(null)|infinite|n1"
    text = f"Welcome\nbig*|10K|{end}\nbig*|3|{end}\nx|-1|{end}\nsmall|2|{end}\n"
    read = partitions.described(text)
    assert {name: one.nodes for name, one in read.items()} == {"big": 10243, "small": 2}


@pytest.mark.parametrize(
    ("wanted", "units"),
    [("qpu", 5), ("qpu:a:2", 4), ("gres/qpu:b=1", 1), ("qpu:c:1", 0), ("gpu:1", 0)],
)
def test_a_request_is_served_by_units_of_its_type(wanted: str, units: int) -> None:
    (resource,) = tres.parse(wanted)
    assert tres.matching(resource, "qpu:a:4(S:0),qpu:b:1,nic:1") == units


def test_rows_of_sacct_are_read() -> None:
    text = (
        "error: slurmdbd is slow\n7|CANCELLED by 0|None|0:15|5|9\n"
        "8|COMPLETED|None|0:0|Unknown|9\n7.batch|\n9||None|0:0|1|2\n"
    )
    first, second = accounting.read(text)
    assert (first.job, first.state, first.signal) == ("7", "CANCELLED", 15)
    assert (second.started, second.ended) == (None, 9.0)


def test_the_configuration_is_read() -> None:
    text = "ClusterName             = lab\nNEXT_JOB_ID             = 12\n"
    assert (config.cluster_name(text), config.next_job(text)) == ("lab", 12)
    assert (config.cluster_name("x"), config.next_job("x")) == (None, None)


def test_a_job_without_a_request_has_no_units() -> None:
    request = squeue.request("ada|compute|physics|gres/qpu:1|lic@a:2\nx\n")
    assert request is not None
    assert request.units == {"qpu": 1, "lic": 2}
    assert squeue.request("ada|compute\n") is None


@pytest.mark.parametrize(
    ("errors", "code", "why", "is_missing"),
    [
        (
            "sinfo: error: s_p_parse_file: cannot stat file /x: No such file or "
            "directory, retrying in 1sec up to 60sec\n",
            124,
            "sinfo did not answer within 5 s: s_p_parse_file: cannot stat file /x: No "
            "such file or directory, retrying in 1sec up to 60sec",
            True,
        ),
        (
            "motd\nsinfo: error: Parsing error at unrecognized key: PartitionNam\n"
            "sinfo: fatal: Unable to process configuration file\n",
            1,
            "sinfo: Parsing error at unrecognized key: PartitionNam; Unable to process "
            "configuration file",
            True,
        ),
        (
            "motd\nslurm_load_partitions: Unable to contact slurm controller\n",
            1,
            "sinfo: slurm_load_partitions: Unable to contact slurm controller",
            False,
        ),
        ("", 124, "sinfo did not answer within 5 s", False),
        ("", 0, "sinfo: it named no partition", False),
    ],
)
def test_a_failure_of_sinfo_keeps_its_message(
    errors: str, code: int, why: str, is_missing: bool
) -> None:
    with pytest.raises(partitions.SilentSlurm) as caught:
        partitions.listed("", errors, code)
    assert (str(caught.value), caught.value.is_missing) == (why, is_missing)


def test_licenses_are_read_as_both_releases_print_them() -> None:
    text = (
        "LicenseName=local Total=2 Used=1 Free=1 Reserved=0 Remote=no\n"
        "LicenseName=qpu@sfq Total=3 Used=0 Free=0 Reserved=0 Remote=yes LastConsumed=2 "
        "LastDeficit=2 LastUpdate=2026-11-28T08:44:28\n"
    )
    assert licenses.totals(text) == {"local": 2, "qpu@sfq": 3}
    assert licenses.totals("No licenses configured in Slurm.\n") == {}


def test_reserved_licenses_are_read_as_both_releases_print_them() -> None:
    head = "StartTime=2026-11-28T08:42:56 Nodes=(null) Features=(null) Users=root "
    text = (
        f"ReservationName=a {head}Licenses=qpu@sfq:1,b:2 State=ACTIVE Watts=n/a\n"
        f"ReservationName=b {head}Licenses=(null) State=ACTIVE MaxStartDelay=(null)\n"
    )
    assert licenses.reserved(text) == {"a": "qpu@sfq:1,b:2", "b": "(null)"}
    assert licenses.reserved("No reservations in the system\n") == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [("qpu@sfq:2", 2), ("qpu@sfq", 1), ("a:3,qpu@sfq:1", 1), ("qpu:2", 0), ("", 0)],
)
def test_units_are_those_of_the_license_on_its_server(text: str, number: int) -> None:
    assert licenses.units(text, "qpu@sfq") == number


@given(
    st.lists(st.text(st.sampled_from("|\n17a, "), max_size=40), max_size=4),
    st.sampled_from([squeue.GATE_FORMAT, squeue.SITE_FORMAT, squeue.DETAILS_FORMAT]),
)
def test_no_text_of_a_user_passes_for_a_row(texts: list[str], format_: str) -> None:
    rows = squeue.Rows(format_)
    secret = re.fullmatch(r"[^|]*(\|\w+\|).*", rows.format)
    assert secret is not None
    printed = [f"{job}{secret[1]}{text}" for job, text in enumerate(texts)]
    expected = [f"{job}|{text}" for job, text in enumerate(texts)]
    assert [*rows.split("\n".join(printed))] == expected
    assert rows.format != squeue.Rows(format_).format


def test_only_jobs_that_have_started_hold_licenses() -> None:
    text = "1|PENDING|qpu:1\n2|RUNNING|qpu:1\n3|COMPLETING|qpu:2\n4|RUNNING|(null)\n"
    assert squeue.license_jobs(text) == {2: "qpu:1", 3: "qpu:2", 4: "(null)"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        ("c1,q2", {"c1", "q2"}),
        ("c[08-10,3]", {"c08", "c09", "c10", "c3"}),
        ("r[1-2]n[1-2],x", {"r1n1", "r1n2", "r2n1", "r2n2", "x"}),
        ("c[1-,a]", set()),
    ],
)
def test_lists_of_nodes_are_expanded(text: str, names: set[str]) -> None:
    assert partitions.hosts(text) == names
