"""``GET /metrics``: what Prometheus scrapes; names and units as its conventions ask.

Everything is counted as it happens, or held in memory: a scrape reads nothing from the
disk, however many jobs there are. No user's name is told.
"""

from __future__ import annotations

from collections.abc import Iterator
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
# labels and a value
Row: TypeAlias = tuple[tuple[str, ...], float]
router = APIRouter()


class QpuCollector(Collector):
    """Turns the state of a queue and its device into metrics, whenever it is asked."""

    def __init__(self, queue: JobQueue, telemetry: Telemetry) -> None:
        self._queue = queue
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        """Tell all metrics, each with its help and its labels."""
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
            "1 for the state that the device is in, 0 for the others; held is it while "
            "jobs wait of which none would end before the next maintenance.",
            ("state",),
            [((name,), float(name == state)) for name in STATES],
        )
        yield _counter(
            "sfq_device_state_seconds",
            "How long the device was in each state.",
            ("state",),
            [((name,), seconds[name]) for name in STATES],
        )
        yield _counter(
            "sfq_device_busy_seconds", "How long jobs ran.", (), [((), seconds["busy"])]
        )
        yield _gauge(
            *("sfq_device_qubits", "The largest problem, in variables.", ()),
            [((), device.size)],
        )
        dead = len(device.out_of_service)
        what = "Qubits that cannot be used."
        yield _gauge("sfq_device_out_of_service_qubits", what, (), [((), dead)])

    def _jobs(self) -> Iterator[Metric]:
        queue, observed = self._queue, self._queue.observations
        yield _gauge(
            "sfq_queue_jobs",
            "Jobs that wait.",
            ("class",),
            [((name,), queue.lengths.get(name, 0)) for name in CLASSES],
        )
        waits = HistogramMetricFamily(
            "sfq_queue_wait_seconds",
            "From a job's submission to its first start.",
            labels=("class",),
        )
        for name in CLASSES:
            seen = observed.waits[name]
            bounds = [*map(str, WAITS), "+Inf"]
            counts = accumulate(seen.counts)
            waits.add_metric(
                (name,), [*zip(bounds, counts, strict=True)], sum_value=seen.total
            )
        yield waits
        yield _counter(
            "sfq_jobs",
            "Jobs that are over, by how they ended.",
            ("class", "state"),
            [((n, s), observed.jobs[n, s]) for n in CLASSES for s in OVER],
        )
        yield _counter(
            "sfq_job_interruptions",
            "Attempts after which a job waited again.",
            ("class", "reason"),
            [((n, r), observed.interruptions[n, r]) for n in CLASSES for r in REASONS],
        )
        yield _counter(
            "sfq_qpu_seconds",
            "QPU time as modelled: what hardware would bill.",
            ("class",),
            [((name,), observed.qpu_seconds[name]) for name in CLASSES],
        )

    def _leases(self) -> Iterator[Metric]:
        leases = self._queue.leases
        rows = {
            "held": ("Leases that are held.", len(leases.held)),
            "waiting": ("Requests for a lease that wait.", leases.waiting),
            "limit": ("Leases that may be held at once: vQPUs.", leases.vqpus),
        }
        for name, (what, value) in rows.items():
            yield _gauge(f"sfq_leases_{name}", what, (), [((), value)])

    def _calibration(self) -> Iterator[Metric]:
        device, watch = self._queue.device, self._queue.drift
        watch.look(device)
        reading = device.reading
        made = reading.calibration.made.timestamp()
        yield _gauge(
            "sfq_calibration_timestamp_seconds",
            "When the device was calibrated, since the epoch.",
            (),
            [((), made)],
        )
        for name, values, what in (
            ("ratio", reading.values, "What the device measured last of its errors."),
            ("expected_ratio", reading.expected, "What they are to be at this age."),
        ):
            rows: list[Row] = [((key,), value) for key, value in values.items()]
            yield _gauge(f"sfq_calibration_error_{name}", what, ("value",), rows)
        series = [*reading.values, *([SERIES] if self._telemetry.quality else [])]
        yield _gauge(
            "sfq_drift_alarm",
            "1 from the alarm until the calibration is renewed.",
            ("series",),
            [((key,), float(key in watch.alarms)) for key in series],
        )
        sums = {key: watch.sums[key] for key in series if key in watch.sums}
        yield _gauge(
            "sfq_drift_cusum",
            "The CUSUM of each side, in standard deviations of a value.",
            ("series", "side"),
            [
                ((key, side), getattr(cusum, side))
                for key, cusum in sums.items()
                for side in ("above", "below")
            ],
        )
        yield _gauge(
            "sfq_drift_threshold",
            "What a CUSUM must exceed for an alarm.",
            (),
            [((), watch.settings.threshold)],
        )

    def _quality(self) -> Iterator[Metric]:
        quality = self._telemetry.quality
        if quality is None or (last := quality.last) is None:
            return
        what = "Reads of the last quality job that found the optimum."
        yield _gauge("sfq_quality_success_ratio", what, (), [((), last.success)])
        yield _gauge(
            "sfq_quality_timestamp_seconds",
            "When the last quality job ended, since the epoch.",
            (),
            [((), last.time)],
        )


async def _exposed(request: Request) -> CollectorRegistry:
    """Find the metrics.

    :raises AuthError: if the caller may not read them
    """
    telemetry: Telemetry = request.app.state.telemetry
    if not telemetry.public_metrics:
        who = get_sender(request)
        readers = request.app.state.queue.settings.metrics.users
        if not (who.admin or who.user in readers):
            raise Forbidden("only admins and the users of metrics.users may")
    registry: CollectorRegistry = request.app.state.metrics
    return registry


@router.get(
    "/metrics",
    summary="Tell the metrics, for Prometheus",
    tags=["metrics"],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."},
        **refusals(
            {
                401: "No credential, or an invalid one.",
                403: "The caller may not read them.",
            }
        ),
    },
)
async def metrics(
    registry: Annotated[CollectorRegistry, Depends(_exposed)],
) -> Response:
    """Tell everything that is counted; needs a credential where the site says so."""
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def registered(queue: JobQueue, telemetry: Telemetry) -> CollectorRegistry:
    """Register the metrics of a queue, its device, and this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(QpuCollector(queue, telemetry))
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, what: str, labels: tuple[str, ...], rows: list[Row]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, what: str, labels: tuple[str, ...], rows: list[Row]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
