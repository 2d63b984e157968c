"""What tests of every kind share."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import chain, cycle, groupby
from pathlib import Path

import hypothesis
import psutil
import pytest

from sf_quantum.connectors import guardian
from sf_quantum.errors import QpuError
from sf_quantum.net import munge
from sf_quantum.service.device import processes
from tests.lab import Lab, running, shared
from tests.support import devices, forking
from tests.support.folders import ROOT
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import SYSTEM_PATH, missing, munged_command
from tests.support.leftovers import Leftovers
from tests.support.transpiling import leave_out_iqm
from tests.support.waiting import until

# Four workers and their children share the cores: threads of OpenBLAS and OpenMP would
# wait for one another by spinning. They read it when NumPy is imported.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

# A shell that runs the tests in the background, or nohup, has these ignored, and so would
# have all commands that tests send them to.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        default = signal.default_int_handler if _number == signal.SIGINT else None
        signal.signal(_number, default or signal.SIG_DFL)

# Generated inputs are the same in each run, and a machine that is busy fails none of them.
hypothesis.settings.register_profile(
    "sfq",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("sfq")

leave_out_iqm()

#: fixtures of whole runs, and of the stock client of QRMI
pytest_plugins = ["tests.support.projects", "tests.support.warden_service"]

StartMunged = Callable[..., Path]
StartLab = Callable[[Options], AbstractContextManager[Lab]]


@contextmanager
def _running(folder: Path, key: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            munged_command(folder, key),
            env={**os.environ, "PATH": SYSTEM_PATH, **environment},
            stderr=log,
        ) as process,
    ):
        try:
            until(lambda: _answers(folder / "s"), f"munged, see {folder / 'log'}")
            yield folder / "s"
        finally:
            process.terminate()


def _answers(socket: Path) -> bool:
    with suppress(QpuError):
        munge.encode(str(socket))
        return True
    return False


@pytest.fixture(scope="session")
def start_munged() -> Iterator[StartMunged]:
    """Starts MUNGE daemons that share one key; each says where its socket is."""
    if shutil.which("munged", path=SYSTEM_PATH) is None:
        pytest.skip("munged is not installed (apt-get install munge)")
    with ExitStack() as stack:
        # a short path, for the socket, which every user may pass to
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfq-")))
        folder.chmod(0o755)
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))

        def start(name: str, environment: Mapping[str, str] | None = None) -> Path:
            own = folder / name
            own.mkdir(mode=0o755)
            return stack.enter_context(_running(own, key, environment or {}))

        yield start


@pytest.fixture(scope="session")
def munge_socket(start_munged: StartMunged) -> Path:
    """The socket of a MUNGE daemon."""
    return start_munged("munged")


@pytest.fixture(scope="session")
def slurm() -> None:
    """Slurm is installed; without it, the test is skipped."""
    if lacking := missing():
        pytest.skip(lacking)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the device of the service's tests be chosen; see ``tests/support/devices.py``."""
    told = "run the tests of the service that can over another device than the emulated"
    parser.addoption("--device", choices=devices.KINDS, default="emulated", help=told)
    told = "with --device: jobs that wait at the vendor while one runs (default 0)"
    parser.addoption("--ahead", type=int, default=0, help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Ask for no coverage where Slurm is missing, and with it the tests of much code."""
    devices.chosen = config.getoption("device")
    devices.ahead = config.getoption("ahead")
    told = (
        "the devices, besides the emulated one, over which a test of the service runs"
    )
    config.addinivalue_line("markers", f"devices(*kinds, always=()): {told}")
    told = "needs a job that waits to be in the service's queue, and not at the vendor"
    config.addinivalue_line("markers", f"none_ahead: {told}")
    config.addinivalue_line("markers", "process: starts processes, and waits for them")
    config.addinivalue_line("markers", "slurm: needs Slurm; its fixture sets it")
    told = "starts a service in its process; importing what starts one sets it"
    config.addinivalue_line("markers", f"service: {told}")
    # a shell that starts tests in the background has them ignore it, and their children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    measuring = config.pluginmanager.getplugin("_cov")
    if measuring is not None and missing():
        measuring.options.cov_fail_under = None


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes that a module's tests start count for coverage, where it is measured.

    Not all do: coverage doubles what a process costs before Python 3.12.
    """
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request.config.option, "cov_source", None):
            patch.setenv("COVERAGE_PROCESS_START", str(ROOT / "pyproject.toml"))
            patch.setenv("COVERAGE_FILE", str(ROOT / ".coverage"))
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Thrice as many as there are cores: the longest tests wait, for Slurm or a service.

    Those without processes do not, and a worker takes seconds of CPU to import them all.
    """
    waits = "not process" not in config.option.markexpr
    return (3 if waits else 1) * (os.cpu_count() or 1)


@pytest.fixture(scope="session", autouse=True)
def _guardian_ended() -> Iterator[None]:
    """End the guardian that connectors in this process have started, and wait for it."""
    yield
    if guardian.current.cache_info().currsize:
        own = guardian.current()
        # it ends what has its driver's limit, which this process, its driver, has as well
        with suppress(psutil.Error, OSError, ValueError):
            none = (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY)
            psutil.Process().rlimit(psutil.RLIMIT_RTTIME, none)
        os.close(own._pipe)
        own._process.wait()


_before = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Keep what a test begins with."""
    item.stash[_before] = _surroundings()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that leaves a variable or a folder behind: others would begin with it."""
    result = yield
    changed = {
        name for name, _ in item.stash[_before].items() ^ _surroundings().items()
    }
    assert not changed, "it has changed them"
    return result


def _surroundings() -> dict[str, str]:
    """The folder, and what tells of a job; libraries set variables when they are imported."""
    job = ("SLURM_", "QRMI_", "PBS_", "FLUX_")
    kept = {k: v for k, v in os.environ.items() if k.startswith(job)}
    return {**kept, "the current folder": os.getcwd()}


@pytest.fixture(autouse=True)
def _leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the processes that the test's event loops leave running."""
    Leftovers(monkeypatch)


class _ForkedPython:
    """What the queue and the devices of tests start for their jobs is a fork."""

    @property
    def executable(self) -> str:
        return forking.python()


vars(processes)["sys"] = _ForkedPython()


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the device of one test."""
    if kind := getattr(request, "param", None):
        monkeypatch.setattr(devices, "chosen", kind)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run some tests over other devices as well, whatever was chosen."""
    marker = metafunc.definition.get_closest_marker("devices")
    always = marker.kwargs.get("always", ()) if marker else ()
    if always and devices.chosen == "emulated":
        metafunc.parametrize("_device", ["emulated", *always], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search nothing of what is imported for garbage, neither now nor in the tests.

    Each worker imports all tests and their packages, half of which time went into that.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out what cannot run over the chosen device, and put the long tests first.

    A worker begins with a part of the list, and one that is idle takes from another's end.
    """
    if devices.chosen != "emulated":
        able: list[pytest.Item] = []
        unable: list[pytest.Item] = []
        for item in items:
            marker = item.get_closest_marker("devices")
            known = marker is not None and devices.chosen in marker.args
            if devices.ahead and item.get_closest_marker("none_ahead"):
                known = False
            (able if known else unable).append(item)
        config.hook.pytest_deselected(items=unable)
        items[:] = able
    for item in items:
        fixtures = item.fixturenames if isinstance(item, pytest.Function) else []
        if "slurm" in fixtures:
            item.add_marker("slurm")
        if not {"slurm", "start_munged"}.isdisjoint(fixtures):
            item.add_marker("process")
        module = vars(item.module) if isinstance(item, pytest.Function) else {}
        if not {"running_service", "RunningService"}.isdisjoint(module):
            item.add_marker("service")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = chain.from_iterable(_parts(items, workers))


def _parts(items: list[pytest.Item], workers: int) -> list[list[pytest.Item]]:
    """Give half of the workers the tests that wait for Slurm, and the others both cores."""
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    half = (workers + 1) // 2
    for_slurm, for_others = cycle(parts[:half]), cycle(parts[half:] or parts)
    short: list[list[pytest.Item]] = []
    for _, group in groupby(items, key=lambda item: item.path):
        tests = [*group]
        if tests[0].get_closest_marker("slurm"):
            next(for_slurm).extend(tests)
        elif tests[0].get_closest_marker("process"):
            next(for_others).extend(tests)
        else:
            short.append(tests)
    for tests in short:
        min(parts, key=len).extend(tests)
    return parts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> (
    Generator[None, pytest.TestReport, pytest.TestReport]
):
    """Say in one line of the summary, not in one for each test, that Slurm is missing."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        lacking = missing()
        if lacking and lacking in report.longrepr[2]:
            report.longrepr = (__file__, 1, report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def lab(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The lab that all tests of a run share, with room for several of them at once.

    A test leaves it as it found it: it ends its jobs, counts on no job, node or CPU being
    its own, and stops no daemon. One that cannot keep to that takes ``start_lab``.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # each worker has a folder of its own in that of the run
        folder = folder.parent
    with shared(folder / "lab", Options(nodes=6, cpus=16, qpus=10)) as lab:
        yield lab


@pytest.fixture(scope="session")
def start_lab(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> StartLab:
    """Starts a lab of a test's own: ``with start_lab(Options(min_job_age=2)) as lab``."""
    return lambda options: running(tmp_path_factory.mktemp("lab"), options)
