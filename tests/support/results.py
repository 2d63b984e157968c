"""Jobs with honest results, and lies about them, generated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.tasks import Kind
from sf_quantum.samplers.problem import document

Content: TypeAlias = dict[str, JSON]
LABELS: SearchStrategy[JSON] = st.one_of(
    st.integers(-(10**6), 10**6),
    st.text("abc_é ", min_size=1, max_size=4),
    st.tuples(st.sampled_from("xy"), st.integers(0, 99)).map(list),
)
# of any scale; small ones are what a sum of large ones loses
BIASES = st.one_of(
    st.floats(-1e3, 1e3),
    st.floats(-1e15, 1e15),
    st.integers(-9, 9).map(float),
)


@dataclass(frozen=True)
class Honest:
    """A job and a result that is one of it.

    :param number: of circuits or BQMs, if there are several
    """

    kind: Kind
    payload: JSON
    shots: int
    result: Content
    number: int = 0

    def verified_with(self, result: Content) -> tuple[Kind, str, str, int]:
        """Make the arguments of the check of a result."""
        return self.kind, json.dumps(self.payload), json.dumps(result), self.shots


@st.composite
def problems(draw: DrawFn) -> Content:
    """Draw a serialized BQM."""
    labels = draw(st.lists(LABELS, min_size=1, max_size=6, unique_by=json.dumps))
    size = len(labels)
    pairs = [(one, other) for one in range(size) for other in range(one + 1, size)]
    used = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    linear = draw(st.lists(BIASES, min_size=size, max_size=size))
    quadratic = draw(st.lists(BIASES, min_size=len(used), max_size=len(used)))
    vartype = draw(st.sampled_from(["BINARY", "SPIN"]))
    return document(labels, linear, used, quadratic, vartype, draw(BIASES))


@st.composite
def samples(draw: DrawFn, bqm: Content, shots: int) -> Content:
    """Draw a sample set of a problem, as vendors legitimately write it."""
    model = BinaryQuadraticModel.from_serializable(bqm)
    low = 0 if model.vartype.name == "BINARY" else -1
    row = st.lists(st.sampled_from([low, 1]), min_size=len(model), max_size=len(model))
    rows = draw(st.lists(row, min_size=1, max_size=shots))
    # aggregated: the last one was read as often as there are reads left
    occurrences = [1] * (len(rows) - 1) + [shots - len(rows) + 1]
    order = draw(st.permutations([*model.variables]))
    energies = model.energies((np.array(rows, dtype=np.int8), order))
    further = (
        {"chain_break_fraction": [0.25] * len(rows)} if draw(st.booleans()) else {}
    )
    made = SampleSet.from_samples(  # type: ignore[no-untyped-call]
        (np.array(rows, dtype=np.int8), order),
        model.vartype,
        energy=energies,
        num_occurrences=occurrences,
        sort_labels=False,
        **further,
    )
    packed = draw(st.booleans())
    content: Content = made.to_serializable(pack_samples=packed)
    del content["info"]
    text: Content = json.loads(json.dumps(content))
    return text


def counts(words: SearchStrategy[str], shots: int) -> SearchStrategy[Content]:
    """Draw counts of words, of so many shots."""
    read = st.lists(words, min_size=shots, max_size=shots)
    return read.map(lambda each: {word: each.count(word) for word in each})


def bits(number: int) -> SearchStrategy[str]:
    """Draw bit strings."""
    return st.text("01", min_size=number, max_size=number)


def circuit(number: int, *, old: bool = False) -> str:
    """Write a circuit with some classical bits."""
    if old:
        return f"OPENQASM 2.0;\n// bit[9] x;\nqreg q[9];\ncreg c[{number}];\n"
    rest = f"bit[{number - 1}] rest;" if number > 1 else ""
    return f"OPENQASM 3.0;\nqubit[9] q; /* bit[9] x; */ bit c;\n{rest}\nh q[0];\n"


@st.composite
def honest(draw: DrawFn) -> Honest:
    """Draw a job of any kind, and a result of it."""
    shots = draw(st.integers(1, 12))
    kind = draw(st.sampled_from([_problem, _problems, _circuit, _batch, _rest]))
    return draw(kind(shots))


@st.composite
def _problem(draw: DrawFn, shots: int) -> Honest:
    bqm = draw(problems())
    return Honest("problem", {**bqm}, shots, draw(samples(bqm, shots)))


@st.composite
def _problems(draw: DrawFn, shots: int) -> Honest:
    bqms = draw(st.lists(problems(), min_size=1, max_size=3))
    sets: list[JSON] = [{**draw(samples(bqm, shots)), "info": {}} for bqm in bqms]
    content: list[JSON] = [{**bqm} for bqm in bqms]
    return Honest("problem", content, shots, {"sample_sets": sets}, len(bqms))


@st.composite
def _circuit(draw: DrawFn, shots: int) -> Honest:
    number, old = draw(st.integers(1, 5)), draw(st.booleans())
    counter = draw(counts(bits(number), shots))
    return Honest("circuit", circuit(number, old=old), shots, {"counter": counter})


@st.composite
def _batch(draw: DrawFn, shots: int) -> Honest:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    payload: JSON = [circuit(size) for size in sizes]
    if draw(st.booleans()):
        sizes = [sizes[0]] * len(sizes)
        values: list[JSON] = [{"x": 0.5} for _ in sizes]
        payload = {"program": circuit(sizes[0]), "values": values}
    counters: list[JSON] = [draw(counts(bits(size), shots)) for size in sizes]
    return Honest("circuit", payload, shots, {"counters": counters}, len(sizes))


@st.composite
def _rest(draw: DrawFn, shots: int) -> Honest:
    if draw(st.booleans()):
        atoms = draw(st.integers(1, 5))
        register: JSON = [{"name": f"q{n}", "x": n, "y": 0} for n in range(atoms)]
        payload = json.dumps({"register": register})
        counter = draw(counts(bits(atoms), shots))
        return Honest("sequence", payload, shots, {"counter": counter})
    states = st.sampled_from(["|1,0,1>", "|0,1,1>", "|1,1,0>"])
    experiment: JSON = {"circuit": "c", "input_state": "|1,1,0>"}
    return Honest(
        "photonic", experiment, shots, {"counter": draw(counts(states, shots))}
    )


# lies, each of which makes another result of one


def _of_each(told: Content, lie: Callable[[Content], Content]) -> Content:
    """Lie about the last of several."""
    for key in ("sample_sets", "counters"):
        if isinstance(each := told.get(key), list):
            return {**told, key: [*each[:-1], lie(mapping(each[-1]))]}
    if "counter" in told:
        return {**told, "counter": lie(mapping(told["counter"]))}
    return lie(told)


def _vector(told: Content, name: str, change: Callable[[list[JSON]], JSON]) -> Content:
    vectors = mapping(told["vectors"])
    array = mapping(vectors[name])
    data = change([*array["data"]])  # type: ignore[misc]
    return {**told, "vectors": {**vectors, name: {**array, "data": data}}}


def more_reads(told: Content) -> Content:
    """Add reads."""
    if "vectors" in told:
        return _vector(told, "num_occurrences", lambda n: [1000, *n[1:]])
    return {**told, next(iter(told)): 1000}


def fewer_reads(told: Content) -> Content:
    """Leave one read out, or all."""
    if "vectors" in told:
        return _vector(told, "num_occurrences", lambda n: [0, *n[1:]])
    return {**told, next(iter(told)): 0}


def other_variables(told: Content) -> Content:
    """Answer for as many other variables."""
    if "vectors" in told:
        labels = told["variable_labels"]
        assert isinstance(labels, list)
        return {**told, "variable_labels": [*labels[1:], "somebody else's"]}
    return {_longer(word): reads for word, reads in told.items()}


def more_variables(told: Content) -> Content:
    """Answer for one variable more."""
    if "vectors" not in told:
        return {_longer(word): reads for word, reads in told.items()}
    whole = SampleSet.from_serializable({**told, "info": {}})  # type: ignore[no-untyped-call]
    values = np.hstack([whole.record.sample, np.ones((len(whole), 1), dtype=np.int8)])
    made = SampleSet.from_samples(  # type: ignore[no-untyped-call]
        (values, [*whole.variables, "one more"]),
        whole.vartype,
        energy=whole.record.energy,
        num_occurrences=whole.record.num_occurrences,
    ).to_serializable()
    content: Content = json.loads(json.dumps(made))
    return content


def _longer(word: str) -> str:
    return f"{word[:-1]},0>" if word.startswith("|") else f"{word}0"


def not_finite(number: float) -> Callable[[Content], Content]:
    """Make a lie with a number that is not finite."""

    def lie(told: Content) -> Content:
        if "vectors" in told:
            return _vector(told, "energy", lambda each: [number, *each[1:]])
        return {**told, next(iter(told)): number}

    return lie


def other_numbers(told: Content) -> Content:
    """Count in halves, or have values beside those of the variables."""
    if "vectors" in told:
        return {**told, "variable_type": "INTEGER"}
    return {**told, next(iter(told)): 0.5}


def other_vartype(told: Content) -> Content:
    """Answer for spins instead of bits, or the other way round."""
    if "vectors" not in told:
        return {f"2{word[1:]}": reads for word, reads in told.items()}
    other = {"SPIN": "BINARY", "BINARY": "SPIN"}[str(told["variable_type"])]
    return {**told, "variable_type": other}


def huge_shape(told: Content) -> Content:
    """Tell of more samples than anybody has memory for."""
    if "vectors" not in told:
        return {**told, next(iter(told)): 10**30}
    data = mapping(told["sample_data"])
    return {**told, "sample_data": {**data, "shape": [10**12, 0], "data": []}}


def huge_type(told: Content) -> Content:
    """Have numbers be texts of a gigabyte each."""
    if "vectors" not in told:
        return {**told, next(iter(told)): "1" * 50}
    data = mapping(told["sample_data"])
    return {**told, "sample_data": {**data, "data_type": "U999999999"}}


def of_another_kind(told: Content) -> Content:
    """Answer as for a job of another kind."""
    if "vectors" in told:
        return {"counter": {"01": 1}}
    return {"type": "SampleSet"}


def one_less(told: Content) -> Content:
    """Leave out one of several, or all of one."""
    for key in ("sample_sets", "counters"):
        if isinstance(each := told.get(key), list):
            return {**told, key: each[:-1]}
    return {}


def one_more(told: Content) -> Content:
    """Answer for one more than there are, or for several."""
    for key in ("sample_sets", "counters"):
        if isinstance(each := told.get(key), list):
            return {**told, key: [*each, each[0]]}
    return {"sample_sets": [told]}


#: about the whole of a result
WHOLE: tuple[Callable[[Content], Content], ...] = (
    *(of_another_kind, one_less, one_more),
)
#: about a sample set, or about the counts of a circuit
OF_EACH: tuple[Callable[[Content], Content], ...] = (
    *(more_reads, fewer_reads, other_variables, more_variables, other_numbers),
    *(not_finite(math.nan), not_finite(math.inf), not_finite(-math.inf)),
    *(other_vartype, huge_shape, huge_type, of_another_kind),
)


@st.composite
def lies(draw: DrawFn) -> tuple[Honest, Content]:
    """Draw a job, and a result that is not one of it."""
    job = draw(honest())
    if draw(st.booleans()):
        return job, draw(st.sampled_from(WHOLE))(job.result)
    # of photons, fewer may meet the conditions
    each = [lie for lie in OF_EACH if job.kind != "photonic" or lie is not fewer_reads]
    lie = draw(st.sampled_from(each))
    return job, _of_each(job.result, lie)
