"""Bodies that cost a parser as much as possible, of any size, for every parser.

Each family is one idea of how a parser may be made to work more than it was sent: nesting,
repetition, escapes, colliding hashes, many errors at once, compression, references.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeAlias

from sf_quantum.files import JSON, mapping
from sf_quantum.samplers.problem import document
from tests.support.folders import DATA
from tests.support.service import example_bqm

#: makes a body of about so many bytes
Family: TypeAlias = Callable[[int], bytes]
SEQUENCE = json.loads((DATA / "sequence.json").read_text())
HEAD = 'OPENQASM 3.0; include "stdgates.inc"; qubit[4] q; bit[4] c; '
TAIL = " c = measure q;"
_WORD = 2**64


@dataclass(frozen=True)
class Route:
    """Where a kind of body is sent.

    :param technology: of the emulated device that takes it
    """

    technology: str
    path: str
    families: Mapping[str, Family]
    headers: Mapping[str, str]


def colliding() -> Iterator[list[int]]:
    """Yield pairs of integers whose tuples all have the same hash.

    Tuples are hashed by xxHash (``Objects/tupleobject.c``) without a secret: for any first
    element there is a second one that leads to the same state.
    """
    first, second, last = (
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
    )

    def after(value: int) -> int:
        mixed = (last + value * second) % _WORD
        return ((mixed << 31 | mixed >> 33) * first) % _WORD

    target, inverse = after(1), pow(second, -1, _WORD)
    for number in count(1):
        other = (target - after(number)) * inverse % _WORD
        other -= _WORD * (other >= _WORD // 2)
        if abs(other) < 2**61 - 1 and other != -1:
            yield [number, other]


def _repeated(text: str, size: int, sep: str = ",") -> str:
    return sep.join([text] * max(1, size // (len(text) + len(sep))))


def _nested(size: int, opening: str = "[", inner: str = "", closing: str = "]") -> str:
    depth = max(1, size // (len(opening) + len(closing)))
    return f"{opening * depth}{inner}{closing * depth}"


def _keys(size: int, value: str = "0") -> str:
    each = len(value) + 12
    return ",".join(f'"k{n:06}":{value}' for n in range(max(1, size // each)))


# what any parser of JSON may get
ANY: Mapping[str, Family] = {
    "brackets": lambda n: (b"[" * n),
    "nested lists": lambda n: _nested(n).encode(),
    "nested objects": lambda n: _nested(n, '{"a":', "0", "}").encode(),
    "empty lists": lambda n: f"[{_repeated('[]', n)}]".encode(),
    "empty objects": lambda n: f"[{_repeated('{}', n)}]".encode(),
    "unknown keys": lambda n: f"{{{_keys(n)}}}".encode(),
    "one key again": lambda n: f"{{{_repeated(chr(34) + 'a' + chr(34) + ':0', n)}}}".encode(),
    "blanks": lambda n: b" " * n + b"{}",
    "long numbers": lambda n: f"[{_repeated('9' * 4000, n)}]".encode(),
    "too long a number": lambda n: b"9" * n,
    "half surrogates": lambda n: f"[{_repeated(chr(34) + chr(92) + 'ud800' + chr(34), n)}]".encode(),
    "surrogate pairs": lambda n: ('"' + "\\ud83d\\ude00" * (n // 12) + '"').encode(),
    "escaped quotes": lambda n: ('"' + '\\"' * (n // 2) + '"').encode(),
    "not UTF-8": lambda n: b'"' + b"\xff" * n + b'"',
    "zero bytes": lambda n: b"\0" * n,
}


def _job(**content: JSON) -> bytes:
    return json.dumps({"idempotency_key": "k", **content}).encode()


def _around(name: str, text: str) -> bytes:
    """A job whose payload is a text of JSON, which may be deeper than Python writes."""
    return f'{{"idempotency_key": "k", "{name}": {text}}}'.encode()


def _bqm(**parts: str) -> str:
    """The example with some parts replaced by texts of JSON."""
    texts = {name: json.dumps(part) for name, part in example_bqm().items()} | parts
    return "{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}"


def _labels(labels: list[JSON]) -> bytes:
    return _job(problem=document(labels, [0.0] * len(labels), [], [], "SPIN"))


def _dense(size: int) -> bytes:
    number = max(1, size // 12)
    pairs = [(n % 100, 100 + n % 99) for n in range(number)]
    labels: list[JSON] = [*range(200)]
    return _job(problem=document(labels, [0.5] * 200, pairs, [1.0] * number, "SPIN"))


def _levels(size: int) -> str:
    """A label that is a list of two in a list of two: what is copied doubles."""
    depth = max(1, min(size // 8, 400))
    return f"{'[1,' * depth}1{']' * depth}"


PROBLEMS: Mapping[str, Family] = {
    "labels in labels": lambda n: _around(
        "problem", _bqm(variable_labels=f'[{_levels(n)}, "b", "c"]')
    ),
    "nested label": lambda n: _around(
        "problem", _bqm(variable_labels=f'[{_nested(min(n, 1500))}, "b", "c"]')
    ),
    "colliding labels": lambda n: _labels(
        [[*pair] for pair in islice(colliding(), n // 33)]
    ),
    "equal labels": lambda n: _labels([["a", 1], ["a", 1.0]] * (n // 30)),
    "number labels": lambda n: _labels([*range(n // 14)]),
    "wide label": lambda n: _labels([[0] * (n // 4), 1]),
    "long label": lambda n: _labels(["\u00e9" * (n // 6), "\0" * 10]),
    "many interactions": _dense,
    "nested info": lambda n: _around(
        "problem", _bqm(info=_nested(min(n, 1800), '{"a":', "0", "}"))
    ),
    "wide info": lambda n: _around("problem", _bqm(info=f"{{{_keys(n)}}}")),
    "many problems": lambda n: _around(
        "problem", f"[{_repeated(_bqm(), min(n, 1000 * 480))}]"
    ),
    "many that are none": lambda n: _around("problem", f"[{_repeated('{}', n)}]"),
    "many of another type": lambda n: _around("problem", f"[{_repeated('0', n)}]"),
    "values of another type": lambda n: _around(
        "problem", _bqm(linear_biases=f"[{_repeated('{}', n)}]")
    ),
    "solver parameters": lambda n: _around(
        "problem", _bqm(info=f'{{"solver_parameters": {{{_keys(n)}}}}}')
    ),
}
CIRCUITS: Mapping[str, Family] = {
    "statements": lambda n: _job(circuit=HEAD + "x q[0];" * (n // 7) + TAIL),
    "semicolons": lambda n: _job(circuit=HEAD + ";" * n + TAIL),
    "angles": lambda n: _job(circuit=HEAD + "rx(0.25) q[0];" * (n // 14) + TAIL),
    "sum of ones": lambda n: _job(
        circuit=f"{HEAD}rx({'+'.join('1' * (n // 2))}) q[0];{TAIL}"
    ),
    "parentheses": lambda n: _job(
        circuit=f"{HEAD}rx({_nested(n, '(', '1', ')')}) q[0];{TAIL}"
    ),
    "powers": lambda n: _job(
        circuit=f"{HEAD}rx({'**'.join('9' * (n // 3))}) q[0];{TAIL}"
    ),
    "doubling gates": lambda n: _job(
        circuit=HEAD
        + "gate g0 a { x a; x a; }"
        + "".join(
            f"gate g{i} a {{ g{i - 1} a; g{i - 1} a; }}"
            for i in range(1, max(2, n // 30))
        )
        + f"g{max(2, n // 30) - 1} q[0];"
        + TAIL
    ),
    "nested loops": lambda n: _job(
        circuit=HEAD
        + "for int i in [0:9] {" * (n // 22)
        + "x q[0];"
        + "}" * (n // 22)
        + TAIL
    ),
    "nested ifs": lambda n: _job(
        circuit=HEAD + "if (c[0]) {" * (n // 12) + "x q[0];" + "}" * (n // 12) + TAIL
    ),
    "open comments": lambda n: _job(circuit="/*" * (n // 2)),
    "comments": lambda n: _job(circuit="//\n" * (n // 3) + HEAD + TAIL),
    "registers": lambda n: _job(
        circuit="OPENQASM 2.0;" + "".join(f"qreg r{i}[1];" for i in range(n // 14))
    ),
    "blank registers": lambda n: _job(
        circuit="OPENQASM 2.0; qreg " + " " * n + "qreg " * 9
    ),
    "long name": lambda n: _job(circuit=f"{HEAD}{'g' * n} q[0];{TAIL}"),
    "many empty": lambda n: _job(circuit=[""] * (n // 4)),
    "many small": lambda n: _job(circuit=[HEAD + TAIL] * (n // 90)),
    "many of another type": lambda n: _around("circuit", f"[{_repeated('0', n)}]"),
    "empty values": lambda n: _around(
        "circuit", f'{{"program": "", "values": [{_repeated("{}", n)}]}}'
    ),
    "wrong values": lambda n: _around(
        "circuit", f'{{"program": "", "values": [{{{_keys(n, "[]")}}}]}}'
    ),
    "many wrong values": lambda n: _around(
        "circuit", f'{{"program": "", "values": [{_repeated("0", n)}]}}'
    ),
}


def _sequence(**parts: JSON) -> str:
    return json.dumps({**SEQUENCE, **parts})


def _atoms(size: int) -> JSON:
    return [
        {"name": f"q{n}", "x": 5.0 * (n % 300), "y": 5.0 * (n // 300)}
        for n in range(max(1, size // 40))
    ]


_DELAY: JSON = {"op": "delay", "channel": "g", "time": 16}
SEQUENCES: Mapping[str, Callable[[int], str]] = {
    "atoms": lambda n: _sequence(register=_atoms(n)),
    "one place": lambda n: _sequence(
        register=[{"name": f"q{i}", "x": 0.0, "y": 0.0} for i in range(n // 40)]
    ),
    "delays": lambda n: _sequence(operations=[_DELAY] * (n // 45)),
    "pulses": lambda n: _sequence(operations=SEQUENCE["operations"] * (n // 230)),
    "channels": lambda n: _sequence(
        channels={f"g{i}": "rydberg_global" for i in range(n // 28)}
    ),
    "variables": lambda n: _sequence(
        variables={f"v{i}": {"type": "float", "value": [0.0]} for i in range(n // 45)}
    ),
    "other operations": lambda n: _sequence(operations=[0] * (n // 3)),
    "brackets": lambda n: "[" * n,
    "nested": lambda n: _nested(n),
    "NaN": lambda n: _sequence(register=[{"name": "a", "x": float("nan"), "y": 0.0}]),
    "close atoms": lambda n: _sequence(
        register=[{"name": f"q{i}", "x": 1e-7 * i, "y": 0.0} for i in range(n // 40)]
    ),
    "long numbers": lambda n: f"[{_repeated('9' * 4000, n)}]",
    "interpolated": lambda n: _sequence(
        operations=[
            {
                **SEQUENCE["operations"][0],
                "amplitude": {
                    "kind": "interpolated",
                    "duration": 1000,
                    "values": [1.0] * (n // 10),
                    "times": [i / (n // 10) for i in range(n // 10)],
                },
            }
        ]
    ),
}


def _photonic(**parts: JSON) -> bytes:
    usual: dict[str, JSON] = {"circuit": "", "input_state": "|1,0>"}
    return _job(photonic={**usual, **parts})


PHOTONIC: Mapping[str, Family] = {
    "heralds": lambda n: _photonic(heralds={f"{i}": 1 for i in range(n // 10)}),
    "wrong heralds": lambda n: _photonic(heralds={f"k{i}": [] for i in range(n // 12)}),
    "unknown keys": lambda n: _around("photonic", f"{{{_keys(n)}}}"),
    "zipped": lambda n: _photonic(
        circuit=":PCVL:zip:"
        + base64.b64encode(zlib.compress(b"A" * (n * 500))).decode()[:n]
    ),
    "modes": lambda n: _photonic(input_state="|" + "1," * min(490, n) + "1>"),
    "condition": lambda n: _photonic(postselect="(" * 100 + ")" * 100),
    "circuit": lambda n: _photonic(circuit=":PCVL:ACircuit:" + "CgAA" * (n // 4)),
}


def _iqm(instructions: list[JSON], **more: JSON) -> bytes:
    circuit: JSON = {"name": "c", "instructions": instructions}
    return json.dumps({"circuits": [circuit], "shots": 1, **more}).encode()


_PRX: JSON = {"name": "prx", "locus": ["QB1"], "args": {"angle": 1.0, "phase": 0.0}}
_MEASURE: JSON = {"name": "measure", "locus": ["QB1"], "args": {"key": "m"}}


def _on(qubit: str, instruction: JSON) -> JSON:
    return {**mapping(instruction), "locus": [qubit]}


IQM: Mapping[str, Family] = {
    "instructions": lambda n: _iqm([_PRX] * min(n // 70, 9999) + [_MEASURE]),
    "too many": lambda n: _iqm([_PRX] * (n // 70)),
    "other instructions": lambda n: _iqm([0] * (n // 3)),
    "circuits": lambda n: json.dumps(
        {"circuits": [{"name": "c", "instructions": [_MEASURE]}] * (n // 90)}
    ).encode(),
    "other circuits": lambda n: f'{{"circuits": [{_repeated("0", n)}]}}'.encode(),
    "loci": lambda n: _iqm([{"name": "barrier", "locus": ["QB1"] * (n // 7)}]),
    "keys": lambda n: _iqm(
        [{**_PRX, "args": {f"k{i}": 0 for i in range(n // 12)}}]  # type: ignore[dict-item]
    ),
    "long mapping": lambda n: _iqm(
        [_MEASURE], qubit_mapping={f"q{i}": "QB1" for i in range(n // 14)}
    ),
    "two names of a qubit": lambda n: _iqm(
        [_on("a", _PRX)] * min(n // 70, 9998) + [_on("a", _MEASURE)],
        qubit_mapping={"a": "QB1", "b" * 1000: "QB1"},
    ),
    "options": lambda n: _iqm(
        [_MEASURE], dd_strategy={"a": [[0] for _ in range(n // 5)]}
    ),
    "metadata": lambda n: (
        '{"circuits": [{"name": "c", "instructions": ['
        + json.dumps(_MEASURE)
        + f'], "metadata": {_nested(min(n, 1800), chr(123) + chr(34) + "a" + chr(34) + ":", "0", "}")}}}]}}'
    ).encode(),
}


def _sapi(**parts: JSON) -> dict[str, JSON]:
    data: JSON = {"format": "qp", "lin": "", "quad": ""}
    return {"solver": "emulator", "type": "ising", "data": data, "params": {}, **parts}


SAPI: Mapping[str, Family] = {
    "problems": lambda n: json.dumps([_sapi()] * (n // 100)).encode(),
    "other problems": lambda n: f"[{_repeated('0', n)}]".encode(),
    "parameters": lambda n: json.dumps(
        _sapi(params={f"k{i}": 0 for i in range(n // 12)})
    ).encode(),
    "schedule": lambda n: json.dumps(
        _sapi(params={"anneal_schedule": [[0.0, 0.0]] * (n // 12)})
    ).encode(),
    "wrong schedule": lambda n: json.dumps(
        _sapi(params={"anneal_schedule": [[]] * (n // 4), "initial_state": ["x"] * 9})
    ).encode(),
    "wrong states": lambda n: json.dumps(
        _sapi(params={"initial_state": ["x"] * (n // 5)})
    ).encode(),
    "biases": lambda n: json.dumps(
        _sapi(data={"format": "qp", "lin": "A" * n, "quad": ""})
    ).encode(),
    "label": lambda n: json.dumps(_sapi(label="x" * n)).encode(),
}
DEFLATED: Mapping[str, Family] = {
    "deflated blanks": lambda n: zlib.compress(b" " * (n * 500)),
    "deflated text": lambda n: zlib.compress(b'"%b"' % (b"x" * (n * 500))),
    "deflated escapes": lambda n: zlib.compress(b'"%b"' % (b"\\u00e9" * (n * 80))),
    "deflated digits": lambda n: zlib.compress(b"0." + b"7" * (n * 500)),
    "deflated lists": lambda n: zlib.compress(b"[" + b"[]," * (n * 100) + b"[]]"),
}
LEASES: Mapping[str, Family] = {
    "purpose": lambda n: json.dumps({"job": ("0Z-" * 333)[:1000]}).encode(),
    "names": lambda n: json.dumps({"key": "k" * n, "user": "u" * n}).encode(),
}


def _v1(families: Mapping[str, Family], technology: str) -> Route:
    return Route(technology, "/v1/jobs", families, {})


def _warden(make: Callable[[int], str]) -> Family:
    return lambda n: json.dumps({"sequence": make(n), "shots": 1}).encode()


def _as_job(make: Callable[[int], str]) -> Family:
    return lambda n: _job(sequence=make(n))


_IQM_PATH = "/api/v1/jobs/emulator/circuit"
ROUTES: Mapping[str, Route] = {
    "problem": _v1({**ANY, **PROBLEMS}, "annealer"),
    "lease": Route("annealer", "/v1/leases", {**ANY, **LEASES}, {}),
    "sapi": Route("annealer", "/sapi/v2/problems", {**ANY, **SAPI}, {}),
    "deflated": Route(
        "annealer", "/sapi/v2/problems", DEFLATED, {"Content-Encoding": "deflate"}
    ),
    "circuit": _v1(CIRCUITS, "superconducting"),
    "iqm": Route("superconducting", _IQM_PATH, {**ANY, **IQM}, {}),
    "sequence": _v1(
        {name: _as_job(make) for name, make in SEQUENCES.items()}, "neutral-atom"
    ),
    "warden": Route(
        "neutral-atom",
        "/jobs",
        {**ANY, **{name: _warden(make) for name, make in SEQUENCES.items()}},
        {},
    ),
    "photonic": _v1(PHOTONIC, "photonic"),
}


def _tokens(entries: str) -> bytes:
    return f"tokens:\n{entries}".encode()


_ENTRY = "- {user: u, sha256: " + "0" * 64 + "}\n"
# of the file of tokens, which only an admin writes
TOKENS: Mapping[str, Family] = {
    "entries": lambda n: _tokens(_ENTRY * (n // len(_ENTRY))),
    "wrong entries": lambda n: _tokens("- 0\n" * (n // 4)),
    "unknown keys": lambda n: b"".join(b"k%d: 0\n" % i for i in range(n // 10)),
    "brackets": lambda n: b"[" * min(n, 300),
    "references": lambda n: (
        b"a0: &a0 [0]\n"
        + b"".join(
            b"a%d: &a%d [*a%d, *a%d]\n" % (i, i, i - 1, i - 1)
            for i in range(1, max(2, min(n, 1000) // 20))
        )
    ),
}
