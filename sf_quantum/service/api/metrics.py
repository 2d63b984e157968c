"""``GET /metrics`` for Prometheus, with names and units by its conventions.

Everything is counted as it happens, or held in memory: a scrape reads nothing from
disk, however many jobs there are. No metric names a user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Request, Response
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

from sf_quantum import __version__
from sf_quantum.service.domain.jobs import CLASSES, State
from sf_quantum.service.http.auth import Forbidden, get_sender
from sf_quantum.service.http.dependencies import refusals
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.observations import STATES, WAITS, Reason
from sf_quantum.service.queue.telemetry import SERIES, Telemetry

OVER: tuple[State, ...] = ("Completed", "Failed", "Cancelled")
REASONS: tuple[Reason, ...] = ("preempted", "interrupted")
# by the values of the labels
Values: TypeAlias = Mapping[tuple[str, ...], float]
router = APIRouter()


class QpuCollector(Collector):
    """Turns the state of a queue and its device into metrics at each scrape."""

    def __init__(self, queue: JobQueue, telemetry: Telemetry) -> None:
        self._queue = queue
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        """Return all metrics, each with its help and its labels."""
        yield from self._device()
        yield from self._jobs()
        yield from self._leases()
        yield from self._calibration()
        yield from self._quality()

    def _device(self) -> Iterator[Metric]:
        device = self._queue.device
        info = {
            "version": __version__,
            "device": device.name,
            "technology": device.technology,
        }
        yield InfoMetricFamily("sfq", "The service and its device.", info)
        state, seconds = self._queue.device_states()
        yield _gauge(
            "sfq_device_state",
            "1 for the present state, 0 for the others; held: no pending job would end "
            "before the next maintenance window.",
            {(name,): name == state for name in STATES},
            "state",
        )
        yield _counter(
            "sfq_device_state_seconds",
            "Time that the device spent in each state.",
            {(name,): seconds[name] for name in STATES},
            "state",
        )
        yield _counter(
            "sfq_device_busy_seconds", "Time that jobs ran.", {(): seconds["busy"]}
        )
        yield _gauge(
            "sfq_device_qubits", "The largest problem, in variables.", {(): device.size}
        )
        yield _gauge(
            "sfq_device_out_of_service_qubits",
            "Qubits that are out of service.",
            {(): len(device.out_of_service)},
        )

    def _jobs(self) -> Iterator[Metric]:
        queue, observed = self._queue, self._queue.observations
        yield _gauge(
            "sfq_queue_jobs",
            "Pending jobs.",
            {(name,): queue.lengths.get(name, 0) for name in CLASSES},
            "class",
        )
        waits = HistogramMetricFamily(
            "sfq_queue_wait_seconds",
            "From a job's submission to its first start.",
            labels=("class",),
        )
        bounds = [*map(str, WAITS), "+Inf"]
        for name in CLASSES:
            wait = observed.waits[name]
            buckets = [*zip(bounds, accumulate(wait.counts), strict=True)]
            waits.add_metric((name,), buckets, sum_value=wait.total)
        yield waits
        yield _counter(
            "sfq_jobs",
            "Jobs that are over, by their final state.",
            {(n, s): observed.jobs[n, s] for n in CLASSES for s in OVER},
            "class",
            "state",
        )
        yield _counter(
            "sfq_job_interruptions",
            "Attempts after which a job was pending again.",
            {(n, r): observed.interruptions[n, r] for n in CLASSES for r in REASONS},
            "class",
            "reason",
        )
        yield _counter(
            "sfq_qpu_seconds",
            "QPU time as modelled: what hardware would bill.",
            {(name,): observed.qpu_seconds[name] for name in CLASSES},
            "class",
        )

    def _leases(self) -> Iterator[Metric]:
        leases = self._queue.leases
        yield _gauge("sfq_leases_held", "Leases held.", {(): len(leases.held)})
        yield _gauge(
            "sfq_leases_waiting", "Pending requests for a lease.", {(): leases.waiting}
        )
        yield _gauge(
            "sfq_leases_limit",
            "Leases that may be held at once: vQPUs.",
            {(): leases.vqpus},
        )

    def _calibration(self) -> Iterator[Metric]:
        device, watch = self._queue.device, self._queue.drift
        watch.look(device)
        reading = device.reading
        yield _gauge(
            "sfq_calibration_timestamp_seconds",
            "When the device was calibrated, since the epoch.",
            {(): reading.calibration.made.timestamp()},
        )
        yield _gauge(
            "sfq_calibration_error_ratio",
            "The errors that the device measured last.",
            {(name,): value for name, value in reading.values.items()},
            "value",
        )
        yield _gauge(
            "sfq_calibration_error_expected_ratio",
            "The errors expected at this age of the calibration.",
            {(name,): value for name, value in reading.expected.items()},
            "value",
        )
        series = [*reading.values, *([SERIES] if self._telemetry.quality else [])]
        yield _gauge(
            "sfq_drift_alarm",
            "1 from the alarm until the calibration is renewed.",
            {(name,): name in watch.alarms for name in series},
            "series",
        )
        sums = {name: watch.sums[name] for name in series if name in watch.sums}
        yield _gauge(
            "sfq_drift_cusum",
            "The CUSUM of each side, in standard deviations of a value.",
            {
                (name, side): getattr(cusum, side)
                for name, cusum in sums.items()
                for side in ("above", "below")
            },
            "series",
            "side",
        )
        yield _gauge(
            "sfq_drift_threshold",
            "An alarm is raised for a CUSUM above it.",
            {(): watch.settings.threshold},
        )

    def _quality(self) -> Iterator[Metric]:
        quality = self._telemetry.quality
        if quality is None or (last := quality.last) is None:
            return
        yield _gauge(
            "sfq_quality_success_ratio",
            "Reads of the last quality job that found the optimum.",
            {(): last.success},
        )
        yield _gauge(
            "sfq_quality_timestamp_seconds",
            "When the last quality job ended, since the epoch.",
            {(): last.time},
        )


async def _exposed(request: Request) -> CollectorRegistry:
    """Return the metrics.

    :raises AuthError: if the caller may not read them
    """
    telemetry: Telemetry = request.app.state.telemetry
    if not telemetry.public_metrics:
        who = get_sender(request)
        readers = request.app.state.queue.settings.metrics.users
        if not (who.admin or who.user in readers):
            raise Forbidden("only admins and users in metrics.users may read metrics")
    registry: CollectorRegistry = request.app.state.metrics
    return registry


@router.get(
    "/metrics",
    summary="Show the metrics for Prometheus",
    tags=["metrics"],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."},
        **refusals(
            {
                401: "No credential, or an invalid one.",
                403: "The caller may not read metrics.",
            }
        ),
    },
)
async def metrics(
    registry: Annotated[CollectorRegistry, Depends(_exposed)],
) -> Response:
    """Show all metrics; the configuration decides whether this needs a credential."""
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def registered(queue: JobQueue, telemetry: Telemetry) -> CollectorRegistry:
    """Register the metrics of a queue, its device, and this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(QpuCollector(queue, telemetry))
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _counter(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, float(value))
    return family
