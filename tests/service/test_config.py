"""The service's configuration file: what it says, and what is wrong with it."""

from __future__ import annotations

import gzip
import json
import logging
import pwd
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self, get_args

import pytest
from pydantic import BaseModel
from starlette.types import Message, Scope

from sf_quantum import qpu
from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath
from sf_quantum.service.app import Service, build
from sf_quantum.service.config import Configuration, load, make_device
from sf_quantum.service.config_reload import merged
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.domain.settings import (
    ClassLimits,
    PolicyChoice,
    ServiceSettings,
    Shares,
)
from sf_quantum.service.http.auth import LOCAL_USER
from sf_quantum.service.run import _Server
from sf_quantum.service.store.schema import VERSION
from sf_quantum.service.store.store import Store
from sf_quantum.text import utc
from sf_quantum.validation import ValidationErrors
from tests.support.folders import ROOT
from tests.support.service import running_service
from tests.support.waiting import SECONDS, until_async

DEPLOYMENTS = ROOT / "deployments"
EXAMPLE = DEPLOYMENTS / "qpu-service.yml"
WRONG = """
listen: {prt: 1, port: x}
vqpus: 0
leases: {by: everybody, idle_seconds: .inf}
classes:
  users: {ada: prodction}
  limits: {tst: {}, test: {shots: 1.5}}
device: {technology: anealer, faults: {fail: 2}, qubits: true}
auth: [munge]
state: 3
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "qpu.yml"
    path.write_text(text)
    return path


def lines(path: Path) -> list[str]:
    with pytest.raises(ValidationErrors) as caught:
        load(path, {}, {})
    return [line.removeprefix(f"{path}: ") for line in caught.value.lines]


def test_without_a_file_everything_is_as_the_queue_has_it() -> None:
    config = load(None, {}, {})
    assert config == Configuration()
    of_queue = {name: getattr(config, name) for name in ServiceSettings.model_fields}
    assert of_queue == dict(ServiceSettings())
    assert config.request_limits().rate is None
    device = make_device(config.device)
    assert (device.name, device.description.technology) == ("emulator", "annealer")


def test_the_example_says_what_it_says() -> None:
    config = load(EXAMPLE, {}, {})
    assert config.auth.mode == "munge"
    assert make_device(config.device).description.qubits == 100
    assert config.vqpus == 4
    assert config.leases.by == "users"
    assert config.classes.users == {"operator": "production"}
    assert config.classes.partitions["quantum-test"] == "test"
    assert config.classes.limits == {
        "development": ClassLimits(shots=1000, seconds=3600, jobs=10)
    }
    assert config.policy == PolicyChoice("fair-share")
    assert config.shares == Shares(
        projects={"climate": 5, "chemistry": 3}, users={"operator": 2}
    )
    assert config.user_projects["bob"] == ["climate", "chemistry"]
    limits = config.request_limits()
    assert (limits.body_bytes, limits.rate, limits.burst) == (2**23, 100, 200)


def keys(model: type[BaseModel]) -> set[str]:
    names = set(model.model_fields)
    for field in model.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                names |= keys(part)
    return names


def test_the_example_shows_every_key_and_its_true_default(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    shown = set(re.findall(r"(?:^|[ {])(\w+): ", text.replace(":\n", ": \n"), re.M))
    assert keys(Configuration) <= shown
    # with nothing but the comments that show defaults, it is the default
    sections = re.sub(r"^( *)([a-z_]+: *)[^ #\n].*$", "", text, flags=re.M)
    defaults = re.sub(r"^( *)# (\w+: .*)$", r"\1\2", sections, flags=re.M)
    defaults = re.sub(r"^  tokens: .*$", "", defaults, flags=re.M)
    assert "requests_at_once: 64" in defaults
    assert load(written(tmp_path, defaults), {}, {}) == Configuration()


def test_every_error_at_once_by_its_key(tmp_path: Path) -> None:
    assert lines(written(tmp_path, WRONG)) == [
        "listen.port x: expected a whole number",
        "listen.prt: unknown key 'prt', did you mean 'port'? "
        "(known: certificate, host, key, names, port, socket)",
        "state 3: expected a path",
        "auth: expected keys and values",
        "device.technology anealer: unknown technology 'anealer', did you mean "
        "'annealer'? (known: annealer, neutral-atom, photonic, superconducting)",
        "device.qubits True: expected a whole number",
        "device.faults.fail 2: expected 1 or less",
        "vqpus 0: expected 1 or more",
        "leases.by everybody: unknown value 'everybody' (known: root, users)",
        "leases.idle_seconds inf: expected a finite number",
        "classes.users.ada prodction: unknown value 'prodction', did you mean "
        "'production'? (known: development, production, test)",
        "classes.limits.tst: unknown value 'tst', did you mean 'test'? "
        "(known: development, production, test)",
        "classes.limits.test.shots 1.5: expected a whole number",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", ", line 2: not YAML: duplicate key 'a'"),
        ("a: [", ", line 1: not YAML: "),
        ("- a", ": expected keys and values"),
        ("\0", ": not YAML: "),
        ("!!python/object:os.system {}", ", line 1: not YAML: could not determine"),
        ("a:\n  ? [b, c]\n  : 1", ", line 2: not YAML: a key must be text, not a list"),
        ("? {a: 1}\n: 2", ", line 1: not YAML: a key must be text, not a list"),
    ],
)
def test_what_is_no_configuration(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load(path, {}, {})
    assert str(caught.value).startswith(f"{path}{words}")


def test_a_file_that_is_missing() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(Path("/nowhere/qpu.yml"), {}, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy: fiffo", "policy fiffo: unknown policy 'fiffo', did you mean 'fifo'?"),
        ("policy: 3", "policy 3: expected the name of a policy, or keys and values"),
        ("policy: {}", "policy: expected the name of a policy as type"),
        (
            "policy: {type: fair-share, half_life: 3}",
            "policy: unknown key 'half_life', did you mean 'half_life_seconds'? "
            "(known: half_life_seconds)",
        ),
        ("policy: {type: classes, a: 1}", "policy: unknown key 'a': this policy has"),
        ("shares: {default: 2}", "shares: policy classes uses no shares; fair-share"),
        (
            "{policy: fair-share, shares: {projects: {a: 11}}}",
            "shares.projects.a 11: expected 10 or less",
        ),
        ("user_projects: {ann: chem}", "user_projects.ann chem: expected a list"),
    ],
)
def test_what_a_policy_does_not_take(tmp_path: Path, text: str, words: str) -> None:
    (line,) = lines(written(tmp_path, text))
    assert line.startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("faults: {fial: 1}", "faults.fial: unknown key 'fial', did you mean 'fail'?"),
        ("faults: {fail: 1.5}", "faults.fail 1.5: expected 1 or less"),
        ("faults: {offline: -1}", "faults.offline -1: expected 0 or more"),
        ("faults: {slow: 0.5}", "faults.slow 0.5: expected 1 or more"),
        ("faults: {slow: .inf}", "faults.slow inf: expected a finite number"),
        ("faults: {fail: .nan}", "faults.fail nan: expected"),
        ("faults: {fail: true}", "faults.fail True: expected a number"),
        ("faults: {fail: often}", "faults.fail often: expected a number"),
        ("technology: anealer", "technology anealer: unknown technology 'anealer'"),
        ("topology: chimaera", "topology chimaera: unknown topology 'chimaera'"),
        ("time_scale: -1", "time_scale -1: expected 0 or more"),
        ("noise: .inf", "noise inf: expected a finite number"),
        ("qubits: 0", "qubits 0: expected 1 or more"),
        ("shots: 0", "shots 0: expected 1 or more"),
        ("calibration_seconds: 0", "calibration_seconds 0: expected more than 0"),
        ("name: ''", "name : "),
        ("out_of_service: 3", "out_of_service 3: expected a list"),
        ("out_of_service: [-1]", "out_of_service[0] -1: expected 0 or more"),
        ("out_of_service: [a]", "out_of_service[0] a: expected a whole number"),
        ("bounds: {noise: [0]}", "bounds: noise: expected [least, most] within [0,"),
        ("bounds: {noise: [0, 2, 1]}", "bounds: noise: expected [least, most]"),
    ],
)
def test_what_no_device_is(tmp_path: Path, text: str, words: str) -> None:
    (line,) = lines(written(tmp_path, f"device: {{{text}}}"))
    assert line.startswith(f"device.{words}")


QPU = "type: qpu, qpu: sfq, config: {url: 'unix:/x'}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("type: qup", "device: unknown device type 'qup', did you mean 'qpu'? (known"),
        ("type: [qpu]", "device: expected the type of a device as type"),
        ("type: qpu", "device.qpu: missing"),
        (f"{QPU}, technology: annealer", "device.technology: unknown key 'technology'"),
        (f"{QPU}, ahed: 1", "device.ahed: unknown key 'ahed', did you mean 'ahead'?"),
        (f"{QPU}, poll_seconds: 0", "device.poll_seconds 0: expected more than 0"),
        (
            "type: qpu, qpu: sfq, config: {token: secret}",
            "device.config: token holds a credential: name a file that has it instead",
        ),
        (
            "type: qpu, qpu: sfq, config: {url: 'https://secret@h'}",
            "device.config: url has a user or a query, which may be a credential",
        ),
        (
            "type: qpu, qpu: sfq, config: secret",
            "device.config: expected keys and values",
        ),
        ("type: emulated, qbits: 3", "device.qbits: unknown key 'qbits', did you mean"),
    ],
)
def test_what_no_real_qpu_is(tmp_path: Path, text: str, words: str) -> None:
    (line,) = lines(written(tmp_path, f"device: {{{text}}}"))
    assert line.startswith(words)
    assert "secret" not in line


def test_a_real_qpu_is_a_device(tmp_path: Path) -> None:
    config = load(written(tmp_path, f"device: {{{QPU}, name: front}}"), {}, {})
    device = make_device(config.device)
    assert isinstance(device, QpuDevice)
    assert device.name == "front"
    device.close()
    example = EXAMPLE.read_text().partition("# device:\n")[2].partition("\n\n")[0]
    text = "device:\n" + re.sub("^#", "", example, flags=re.M)
    shown = load(written(tmp_path, text), {}, {}).device
    assert isinstance(shown, QpuSettings)
    given = {"qpu": shown.qpu, "name": "fresnel", "config": shown.config}
    assert shown == QpuSettings.model_validate(given)


class _Own(EmulatedDevice):
    """A site's own device, whose keys are its own."""

    @classmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        if config != {"bulbs": [1, {"lit": True}]}:
            raise InputError("bulbs: expected one that is lit")
        return cls(name="own")


def test_a_sites_own_device_gets_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "own-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: own\n")
    (site / "entry_points.txt").write_text(
        f"[sf_quantum.devices]\nbulbs = {__name__}:_Own\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = written(tmp_path, "device: {type: bulbs, bulbs: [1, {lit: true}]}")
    old = load(path, {}, {})
    assert make_device(old.device).name == "own"
    assert merged(old, load(None, {}, {})) == (old, ["device"])
    path.write_text("device: {type: bulbs}")
    assert main(["check", str(path)]) == 2
    line = f"{path}: device: bulbs: expected one that is lit\n"
    assert capsys.readouterr().out == line
    assert main(["serve", "--config", str(path)]) == 2
    assert capsys.readouterr().err == f"sfq serve: {line}"
    assert main(["serve", "--config", str(path), "--qubits", "5"]) == 2
    assert capsys.readouterr().err == (
        f"sfq serve: --qubits is for the emulated device; that of {path} has type "
        "'bulbs'\n"
    )


def test_a_check_makes_the_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "device: {type: qpu, qpu: sfqq}\nvqpus: 0")
    assert main(["serve", "--config", str(path), "--check"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"sfq serve: {path}: vqpus 0: expected 1 or more",
        f"sfq serve: {path}: device: unknown QPU type 'sfqq', did you mean 'sfq'? "
        f"(known: {', '.join(sorted(qpu.names()))})",
    ]
    path.write_text("device: {type: qpu, qpu: sfq, config: {tokenfile: t, url: u}}")
    assert main(["check", str(path)]) == 2
    assert f"{path}: device: unknown key 'tokenfile'" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["interleave", "{type: interleave, patience: 2.5}"])
def test_a_policy_by_its_name_or_with_its_options(tmp_path: Path, text: str) -> None:
    chosen = load(written(tmp_path, f"policy: {text}"), {}, {}).policy
    assert chosen.type == "interleave"
    assert chosen.options == ({"patience": 2.5} if "patience" in text else {})


@pytest.mark.parametrize("text", ["", "listen:\nauth:\n", "# nothing\n"])
def test_what_is_empty_is_default(tmp_path: Path, text: str) -> None:
    assert load(written(tmp_path, text), {}, {}) == Configuration()


def test_names_that_python_reads_as_numbers_are_names(tmp_path: Path) -> None:
    text = "vqpus: 1\nclasses: {users: {'0_0': test, ' 0 ': test, '+0': production}}\n"
    read = load(written(tmp_path, text), {}, {})
    assert [*read.classes.users] == ["0_0", " 0 ", "+0"]


@pytest.mark.parametrize("user", pwd.getpwall()[:5])
def test_a_uid_names_its_user_wherever_users_are(
    tmp_path: Path, user: pwd.struct_passwd
) -> None:
    template = """\
auth: {{admins: [{0}]}}
classes: {{users: {{{0}: test, 3000000001: production}}, priorities: {{{0}: 5}}}}
user_projects: {{{0}: [climate]}}
policy: fair-share
shares: {{users: {{{0}: 2}}}}
leases: {{authorized_users: [{0}]}}
metrics: {{users: [{0}]}}
repeatable_users: [{0}]
"""
    by_uid = load(written(tmp_path, template.format(user.pw_uid)), {}, {})
    by_name = load(written(tmp_path, template.format(user.pw_name)), {}, {})
    for section, key in (
        ("auth", "admins"),
        ("leases", "authorized_users"),
        ("metrics", "users"),
        ("", "repeatable_users"),
    ):
        uids = getattr(getattr(by_uid, section) if section else by_uid, key)
        names = getattr(getattr(by_name, section) if section else by_name, key)
        # A user with a token may have any name.
        assert uids == [str(user.pw_uid), *names]
    assert by_uid.classes == by_name.classes
    # The user of a uid that this machine does not know is called that.
    assert by_uid.classes.users == {user.pw_name: "test", "3000000001": "production"}
    assert by_uid.user_projects == by_name.user_projects
    assert by_uid.shares == by_name.shares


@pytest.mark.parametrize("key", ["idle_seconds", "total_seconds", "wait_seconds"])
def test_the_longest_lease_ends_within_the_calendar(tmp_path: Path, key: str) -> None:
    assert lines(written(tmp_path, f"leases: {{{key}: 1.1e10}}")) == [
        f"leases.{key} 11000000000.0: expected 1e+10 or less"
    ]
    config = load(written(tmp_path, f"leases: {{{key}: 1e10}}"), {}, {})
    with running_service(EmulatedDevice(time_scale=0), settings=config) as service:
        body: dict[str, JSON] = {"user_id": "0", "slurm_job_id": "1"}
        assert service.ask("POST", "/sessions", body).status == 200
        (lease,) = json.loads(service.ask("GET", "/v1/leases").body)
        for end in (lease["expires"], lease["idle_expires"]):
            assert utc(end) or end is None


def test_a_user_is_named_once(tmp_path: Path) -> None:
    text = "classes: {users: {0: test, root: production}}"
    assert lines(written(tmp_path, text)) == [
        "classes.users: root is there twice, by name and by uid"
    ]


TLS = "certificate: c, key: k"
PUBLIC = "other machines reach this address"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: {host: 0.0.0.0}", f"listen.host 0.0.0.0: {PUBLIC}"),
        ("listen: {host: '::'}", f"listen.host ::: {PUBLIC}"),
        ("listen: {host: qpu.example.org}", f"listen.host qpu.example.org: {PUBLIC}"),
        (f"listen: {{host: 0.0.0.0, {TLS}}}", PUBLIC),
        ("{listen: {host: 0.0.0.0}, auth: {mode: munge}}", PUBLIC),
        ("listen: {certificate: c}", "listen.certificate: needs listen.key"),
        ("listen: {key: k}", "listen.key: needs listen.certificate"),
        (f"listen: {{socket: s, {TLS}}}", "a Unix socket does not use TLS"),
        ("listen: {socket: s, names: [a]}", "listen.names: checked only without"),
        ("auth: {mode: token}", "auth.mode token: needs auth.tokens (--tokens), the "),
        (
            "auth: {tokens: t}",
            "auth.tokens: mode none does not use it: remove it, or set auth.mode to token",
        ),
        ("auth: {mode: token, tokens: t, munge: m}", "auth.munge: mode token does not"),
        ("listen: {socket: s, port: 0}", "listen.port 0: conflicts with"),
        ("listen: {socket: s, host: '::1'}", "listen.host ::1: conflicts with"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, text: str, words: str) -> None:
    (line,) = lines(written(tmp_path, text))
    assert words in line


def test_what_goes_together(tmp_path: Path) -> None:
    for mode in ("mode: munge", "{mode: token, tokens: t}"):
        text = f"listen: {{host: 0.0.0.0, {TLS}}}\nauth: {mode}\n"
        text = text.replace("auth: mode: munge", "auth: {mode: munge}")
        assert load(written(tmp_path, text), {}, {}).listen.public
    assert not load(written(tmp_path, "listen: {host: '::1'}"), {}, {}).listen.public


def test_options_take_the_place_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "vqpus: 3\nlisten: {socket: /nowhere/s}\nleases: {a: 1}\n")
    wrong = ["--qubits", "0", "--host", "0.0.0.0", "--vqpus", "-1"]
    assert main(["serve", "--config", str(path), *wrong]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "sfq serve: --qubits 0: expected 1 or more",
        "sfq serve: --vqpus -1: expected 1 or more",
        f"sfq serve: {path}: leases.a: unknown key 'a' "
        "(known: authorized_users, by, idle_seconds, total_seconds, wait_seconds)",
    ]
    path.write_text("vqpus: 3\nlisten: {socket: /nowhere/s}\n")
    assert main(["serve", "--config", str(path), "--host", "0.0.0.0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sfq serve: --host 0.0.0.0: {PUBLIC}")


FAULTY = """
listen: {socket: nowhere/s}
auth: {mode: token, tokens: tokens.yml, admins: [operator, root]}
state: tokens.yml/state
vqpus: 0
policy: fair-share
shares: {projects: {climate: 7}, users: {ann: 6, bob: 5, eve: 4}}
user_projects: {ann: [climate, physics], bob: [climate]}
classes: {default: test, highest: development}
"""


def test_a_check_finds_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["token", "operator", "--tokens", "tokens.yml"]) == 0
    Path("qpu.yml").write_text(FAULTY)
    Path("streamflow.yml").write_text("version: v1.0\nvqpus: 3\n")
    capsys.readouterr()
    assert main(["check", "qpu.yml"]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "qpu.yml: vqpus 0: expected 1 or more",
        "qpu.yml: auth.admins[1] root: has no token in tokens.yml "
        "(sfq token root --tokens tokens.yml)",
        f"qpu.yml: listen.socket {tmp_path}/nowhere/s: "
        f"there is no folder {tmp_path}/nowhere",
        f"qpu.yml: state tokens.yml/state: {tmp_path}/tokens.yml is not a folder",
        "qpu.yml: user_projects.ann[1] physics: has no share in shares.projects, so it "
        "gets that of default",
        "qpu.yml: shares: those of projects and of users without one add up to 11 "
        "tenths, more than 10",
        "qpu.yml: shares.users: those within climate add up to 11 tenths, more than 10",
        "qpu.yml: classes.default test: is above classes.highest, development, so "
        "nobody gets it by default",
    ]
    assert not Path("nowhere").exists()
    # a finding has one line
    Path("qpu.yml").write_text('listen: {socket: s, host: "a\\nb"}\n')
    assert main(["check", "qpu.yml"]) == main(["serve", "--config", "qpu.yml"]) == 2
    line = "qpu.yml: listen.host a\\nb: conflicts with listen.socket: leave one of them out"
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{line}\n", f"sfq serve: {line}\n")
    Path("qpu.yml").write_text('listen: {socket: "s\\0"}\n')
    assert main(["check", "qpu.yml"]) == 2
    line = "qpu.yml: listen.socket s\\x00: expected a path without null bytes\n"
    assert capsys.readouterr().out == line
    # as one in a folder of another user
    Path("qpu.yml").write_text(f"state: {'s' * 300}\n")
    assert main(["check", "qpu.yml"]) == 2
    why = "cannot be read: file name too long"
    assert capsys.readouterr().out == f"qpu.yml: state {'s' * 300}: {why}\n"
    assert main(["check", "streamflow.yml"]) == 2
    assert "streamflow.yml:2: vqpus: " in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["none", "token"])
def test_what_keeps_users_out_needs_users(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["token", "operator", "--tokens", "tokens.yml"]) == 0
    tokens = ", tokens: tokens.yml" if mode == "token" else ""
    Path("qpu.yml").write_text(
        f"auth: {{mode: {mode}{tokens}, admins: [operator]}}\n"
        "metrics: {public: false}\nleases: {by: root}\n"
    )
    capsys.readouterr()
    why = "has no effect: with auth.mode none, all requests are of one user, an admin"
    keys = ("auth.admins", "metrics.public", "leases.by root")
    found = [f"qpu.yml: {key}: {why}" for key in keys] if mode == "none" else []
    assert main(["check", "qpu.yml"]) == (2 if found else 0)
    said = capsys.readouterr().out.splitlines()
    assert (said if found else []) == found


def test_a_check_with_options_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("qpu.yml").write_text(
        "listen: {port: 8642}\npolicy: fiffo\nshares: {default: 2}"
    )
    for name in ("c", "k", "t"):
        Path(name).write_text("")
        Path(name).chmod(0o644)
    Path("state").mkdir()
    # the version of a state from the future, where SQLite has it
    header = b"SQLite format 3\0" + bytes(44) + (99).to_bytes(4, "big")
    Path("state/service.sqlite").write_bytes(header)
    options = "--certificate c --key k --state state --auth token --tokens t --socket c"
    serve = ["serve", "--config", "qpu.yml", *options.split()]
    assert main([*serve, "--check"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "sfq serve: qpu.yml: policy fiffo: unknown policy 'fiffo', did you mean 'fifo'? "
        "(known: classes, fair-share, fifo, interleave)",
        "sfq serve: qpu.yml: listen.port 8642: conflicts with listen.socket: leave one "
        "of them out",
        "sfq serve: --certificate: a Unix socket does not use TLS",
        "sfq serve: --tokens: t: mode 0644 is open to others (chmod 600)",
        "sfq serve: --certificate: k: mode 0644 is open to others (chmod 600)",
        f"sfq serve: --socket {tmp_path}/c: exists and is not a socket",
        f"sfq serve: --state state: its version is 99, this sf_quantum reads up to "
        f"{VERSION}",
    ]
    assert sorted(path.name for path in Path("state").iterdir()) == ["service.sqlite"]


def test_a_check_without_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("qpu.yml").write_text(
        "{policy: fair-share, user_projects: {ann: [a]}, "
        "shares: {projects: {b: 9}, users: {ann: 9}, default: 1}}"
    )
    assert main(["check", "qpu.yml"]) == 0
    assert main(["serve", "--check", "--state", "s"]) == 0
    said = "qpu.yml: OK (QPU service)\nconfiguration: OK (QPU service)\n"
    assert capsys.readouterr().out == said
    assert not Path("s").exists()


def test_what_a_reload_changes() -> None:
    tls: dict[KeyPath, JSON] = {
        ("listen", "certificate"): "c",
        ("listen", "key"): "k",
    }
    old = load(None, {("vqpus",): 2, ("listen", "port"): 1, **tls}, {})
    changed: dict[KeyPath, JSON] = {
        ("vqpus",): 3,
        ("listen", "port"): 2,
        ("listen", "certificate"): "new",
        ("listen", "key"): "k",
        ("auth", "mode"): "munge",
        ("auth", "admins"): ["eve"],
        ("metrics", "public"): False,
        ("limits", "jobs"): 7,
        ("device", "name"): "other",
        ("device", "qubits"): 7,
        ("quality", "every_seconds"): 60,
    }
    config, kept = merged(old, load(None, changed, {}))
    names = (
        "device.name device.qubits quality.every_seconds vqpus listen.port auth.mode"
    )
    assert kept == names.split()
    assert config.listen.certificate == Path("new")
    assert (config.listen.port, config.vqpus, config.auth) == (1, 2, old.auth)
    assert (config.device, config.limits.jobs) == (old.device, 7)
    plain = load(None, {}, {})
    config, kept = merged(plain, load(None, {**tls}, {}))
    assert (config, kept) == (plain, ["listen.certificate", "listen.key"])


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Service]:
    store = Store(tmp_path / "service.sqlite")
    yield build(store, EmulatedDevice(time_scale=0), load(None, {}, {}))
    store.close()


async def test_a_reload_reaches_every_part(
    built: Service, caplog: pytest.LogCaptureFixture
) -> None:
    changed: dict[KeyPath, JSON] = {
        ("metrics", "public"): False,
        ("limits", "body_mib"): 0.0001,
        ("limits", "connections"): 3,
    }
    old, new = load(None, {}, {}), load(None, changed, {})
    server = _Server(built, old, lambda: None, lambda: new)
    server.config.load()
    with caplog.at_level(logging.INFO):
        assert await server._reloaded() == "reloaded the configuration"
    assert caplog.records[-1].levelname == "INFO"
    assert not built.telemetry.public_metrics
    assert server._limits.most == 3
    # a body that is within the limit of 104 bytes before it is decompressed
    sent = list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": gzip.compress(b" " * 200)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs",
        "query_string": b"",
        "headers": [(b"content-encoding", b"gzip")],
    }
    await built.guard(scope, receive, send)
    assert sent[0]["status"] == 413


async def test_a_certificate_that_goes_during_a_reload(
    built: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: dict[KeyPath, JSON] = {("listen", "certificate"): "c", ("listen", "key"): "k"}
    server = _Server(built, load(None, {}, {}), lambda: None, None)
    server.config.load()
    server.config.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    read = load(None, gone, {}), list[str](), LOCAL_USER
    monkeypatch.setattr(server, "_read_again", lambda: read)
    assert "is not reloaded: " in await server._reloaded()


async def test_a_change_during_a_reload_is_read_too(built: Service) -> None:
    config, read, go = load(None, {}, {}), list[int](), threading.Event()

    def slow() -> Configuration:
        read.append(len(read))
        go.wait(SECONDS)
        return config

    server = _Server(built, config, lambda: None, slow)
    server.config.load()
    server._begin_reload()
    await until_async(lambda: read)
    server._begin_reload()
    go.set()
    assert server._reloading is not None
    await server._reloading
    assert read == [0, 1]


@pytest.mark.process
def test_the_unit_is_right_and_hardened(tmp_path: Path) -> None:
    unit = DEPLOYMENTS / "sfq-serve.service"
    text = unit.read_text()
    for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "StateDirectory=sfq"):
        assert line in text.splitlines()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # verify also asks whether the program is there
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/sfq/bin/sfq", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
