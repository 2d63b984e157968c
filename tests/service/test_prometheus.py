"""A real Prometheus scrapes the real service; its tools check what a site copies."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml

from sf_quantum.net.transport import Client, Unreachable
from tests.support.folders import ROOT
from tests.support.service_process import QpuService
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.devices("sfq", "dwave", "acme")]

DEPLOYMENTS = ROOT / "deployments"


@pytest.fixture
def promtool() -> str:
    return shutil.which("promtool") or pytest.skip("promtool is not installed")


class Prometheus:
    """Debian's Prometheus, with a site's files and all data in a folder."""

    def __init__(self, folder: Path, config: str) -> None:
        program = shutil.which("prometheus") or pytest.skip("there is no prometheus")
        folder.mkdir()
        shutil.copy(DEPLOYMENTS / "alerts.yml", folder)
        (folder / "prometheus.yml").write_text(config)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [
                    *(program, f"--config.file={folder / 'prometheus.yml'}"),
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self.address}",
                ],
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def ask(self, path: str, **parameters: str) -> str:
        """Ask its API, which must find nothing wrong with the question."""
        where = f"/api/v1/{path}?{urlencode(parameters)}"
        answer = Client(f"http://{self.address}", {}).request("GET", where)
        assert answer.json()["status"] == "success", (parameters, answer.body)
        return answer.body.decode()

    def value(self, query: str) -> float | None:
        """The first value of a query, if it has one."""
        rows = json.loads(self.ask("query", query=query))["data"]["result"]
        return float(rows[0]["value"][1]) if rows else None

    def until(self, query: str, expected: float) -> None:
        """Wait until a query has a value."""
        until(
            lambda: self._ready() and self.value(query) == expected,
            f"{query} is {expected:g}",
        )

    def _ready(self) -> bool:
        assert self._process.poll() is None, "it has ended"
        try:
            answer = Client(f"http://{self.address}", {}).request("GET", "/-/ready")
        except Unreachable:  # it does not listen yet
            return False
        return answer.status == 200


def scraped(url: str, token: str = "") -> str:
    """The site's file, for a service at a URL, and quicker."""
    text = (DEPLOYMENTS / "prometheus.yml").read_text().replace("15s", "100ms")
    content = yaml.safe_load(text.replace("127.0.0.1:8642", url.partition("//")[2]))
    if token:
        content["scrape_configs"][0]["authorization"] = {"credentials_file": token}
    return yaml.safe_dump(content)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QpuService]:
    config = tmp_path / "qpu.yml"
    config.write_text("quality: {every_seconds: 3600}\n")
    made = QpuService(tmp_path / "service", "--config", str(config), "--noise", "1")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def prometheus(service: QpuService, tmp_path: Path) -> Iterator[Prometheus]:
    service.start()
    made = Prometheus(tmp_path / "prometheus", scraped(service.url))
    try:
        yield made
    finally:
        made.stop()


def expressions() -> list[str]:
    """What the dashboard asks, with Grafana's variables filled in."""
    board = json.loads((DEPLOYMENTS / "grafana-dashboard.json").read_text())
    asked = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    assert len(asked) > 20
    return [
        one.replace("$__rate_interval", "1m").replace("$instance", ".+")
        for one in asked
    ]


def names(text: str) -> set[str]:
    return set(re.findall(r"\b(?:sfq|process)_\w+", text))


# the dashboard shows much that only the emulated device tells
@pytest.mark.devices
def test_panels_and_alerts_ask_for_metrics_that_exist(
    prometheus: Prometheus, service: QpuService
) -> None:
    lease = service.occupy(shots=10)
    prometheus.until('up{job="sfq"}', 1)
    prometheus.until('sfq_jobs_total{class="development",state="Completed"}', 1)
    prometheus.until('sfq_jobs_total{class="quality",state="Completed"}', 1)
    prometheus.until("sfq_leases_held", 1)
    service.release(lease)
    prometheus.until("sfq_leases_held", 0)
    known = set(json.loads(prometheus.ask("label/__name__/values"))["data"])
    for expression in expressions():
        prometheus.ask("query", query=expression)
        assert names(expression) <= known, expression
    alerts = (DEPLOYMENTS / "alerts.yml").read_text()
    assert names(alerts) <= known
    (group,) = json.loads(prometheus.ask("rules"))["data"]["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}


def test_an_alert_is_raised_when_the_service_dies(
    prometheus: Prometheus, service: QpuService
) -> None:
    prometheus.until('up{job="sfq"}', 1)
    service.kill()
    prometheus.until('up{job="sfq"}', 0)
    prometheus.until('ALERTS{alertname="QpuServiceDown",alertstate="pending"}', 1)


def test_with_a_token_where_the_site_asks_for_one(tmp_path: Path) -> None:
    config = tmp_path / "qpu.yml"
    config.write_text("metrics: {public: false}\n")
    service = QpuService(tmp_path / "service", "--config", str(config))
    file = service.with_tokens("prometheus")
    prometheus = None
    try:
        service.start()
        assert Client(service.url, {}).request("GET", "/metrics").status == 401
        prometheus = Prometheus(tmp_path / "prometheus", scraped(service.url, file))
        prometheus.until('up{job="sfq"}', 1)
        prometheus.until('sfq_device_state{state="idle"}', 1)
    finally:
        if prometheus is not None:
            prometheus.stop()
        service.end()


def test_promtool_finds_the_files_right(promtool: str) -> None:
    for what, file in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        command = [promtool, "check", what, str(DEPLOYMENTS / file)]
        checked = subprocess.run(command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "WARN" not in checked.stdout + checked.stderr


def test_the_commented_lines_are_right_too(promtool: str, tmp_path: Path) -> None:
    text = (DEPLOYMENTS / "prometheus.yml").read_text()
    shutil.copy(DEPLOYMENTS / "alerts.yml", tmp_path)
    for name in ("sfq.token", "sfq-ca.pem"):
        (tmp_path / name).touch()
    whole = re.sub(
        r"^    # (?=scheme|authorization|  credentials|tls|  ca)",
        "    ",
        text,
        flags=re.M,
    )
    whole = whole.replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yml").write_text(whole)
    config = yaml.safe_load(whole)["scrape_configs"][0]
    assert (config["scheme"], [*config["tls_config"]]) == ("https", ["ca_file"])
    command = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True)
    # an empty file is no certificate, which is all that it may find
    left = checked.stdout + checked.stderr
    assert checked.returncode == 0 or "CA cert" in left, left


def test_alerts_are_raised_when_they_should_be(promtool: str, tmp_path: Path) -> None:
    shutil.copy(DEPLOYMENTS / "alerts.yml", tmp_path)
    cases = tmp_path / "alerts_test.yml"
    shutil.copy(ROOT / "tests/support/data/alerts_test.yml", cases)
    tested = {
        test["alertname"]
        for case in yaml.safe_load(cases.read_text())["tests"]
        for test in case["alert_rule_test"]
        if "exp_alerts" in test
    }
    rules = yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"][0]["rules"]
    assert tested == {rule["alert"] for rule in rules}
    command = [promtool, "test", "rules", str(cases)]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
