"""``GET /metrics`` for Prometheus; names and units follow the conventions of Prometheus.

All values are counted when events happen, or are in memory anyway, so a scrape does not read
jobs from disk. No metric names a user, and no request can create a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sf_quantum.service.dialects.common import refusal
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import CLASSES, State
from sf_quantum.service.http.auth import get_sender
from sf_quantum.service.http.traffic import Traffic
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.observations import STATES, Histogram, Reason
from sf_quantum.service.queue.upkeep.telemetry import SERIES, Telemetry
from sf_quantum.service.store.file.disk import DiskUse
from sf_quantum.version import __version__

OVER: tuple[State, ...] = ("Completed", "Failed", "Cancelled")
_REQUEST = ("method", "route", "status")
REASONS: tuple[Reason, ...] = ("preempted", "interrupted")
L = TypeVar("L", bound=tuple[str, ...])
HELP = {
    "sfq_device_state": "1 for the present state, 0 for the others; busy: a job runs; "
    "waiting: a job is being submitted, or waits in the vendor's queue; held: no pending job "
    "would end before the next maintenance window.",
    "sfq_device_state_seconds": "Time that the device spent in each state.",
    "sfq_device_busy_seconds": "Time in the state busy.",
    "sfq_device_qubits": "The largest problem, in variables.",
    "sfq_device_out_of_service_qubits": "Qubits that are out of service.",
    "sfq_queue_jobs": "Pending jobs.",
    "sfq_queue_wait_seconds": "From a job's submission to its first start.",
    "sfq_jobs": "Jobs that are over, by their final state.",
    "sfq_job_interruptions": "Attempts after which a job was pending again.",
    "sfq_qpu_seconds": "QPU time as modelled: what hardware would bill.",
    "sfq_leases_held": "Leases held.",
    "sfq_leases_waiting": "Pending requests for a lease.",
    "sfq_leases_limit": "Leases that may be held at once: vQPUs.",
    "sfq_calibration_timestamp_seconds": "When the device was calibrated, since the "
    "epoch.",
    "sfq_calibration_error_ratio": "The errors that the device measured last.",
    "sfq_calibration_error_expected_ratio": "The errors expected at this age of the "
    "calibration.",
    "sfq_drift_alarm": "1 from the alarm until the calibration is renewed.",
    "sfq_drift_cusum": "The CUSUM of each side, in standard deviations of a value.",
    "sfq_drift_threshold": "An alarm is raised for a CUSUM above it.",
    "sfq_http_requests": "Requests, by the route's template (other: no route has the "
    "path, or a limit refused it before) and by the class of the status (none: the client "
    "went away).",
    "sfq_http_request_seconds": "From a request's headers to the end of its answer, with "
    "the time that the client asked to wait.",
    "sfq_state_free_bytes": "Free space on the disk that the state is on.",
    "sfq_state_database_bytes": "Size of the database, with its write-ahead log.",
    "sfq_state_last_failed_write_timestamp_seconds": "When a write to the database "
    "failed last, since the epoch; 0 if none has since the start.",
    "sfq_background_task_deaths": "How often a background task died; it is started "
    "again.",
    "sfq_quality_success_ratio": "Reads of the last quality job that found the "
    "optimum.",
    "sfq_quality_timestamp_seconds": "When the last quality job ended, since the "
    "epoch.",
}
router = APIRouter()


class QpuCollector(Collector):
    """Converts the state of a queue and its device into metrics at each scrape."""

    def __init__(self, queue: JobQueue, telemetry: Telemetry, traffic: Traffic) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, each with its help text and labels."""
        yield from self._device()
        yield from self._jobs_and_leases()
        yield from self._calibration()
        yield _counter("sfq_http_requests", self._traffic.requests, *_REQUEST)
        durations = {(k,): v for k, v in self._traffic.durations.items()}
        yield _histogram("sfq_http_request_seconds", durations, "route")
        yield from self._disk()
        deaths = {(name,): n for name, n in self._queue.supervisor.deaths.items()}
        yield _counter("sfq_background_task_deaths", deaths, "task")

    def _device(self) -> Iterator[Metric]:
        device = self._queue.device
        info = {
            "version": __version__,
            "device": device.name,
            "technology": device.description.technology,
        }
        yield InfoMetricFamily("sfq", "The service and its device.", info)
        state, seconds = self._queue.device_states()
        present = {(name,): name == state for name in STATES}
        yield _gauge("sfq_device_state", present, "state")
        spent = {(name,): seconds[name] for name in STATES}
        yield _counter("sfq_device_state_seconds", spent, "state")
        yield _counter("sfq_device_busy_seconds", seconds["busy"])
        description = device.description
        yield _gauge("sfq_device_qubits", description.qubits)
        yield _gauge(
            "sfq_device_out_of_service_qubits", len(description.out_of_service)
        )

    def _jobs_and_leases(self) -> Iterator[Metric]:
        queue, observed = self._queue, self._queue.observations
        pending = {(name,): queue.jobs.pending.lengths[name] for name in CLASSES}
        yield _gauge("sfq_queue_jobs", pending, "class")
        waits = {(name,): observed.waits[name] for name in CLASSES}
        yield _histogram("sfq_queue_wait_seconds", waits, "class")
        ended = {(n, s): observed.jobs[n, s] for n in CLASSES for s in OVER}
        yield _counter("sfq_jobs", ended, "class", "state")
        interruptions = {
            (n, r): observed.interruptions[n, r] for n in CLASSES for r in REASONS
        }
        yield _counter("sfq_job_interruptions", interruptions, "class", "reason")
        used = {(name,): observed.qpu_seconds[name] for name in CLASSES}
        yield _counter("sfq_qpu_seconds", used, "class")
        yield _gauge("sfq_leases_held", len(queue.leases.held))
        yield _gauge("sfq_leases_waiting", queue.leases.waiting)
        yield _gauge("sfq_leases_limit", queue.vqpus.number)

    def _calibration(self) -> Iterator[Metric]:
        device, watch = self._queue.device, self._queue.drift
        quality = self._telemetry.quality
        watch.add_readings(device)
        calibrations = device.calibrations
        if (made := calibrations.made) is not None:
            yield _gauge("sfq_calibration_timestamp_seconds", made)
        values = {(name,): value for name, value in calibrations.data.values.items()}
        yield _gauge("sfq_calibration_error_ratio", values, "value")
        reading = calibrations.reading
        usual = {} if reading is None else reading.expected
        expected = {(name,): value for name, value in usual.items()}
        yield _gauge("sfq_calibration_error_expected_ratio", expected, "value")
        series = [*usual, *([SERIES] if quality else [])]
        alarms = {(name,): name in watch.alarms for name in series}
        yield _gauge("sfq_drift_alarm", alarms, "series")
        sums = {
            (name, side): getattr(watch.sums[name], side)
            for name in series
            if name in watch.sums
            for side in ("above", "below")
        }
        yield _gauge("sfq_drift_cusum", sums, "series", "side")
        yield _gauge("sfq_drift_threshold", watch.settings.threshold)
        if quality is not None and (last := quality.last) is not None:
            yield _gauge("sfq_quality_success_ratio", last.success)
            yield _gauge("sfq_quality_timestamp_seconds", last.time)

    def _disk(self) -> Iterator[Metric]:
        store = self._queue.store
        failed = store.last_failed_write
        yield _gauge("sfq_state_last_failed_write_timestamp_seconds", failed)
        with suppress(OSError):  # the folder no longer exists
            use = DiskUse.of(store.path)
            yield _gauge("sfq_state_free_bytes", use.free_bytes)
            yield _gauge("sfq_state_database_bytes", use.database_bytes)


@router.get(
    "/metrics",
    summary="Show the metrics for Prometheus",
    tags=["metrics"],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."},
        401: refusal("No credential, or an invalid one."),
        403: refusal("The caller may not read metrics."),
    },
)
async def metrics(request: Request) -> Response:
    """Show all metrics; the configuration decides whether a credential is needed."""
    state = request.app.state
    if not state.telemetry.public_metrics:
        who = get_sender(request)
        if not (who.admin or who.user in state.queue.settings.metrics.users):
            detail = "only admins and users in metrics.users may read metrics"
            raise Refused(403, detail)
    return Response(generate_latest(state.metrics), media_type=CONTENT_TYPE_LATEST)


def registered(
    queue: JobQueue, telemetry: Telemetry, traffic: Traffic
) -> CollectorRegistry:
    """Create a registry of the metrics of a queue, its device, requests and this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(QpuCollector(queue, telemetry, traffic))
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, values: Mapping[L, float] | float, *labels: str) -> Metric:
    return _add_values(GaugeMetricFamily(name, HELP[name], labels=labels), values)


def _counter(name: str, values: Mapping[L, float] | float, *labels: str) -> Metric:
    return _add_values(CounterMetricFamily(name, HELP[name], labels=labels), values)


def _histogram(name: str, values: Mapping[L, Histogram], *labels: str) -> Metric:
    family = HistogramMetricFamily(name, HELP[name], labels=labels)
    for label, value in values.items():
        bounds = [*map(str, value.bounds), "+Inf"]
        buckets = [*zip(bounds, accumulate(value.counts), strict=True)]
        family.add_metric(label, buckets, sum_value=value.total)
    return family


def _add_values(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[L, float] | float
) -> Metric:
    """Add values by their labels, or one value without labels."""
    if not isinstance(values, Mapping):
        family.add_metric((), values)
        return family
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
