"""The page in a real browser, beside what the API tells."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.service.http.tokens import new_token, token_entry
from tests.support.service import example_bqm
from tests.support.service_process import QpuService

pytestmark = [pytest.mark.process, pytest.mark.devices("sfq", "dwave", "acme")]

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip(
        "needs Chromium (apt-get install chromium chromium-driver)",
        allow_module_level=True,
    )
FLAGS = (
    *"--headless --no-sandbox --disable-gpu --disable-quic --no-first-run".split(),
    *"--disable-background-networking --disable-component-update".split(),
    "--disable-sync",
)
PHONE, DESK = 360, 1280
HOSTILE = "<img src=x onerror=\"document.title='taken'\">&amp; \u202eltr"
TOO_WIDE = """
return [...document.querySelectorAll("body *")]
  .filter((one) => !one.closest(".spoken") && one.getClientRects().length)
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5)
  .map((one) => one.outerHTML.slice(0, 80));
"""


# the labels of a chart's scales
SCALE = """
const texts = document.querySelectorAll(`${arguments[0]} svg[role=img] text`);
return [...texts].map((one) => one.textContent);
"""
# lines of the tallest label
TALLEST = """
const lines = [...document.querySelectorAll("bdi")].map((one) =>
  one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight));
return Math.round(Math.max(...lines));
"""
# what a screen reader has no name for
UNNAMED = """
const missing = [
  ...document.querySelectorAll("table:not(:has(caption)), th:not([scope])"),
  ...document.querySelectorAll("[role=img]:not([aria-label]), progress:not([aria-label])"),
  ...[...document.querySelectorAll("input")].filter((one) => !one.labels.length),
];
return missing.map((one) => one.outerHTML.slice(0, 80));
"""


class Browser:
    """A page in Chromium, as its reader sees it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(
        self, url: str, token: str = "", width: int = DESK, zone: str = "UTC"
    ) -> None:
        """Open a page, as its reader with this token, in this time zone."""
        self.resize(width)
        self._driver.execute_cdp_cmd(
            "Emulation.setTimezoneOverride", {"timezoneId": zone}
        )
        self._driver.get(url)
        self.run("sessionStorage.clear()")
        if token:
            self.run("sessionStorage.setItem('sfq-token', arguments[0])", token)
        self._driver.refresh()
        self.until(lambda: self.link == "live", "the first answer")

    def resize(self, width: int) -> None:
        """Make the window so many CSS pixels wide."""
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1}
        self._driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {**metrics, "mobile": width == PHONE}
        )

    def run(self, script: str, *arguments: str) -> JSON:
        """Run JavaScript in the page."""
        found: JSON = self._driver.execute_script(script, *arguments)
        return found

    def text(self, selector: str) -> str:
        """What is to be read in the first element of a kind; empty without one."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.run(script, selector)).strip()

    def type(self, selector: str, text: str) -> None:
        """Type into an element, by the keyboard."""
        self._driver.find_element(By.CSS_SELECTOR, selector).send_keys(text)

    @property
    def link(self) -> JSON:
        """Whether the page hears of the service."""
        return self.run("return document.body.dataset.link")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something to become true."""
        wait = WebDriverWait(self._driver, 30, poll_frequency=0.05)
        wait.until(lambda _: condition(), f"waited in vain for {what}")

    def requests(self) -> list[str]:
        """Where requests went since this was last asked."""
        events = [
            json.loads(entry["message"])["message"]
            for entry in self._driver.get_log("performance")  # type: ignore[no-untyped-call]
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """What the console has to say since this was last asked."""
        return [entry["message"] for entry in self._driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def too_wide(self) -> JSON:
        """What sticks out of the window."""
        return self.run(TOO_WIDE)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One Chromium for all tests, with a profile of its own."""
    assert CHROMIUM is not None
    assert DRIVER is not None
    folder = tmp_path_factory.mktemp("chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
        options.add_argument(flag)
    options.set_capability(
        "goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"}
    )
    environment = {**os.environ, "TMPDIR": str(folder)}
    made = webdriver.Chrome(options, Service(DRIVER, env=environment))
    yield made
    made.quit()


@pytest.fixture
def browser(driver: webdriver.Chrome) -> Browser:
    """The browser, which has forgotten the test before."""
    driver.get("about:blank")
    page = Browser(driver)
    page.requests(), page.complaints()
    return page


class Site:
    """A service with two users and an operator."""

    def __init__(self, folder: Path) -> None:
        self.tokens = {name: new_token() for name in ("ada", "bob", "operator")}
        file = folder / "tokens.yml"
        file.touch(0o600)
        file.write_text(
            json.dumps(
                [
                    token_entry(name, token, admin=name == "operator")
                    for name, token in self.tokens.items()
                ]
            )
        )
        self.service = QpuService(
            folder,
            *("--auth", "token", "--tokens", str(file)),
            # 120 s and 1 s a shot, 50 times as fast
            *("--technology", "neutral-atom", "--time-scale", "0.02", "--vqpus", "4"),
        )
        self.service.start()

    @property
    def url(self) -> str:
        return self.service.url

    def ask(
        self,
        who: str,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        lease: str = "",
    ) -> dict[str, JSON]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        headers |= {"X-SFQ-Lease": lease} if lease else {}
        answer = Client(self.url, headers).request(method, path, body)
        assert answer.status < 400, answer
        return answer.json()

    def lease(self, who: str, job_class: str, job: str = "") -> str:
        body: dict[str, JSON] = {"class": job_class, "job": job or None}
        return str(self.ask(who, "POST", "/v1/leases", body)["id"])

    def submit(self, who: str, lease: str, purpose: str | None, shots: int) -> str:
        body: dict[str, JSON] = {
            "problem": example_bqm(),
            "parameters": {"num_reads": shots},
            "idempotency_key": f"key-{secrets.token_hex(8)}",
            "purpose": purpose,
        }
        return str(self.ask(who, "POST", "/v1/jobs", body, lease)["id"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.service.end()


@pytest.mark.none_ahead
def test_the_page_shows_a_jobs_way_as_the_api_does(
    site: Site, browser: Browser
) -> None:
    bob = site.lease("bob", "production", "bobs-affair")
    ada = site.lease("ada", "development", HOSTILE)
    occupant = site.submit("bob", bob, "bobs-first", 3000)
    job = site.submit("ada", ada, HOSTILE, 200)
    row, running = f"#line [data-job='{job}']", f"#running [data-job='{job}']"

    def waits_behind(jobs: int) -> bool:
        position = site.ask("ada", "GET", f"/v1/jobs/{job}")["position"]
        return position == jobs and browser.text(f"{row} .number") == str(position)

    browser.open(site.url, site.tokens["ada"])
    browser.until(lambda: waits_behind(1), "the job's place")
    browser.until(
        lambda: browser.text("#running strong") == "A production job of another user",
        "the job before it",
    )
    assert browser.text(f"{row} bdi") == HOSTILE
    assert f"{job[:8]} \u00b7 development" in browser.text(row)
    assert "key-" not in browser.text("body")
    assert "200 shots" in browser.text(row)
    assert browser.text(f"{row} .when").rpartition(" ")[2] in ("s", "min")
    assert browser.text("[data-count=waiting] dd") == "1"
    assert browser.text("#leases bdi") == HOSTILE
    assert browser.text("#held") == "2 of 4 held; 1 by other users"

    for number in range(2):
        site.submit("bob", bob, f"bobs-next-{number}", 1)
    browser.until(lambda: waits_behind(3), "the place behind those who go first")
    assert browser.text("#line .others") == "2 production jobs of other users"
    told = site.ask("ada", "GET", "/v1/activity")
    assert told["waiting"] == {"production": 2, "development": 1}
    for name, jobs in {"waiting": 3, "production": 2, "development": 1}.items():
        assert browser.text(f"[data-count={name}] dd") == str(jobs)

    site.ask("bob", "DELETE", f"/v1/leases/{bob}")
    browser.until(lambda: browser.text(running) == HOSTILE, "the job to run")
    assert not browser.text(row)
    browser.until(
        lambda: "Completed" in browser.text(f"#ended [data-job='{job}']"), "its end"
    )
    assert site.ask("ada", "GET", f"/v1/jobs/{job}")["state"] == "Completed"
    assert browser.text("#running") == "None: the QPU is idle"
    assert browser.text("#line tbody") == "No pending jobs."
    assert not browser.text(f"#ended [data-job='{occupant}']")

    def shown() -> bool:
        """Compare the page with the API; the page is a few seconds behind."""
        use = site.ask("", "GET", "/v1/activity")["utilisation"]
        assert isinstance(use, dict)
        assert isinstance(use["mean"], float)
        return browser.text("#mean") == f"{round(use['mean'] * 100)} %"

    browser.until(shown, "the utilisation that the API has")
    # the service has just been started
    assert browser.text("#covered").startswith("busy on average, over the ")
    legend = browser.text("#minutes .legend").split("\n")
    assert [words.strip() for words in legend] == [
        *("busy", "idle", "service not running"),
    ]
    scale = browser.run(SCALE, "#minutes")
    assert isinstance(scale, list)
    assert scale[:3] == ["0 %", "50 %", "100 %"]
    assert all(re.fullmatch("[0-9]{2}:[0-9]{2}", str(time)) for time in scale[3:-1])
    assert scale[-1] == "UTC"
    assert browser.run(UNNAMED) == []
    assert browser.run("return document.title") == "emulator: online"
    assert browser.complaints() == []
    assert {url for url in browser.requests() if not url.startswith("data:")} == {
        f"{site.url}/{path}"
        for path in (
            *("", "page.css", "page.js", "charts.js", "page.svg", "v1/activity"),
        )
    }


@pytest.mark.none_ahead
def test_others_are_counts_and_admins_see_everything(
    site: Site, browser: Browser
) -> None:
    lease = site.lease("ada", "test", "adas-affair")
    for number in range(14):
        site.submit("ada", lease, f"adas-own-{number}", 3000)

    def page(who: str) -> str:
        browser.open(site.url, site.tokens.get(who, ""))
        browser.until(lambda: browser.text("[data-count=test] dd") == "13", "the queue")
        browser.until(lambda: browser.text("#running strong"), "the job that runs")
        return browser.text("body")

    for who, line in {
        "bob": "13 test jobs of other users",
        "": "Enter your token below to see your own jobs.",
    }.items():
        assert line in page(who)
        everything = str(browser.run("return document.documentElement.outerHTML"))
        told = json.dumps(site.ask(who, "GET", "/v1/activity"))
        for text in (everything, told):
            assert "adas" not in text
            assert '"ada"' not in text
            assert lease not in text
    seen = page("operator")
    for number in range(13):
        assert f"adas-own-{number}" in seen
    assert "adas-own-13" not in seen
    browser.type("#more", Keys.ENTER)
    browser.until(lambda: "adas-own-13" in browser.text("#line"), "the whole line")
    assert browser.complaints() == []


def test_a_token_is_typed_in_and_kept_in_the_tab_alone(
    site: Site, browser: Browser
) -> None:
    browser.open(site.url)
    browser.type("#token", "wrong" + Keys.ENTER)
    browser.until(
        lambda: browser.text("#refused") == "Refused: unknown bearer token",
        "the refusal",
    )
    browser.until(lambda: browser.link == "live", "the counts again")
    browser.type("#token", site.tokens["ada"] + Keys.ENTER)
    words = "Signed in as ada: your own jobs are shown, others as counts."
    browser.until(lambda: browser.text("#who") == words, "one's own view")
    assert not browser.text("#refused")
    assert browser.run("return localStorage.length + document.cookie.length") == 0
    assert not any(site.tokens["ada"] in url for url in browser.requests())
    browser.type("#sign-out", Keys.ENTER)
    browser.until(lambda: "only counts" in browser.text("#who"), "to be unknown again")
    assert browser.run("return sessionStorage.length") == 0
    # the refusal alone
    assert ["401" in complaint for complaint in browser.complaints()] == [True]


def test_nothing_sticks_out_on_a_phone_and_a_closed_qpu_says_why(
    site: Site, browser: Browser
) -> None:
    lease = site.lease("ada", "development", "run:/step/0.1 " + "w" * 200)
    for number in range(30):
        site.submit("ada", lease, f"{number}-{'k' * 190}", 100)
    starts = 4102444800.0
    site.ask("operator", "POST", "/v1/device/maintenance", {"starts": starts})
    browser.open(site.url, site.tokens["ada"], PHONE, "Asia/Tehran")
    browser.until(lambda: browser.text("#running strong"), "a job that runs")
    assert browser.too_wide() == []
    # three lines of a long label
    assert browser.run(TALLEST) == 3
    planned = "Maintenance planned from 1 Jan 2100 03:30 until the QPU is opened"
    assert browser.text("#maintenance") == planned
    assert browser.text("#zone") == "Times in Asia/Tehran (UTC+3:30)"
    scale = browser.run(SCALE, "#minutes")
    assert isinstance(scale, list)
    assert scale[-1] == "UTC+3:30"

    now: dict[str, JSON] = {"starts": 946684800.0, "ends": starts - 86400}
    now["message"] = HOSTILE
    site.ask("operator", "POST", "/v1/device/maintenance", now)
    browser.until(lambda: browser.text("#status") == "Maintenance", "the status")
    assert browser.text("#maintenance").split("\n") == [
        "In maintenance from 1 Jan 2000 03:30 until 31 Dec 2099 03:30: " + HOSTILE,
        planned,
    ]
    assert browser.text("#reason") == ""
    assert browser.run("return document.title") == "emulator: maintenance"
    assert browser.too_wide() == []

    site.ask("operator", "POST", "/v1/device/open", {})
    message = "Cooling: " + "x" * 300
    site.ask("operator", "POST", "/v1/device/close", {"message": message})
    browser.until(lambda: browser.text("#status") == "Closed", "the status")
    assert (
        browser.text("#reason") == f"The QPU is closed: {message} (closed by operator)"
    )
    assert browser.text("#line .when:not(th)") == "\u2013"
    assert browser.too_wide() == []
    assert browser.run("return document.documentElement.scrollWidth") == PHONE


def test_a_closed_qpu_is_marked_once_its_service_is_gone(
    site: Site, browser: Browser
) -> None:
    site.ask("operator", "POST", "/v1/device/close", {"message": "helium is low"})
    starts = 4102444800.0
    site.ask("operator", "POST", "/v1/device/maintenance", {"starts": starts})
    browser.open(site.url, site.tokens["ada"], PHONE)
    words = "The QPU is closed: helium is low (closed by operator)"
    browser.until(lambda: browser.text("#reason") == words, "the reason")
    planned = "Maintenance planned from 1 Jan 2100 00:00 until the QPU is opened"
    assert browser.text("#maintenance") == planned
    site.service.kill()
    browser.until(lambda: browser.link == "gone", "the page to notice")
    mark = f" \u00b7 as of {browser.text('#word')[6:14]}"
    assert browser.text("#reason") == words + mark
    assert browser.text("#maintenance") == planned + mark
    assert browser.too_wide() == []
    # the operator and the message are kept, as the status is
    site.service.start()
    browser.until(lambda: browser.link == "live", "the service to be found again")
    assert browser.text("#reason") == words
    assert browser.text("#maintenance") == planned
    # who has no token sees no operator
    browser.open(site.url)
    assert browser.text("#reason") == "The QPU is closed: helium is low"


def test_a_lease_has_its_slurm_job_use_and_end(site: Site, browser: Browser) -> None:
    asked: dict[str, JSON] = {"class": "test", "job": "a loop", "slurm_job_id": "4711"}
    lease = str(site.ask("ada", "POST", "/v1/leases", asked)["id"])
    job = site.submit("ada", lease, None, 30)
    browser.open(site.url, site.tokens["ada"])
    # 120 s of set-up, and 30 of shots
    row = "#leases tbody tr"
    browser.until(lambda: "on the QPU" in browser.text(row), "the job's end")
    assert site.ask("ada", "GET", f"/v1/jobs/{job}")["state"] == "Completed"
    lines = re.split(r"\s*[\n\t]\s*", browser.text(row))
    purpose, more, end = lines[0], lines[1], lines[-1]
    assert purpose == "a loop"
    assert more == "test \u00b7 ada \u00b7 Slurm job 4711 \u00b7 3 min on the QPU"
    assert re.fullmatch("ends .*[0-9]{2}:[0-9]{2}", end)


FRAMES = """
return new Promise((shown) =>
  requestAnimationFrame(() => requestAnimationFrame(() => shown(true))));
"""


def test_charts_without_a_width_draw_nothing_wrong(
    site: Site, browser: Browser
) -> None:
    browser.open(site.url, site.tokens["ada"])
    browser.until(lambda: browser.run(SCALE, "#minutes"), "the chart")
    for width in ("0", "40px", "300px"):
        browser.run("document.querySelector('main').style.width = arguments[0]", width)
        browser.run(FRAMES)
    browser.run("document.querySelector('main').hidden = true")
    browser.run(FRAMES)
    assert browser.complaints() == []


# a service that accepts the request and says no more
HANGS = """
const clock = Date.now;
let ahead = 0;
Date.now = () => clock() + ahead;
window.fetch = () => new Promise(() => {});
window.later = () => { ahead += 60000; };
"""
# the distinct times with which sections are marked
MARKS = """
const headings = [...document.querySelectorAll("h2")];
return [...new Set(headings.map((one) => one.innerText.split(" as of ")[1] ?? ""))];
"""
MOVES = """
return [...document.querySelectorAll("main [data-starts], #since")]
  .map((one) => one.textContent)
  .concat([...document.querySelectorAll("progress")].map((one) => one.value));
"""


def test_what_is_out_of_date_says_of_when_and_stands_still(
    site: Site, browser: Browser
) -> None:
    lease = site.lease("ada", "development")
    for _ in range(2):
        site.submit("ada", lease, None, 300)
    browser.open(site.url, site.tokens["ada"])
    browser.until(lambda: browser.text("#since"), "the running job")
    assert browser.text("#status") == "Online"
    assert browser.run(MARKS) == [""]
    site.service.kill()
    browser.until(lambda: browser.link == "gone", "the page to notice")
    assert browser.text("#status") == "No answer"
    words = browser.text("#word")
    assert re.fullmatch("As of [0-9:]{8}, the service does not answer.", words)
    assert browser.run(MARKS) == [words[6:14]]
    stands, attempt = browser.run(MOVES), browser.text("#clock")
    assert attempt.startswith("Next attempt at ")
    browser.until(lambda: browser.text("#clock") != attempt, "the next attempt")
    assert browser.run(MOVES) == stands
    assert browser.text("#word") == words
    site.service.start()
    browser.until(lambda: browser.link == "live", "the service to be found again")
    assert browser.text("#status") == "Online"
    assert browser.run(MARKS) == [""]

    browser.run(HANGS)

    def late() -> bool:
        browser.run("later()")
        return browser.link == "gone"

    browser.until(late, "the page to notice that there is no answer")
    assert "does not answer" in browser.text("#word")
    assert browser.run(MARKS) == [browser.text("#word")[6:14]]
