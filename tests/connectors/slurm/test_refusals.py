"""What Slurm refuses: the option that it is about, and what would be right."""

from __future__ import annotations

import inspect
import itertools
import json

import pytest
from streamflow.deployment.connector.queue_manager import SlurmService

from sf_quantum.connectors.slurm import refusals
from sf_quantum.files import JSON, mapping
from sf_quantum.slurm.partitions import described

SINFO = """\
Welcome to the cluster
compute*|2|4|15000|(null)|(null)|infinite|c[1-2]
compute*|1|8|31000|gpu:a100:2|fast,new|infinite|c3
quantum|1|4|15000|qpu:1|(null)|5:00|q1
"""
# messages of Slurm 22.05, by an option that causes them; after sbatch's own, the reason of a
# job that remains pending
MESSAGES: dict[str, list[str]] = {
    "gres": [
        "Invalid generic resource (gres) specification",
        "Batch job submission failed: Requested node configuration is not available",
    ],
    "gpus": ["Invalid generic resource (gres) specification"],
    "constraint": [
        "Batch job submission failed: Invalid feature specification",
        "Batch job submission failed: Requested node configuration is not available",
        "BadConstraints",
    ],
    "partition": [
        "invalid partition specified: nowhere; Batch job submission failed: Invalid "
        "partition name specified"
    ],
    "mem": [
        "Memory specification can not be satisfied; Batch job submission failed: "
        "Requested node configuration is not available",
        "Invalid --mem specification",
    ],
    "reservation": ["Batch job submission failed: Requested reservation is invalid"],
    "licenses": ["Batch job submission failed: Invalid license specification"],
    "nodelist": ["Batch job submission failed: Invalid node name specified"],
    "exclude": ["Batch job submission failed: Invalid node name specified"],
    "time": [
        "Invalid --time specification",
        "Batch job submission failed: Requested time limit is invalid (missing or "
        "exceeds some limit)",
        "PartitionTimeLimit",
        "PartitionConfig",
    ],
    "nodes": [
        '"abc" is not a valid node count',
        "Batch job submission failed: Node count specification invalid",
        "PartitionNodeLimit",
        "PartitionConfig",
    ],
    "cpusPerTask": [
        "Batch job submission failed: More processors requested than permitted",
        "PartitionConfig",
    ],
    "ntasks": ["PartitionConfig"],
    "account": [
        "Batch job submission failed: Invalid account or account/partition combination "
        "specified",
        "InvalidAccount",
    ],
    "qos": ["Batch job submission failed: Invalid qos specification", "InvalidQOS"],
    "exclusive": ["Invalid --exclusive specification"],
    "begin": ["Invalid time specification (pos=0): abc; Invalid --begin specification"],
    "ntasksPerNode": ["Invalid --ntasks-per-node specification"],
}
CASES = [(option, text) for option, texts in MESSAGES.items() for text in texts]
PARTITIONS = described(SINFO)
RIGHT = {
    "gres": "gres qpu:1",
    "constraint": "no features",
    "mem": "15000 MB per node",
    "time": "a time limit of 5:00",
    "nodes": "1 node",
    "cpusPerTask": "4 CPUs per node",
}


def test_every_option_that_is_named_is_one_of_streamflow() -> None:
    known = inspect.signature(SlurmService.__init__).parameters.keys()
    assert {*MESSAGES, *refusals.OPTIONS} <= known


@pytest.mark.parametrize(("option", "text"), CASES)
def test_the_option_of_a_refusal_is_named(option: str, text: str) -> None:
    own = "quantum" if option != "partition" else "nowhere"
    options: dict[str, JSON] = {"comment": "mine", "partition": own, option: "own"}
    if option == "partition":
        options[option] = "nowhere"
    said = refusals.explained(text, options, "solver", PARTITIONS)
    assert said.startswith(f"{text}: see ")
    assert f"`{option}: {options[option]}`" in said
    assert " of service solver" in said
    assert "comment" not in said
    if (right := RIGHT.get(option)) is not None:
        assert f"partition quantum has {right}" in said
    if option == "partition":
        assert said.endswith("the partitions are compute, quantum")


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(MESSAGES, 2)])
def test_no_option_is_named_that_the_service_lacks(first: str, second: str) -> None:
    """Nor does the message get lost, whatever the options are."""
    options: dict[str, JSON] = {first: "own"}
    for text in MESSAGES[second]:
        said = refusals.explained(text, options, "", {})
        assert said.startswith(text)
        assert f"`{second}: " not in said
        assert refusals.causes(text, {}) == {}


def test_a_partition_has_all_kinds_of_its_nodes() -> None:
    said = refusals.explained("BadConstraints", {"constraint": "x"}, "", PARTITIONS)
    assert said.endswith("partition compute has features fast,new or none")
    assert refusals.explained("gres", {"gres": "qpu:1"}, "", PARTITIONS).endswith(
        "partition compute has gres gpu:a100:2 or none"
    )
    said = refusals.explained("PartitionConfig", {"nodes": 4}, "", PARTITIONS)
    assert said.endswith("see `nodes: 4` of the service; partition compute has 3 nodes")


@pytest.mark.parametrize("text", ["", "sinfo: error", "a|b", json.dumps(mapping({}))])
def test_other_lines_are_no_partitions(text: str) -> None:
    assert described(text) == {}


def test_a_large_partition_has_all_its_nodes() -> None:
    """Slurm writes 10K for 10,240 nodes."""
    large = described("large|10K|64|256000|(null)|(null)|1-00:00:00|l[1-10240]\n")
    said = refusals.explained(
        "PartitionConfig", {"nodes": 20000, "partition": "large"}, "", large
    )
    assert said.endswith("partition large has 10,240 nodes")


@pytest.mark.parametrize(
    ("reason", "is_refusal"),
    [
        ("PartitionTimeLimit", True),
        ("(PartitionConfig)", True),
        ("BadConstraints,Priority", True),
        ("QOSMaxCpuPerJobLimit", True),
        ("Resources", False),
        ("Priority", False),
        ("JobHeldUser", False),
        ("PartitionDown", False),
        ("ReqNodeNotAvail", False),
    ],
)
def test_only_what_the_options_cause_is_a_refusal(
    reason: str, is_refusal: bool
) -> None:
    assert refusals.is_refusal(reason) == is_refusal


@pytest.mark.parametrize(
    ("message", "is_final"),
    [
        ("Batch job submission failed: Invalid node name specified", True),
        ("Batch job submission failed: Invalid license specification", False),
        ("Batch job submission failed: Invalid feature specification", True),
        ("Invalid generic resource (gres) specification", True),
        ("Invalid partition name specified", True),
        ("Memory specification can not be satisfied", True),
        ("Requested node configuration is not available", True),
        ("Requested reservation is invalid", False),
        ("Required partition not available (inactive or drain)", False),
        ("Job violates accounting/QOS policy (job submit limit)", False),
    ],
)
def test_what_the_cluster_never_has_is_refused_for_good(
    message: str, is_final: bool
) -> None:
    assert refusals.is_final(message) == is_final
