"""How a job finds the lease that a gate holds for it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator

import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.qpu.leasing.gating import flux
from sf_quantum.qpu.leasing.gating.in_job import held_environment
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import FixedIdentity
from tests.support.service import RunningService, running_service

ADMIN = FixedIdentity(Identity(getpass.getuser(), admin=True))
TOKEN = "qpu_QRMI_JOB_ACQUISITION_TOKEN"


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(authenticate=ADMIN, vqpus=4) as running:
        yield running


def acquire(service: RunningService, key: str, **user: str) -> str:
    body: dict[str, JSON] = {"key": key, **user}
    answer = service.ask("POST", "/v1/leases", body)
    return str(mapping(parse_json(answer.body))["id"])


def find(service: RunningService, **variables: str) -> str:
    return held_environment([SfqQpu("qpu", service.url)], variables)[TOKEN]


@pytest.mark.parametrize("id_", ["f2Xq", "ƒ2Xq", "Æ\x922Xq", "\udcc6\udc922Xq"])
def test_a_flux_job_finds_its_lease_in_any_locale(
    service: RunningService, id_: str
) -> None:
    lease = acquire(service, "flux-one-f2Xq")
    acquire(service, "flux-one-f2Xr")
    assert find(service, FLUX_JOB_ID=id_) == lease


def test_a_flux_job_does_not_find_the_lease_of_another_user(
    service: RunningService,
) -> None:
    acquire(service, "flux-two-f2", user="ada")
    lease = acquire(service, "flux-one-f2")
    assert find(service, FLUX_JOB_ID="f2") == lease


def test_a_flux_job_of_a_uid_without_a_name_finds_its_lease(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    lease = acquire(service, "flux-one-f2")
    assert find(service, FLUX_JOB_ID="f2") == lease


def test_a_word_that_is_not_an_id_of_flux_is_refused() -> None:
    with pytest.raises(InputError, match="not the id of a Flux job: '12'"):
        flux.job_of({"FLUX_JOB_ID": "12"})


def test_leases_of_the_same_id_in_two_instances_are_refused(
    service: RunningService,
) -> None:
    acquire(service, "flux-one-f2")
    acquire(service, "flux-two-f2")
    with pytest.raises(InputError, match="Flux job f2 has 2 leases of QPU 'qpu'"):
        find(service, FLUX_JOB_ID="f2")


def test_a_slurm_job_finds_the_lease_of_its_cluster(service: RunningService) -> None:
    lease = acquire(service, "slurm-one-7")
    acquire(service, "slurm-two-7")
    acquire(service, "flux-one-7")
    variables = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7"}
    assert find(service, SLURM_CLUSTER_NAME="one", **variables) == lease


def test_a_flux_job_within_a_slurm_job_finds_its_own_lease(
    service: RunningService,
) -> None:
    lease = acquire(service, "flux-one-f2")
    assert find(service, FLUX_JOB_ID="f2", SLURM_JOB_ID="7") == lease


@pytest.mark.parametrize("inner", [{}, {"FLUX_JOB_ID": "f9"}])
def test_a_batch_script_of_flux_and_its_jobs_find_its_lease(
    service: RunningService, inner: dict[str, str]
) -> None:
    lease = acquire(service, "flux-one-f2")
    assert find(service, FLUX_ENCLOSING_ID="f2", **inner) == lease


def test_outside_a_job_the_missing_variables_are_named(service: RunningService) -> None:
    with pytest.raises(InputError, match=r"FLUX_JOB_ID or .* is not set"):
        find(service)


def test_a_job_without_a_lease_is_refused(service: RunningService) -> None:
    with pytest.raises(InputError, match="Flux job f2 or Slurm job 7 has no lease"):
        find(service, FLUX_JOB_ID="f2", SLURM_JOB_ID="7")


def test_keys_of_clusters_with_dashes_are_not_confused() -> None:
    assert not BatchJob("Slurm", "lab", "2-7").has("slurm-lab-2")
    assert BatchJob("Slurm", "lab-2", "7").key == "slurm-lab-2-7"
    assert BatchJob("Flux", None, "f7").has("flux-lab-2-f7")
    assert not BatchJob("Flux", None, "f7").has("slurm-lab-f7")


def test_a_job_of_unknown_submission_has_the_lease_of_its_id() -> None:
    earlier = BatchJob("Slurm", "lab", "7", "1000")
    assert BatchJob("Slurm", "lab", "7").has(earlier.key)
    assert not BatchJob("Slurm", "lab", "7", "1005").has(earlier.key)
    assert not BatchJob("Slurm", "lab", "71").has(earlier.key)
