"""Fixes of StreamFlow for the links between steps: which step writes to each port.

StreamFlow 0.2.0rc3 makes a port for each output of a workflow, and the step that is the
output's source writes to the port. :data:`REPLACEMENTS` replaces functions and methods of
StreamFlow, which has these errors:

- If two outputs have the same source, the step writes only to the last output, and the other
  output is null. An output that an inner workflow passes on from its input is also null, as is
  an output whose ``outputSource`` is a list of one.
- ``linkMerge`` of a single source is ignored; ``merge_nested`` of a list of one has no effect;
  ``merge_flattened`` flattens all levels, and sorts the results of a ``flat_crossproduct`` by
  their last index. A source that is listed twice is merged only once.
- If a tool is embedded in its step, the fields of its unnamed records have wrong names.
- All outputs of a ``nested_crossproduct`` except the last are followed by empty lists. Later
  steps run once more for these lists, which may also become the workflow's result.
- A step of an inner workflow runs only once, even if the workflow runs several times, if the
  step has no inputs, or has only defaults and inputs with ``valueFrom``. A scatter then gets
  an empty list, and a loop never ends.
- A run that has all its outputs ends, and fails, although a step on which no output depends
  has not ended yet.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections import Counter
from collections.abc import AsyncIterator, MutableMapping, MutableSequence
from copy import copy
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import cwl_utils.parser
from cwl_utils.types import CWLParameterContext
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.core.utils import get_tag
from streamflow.core.workflow import (
    Port,
    Status,
    Step,
    Token,
    Workflow,
)
from streamflow.cwl import main, translator
from streamflow.cwl import utils as values
from streamflow.cwl.combinator import ListMergeCombinator
from streamflow.cwl.transformer import ForwardTransformer
from streamflow.cwl.translator import CWLTranslator
from streamflow.cwl.utils import get_name
from streamflow.cwl.workflow import CWLWorkflow
from streamflow.workflow.combinator import DotProductCombinator
from streamflow.workflow.executor import StreamFlowExecutor
from streamflow.workflow.step import CombinatorStep
from streamflow.workflow.token import IterationTerminationToken, ListToken

# A run with all its outputs is considered stuck if no step ends and no job runs for this long.
STUCK_SECONDS = 10.0
# name of the input that is added to steps that would not run with the enclosing workflow
ENCLOSING = "sfq-enclosing"
# By class of a process: the class of its inputs in cwl-utils.
INPUTS = {
    "CommandLineTool": "CommandInputParameter",
    "ExpressionTool": "WorkflowInputParameter",
    "Workflow": "WorkflowInputParameter",
}
# statuses of jobs that have not ended
ACTIVE = {Status.FIREABLE, Status.RUNNING, Status.RECOVERY}


class WholeExecutor(StreamFlowExecutor):
    """Runs a workflow until all steps have ended, even steps on which no output depends."""

    _has_outputs = False

    async def close(self) -> None:
        """End the run; if it has all its outputs, first wait for the remaining steps."""
        ports, task = self.workflow.output_ports, asyncio.current_task()
        is_failure = task in self.executions or task in self.output_tasks.values()
        if (
            not is_failure
            and not self._has_outputs
            and len(self.received) == len(ports)
        ):
            self._has_outputs = True
            await self._finish()
        await super().close()

    async def _finish(self) -> None:
        """Wait for the pending steps while steps end or jobs are active."""
        pending = {execution for execution in self.executions if not execution.done()}
        while pending and not self._closed:
            ended, pending = await asyncio.wait(
                pending, timeout=STUCK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            jobs = self.workflow.context.scheduler.job_allocations.values()
            if not ended and not any(job.status in ACTIVE for job in jobs):
                return


def _translate_workflow(
    self: CWLTranslator,
    workflow: CWLWorkflow,
    cwl_element: cwl_utils.parser.Workflow,
    context: MutableMapping[str, Any],
    name_prefix: str,
    cwl_name_prefix: str,
) -> None:
    """Translate a workflow so that a step writes to the port of each output.

    :raises WorkflowDefinitionException: if a source is listed twice
    """

    def name(identifier: str) -> str:
        return get_name(name_prefix, cwl_name_prefix, identifier)

    for step in cwl_element.steps:
        for element in step.in_:
            element.source = _source(element, element.source)
        if name_prefix != posixpath.sep:  # the root runs once
            _follow_enclosing(step, cwl_element)
    inputs = {name(element.id) for element in cwl_element.inputs}
    outputs: dict[str, list[str]] = {}
    for element in cwl_element.outputs:
        element.outputSource = source = _source(element, element.outputSource)
        if isinstance(source, str) and not getattr(element, "pickValue", None):
            outputs.setdefault(name(source), []).append(name(element.id))
    passed_on = [
        (output, source, self.output_ports[output])
        for source in inputs & outputs.keys()
        for output in outputs[source]
        if output in self.output_ports
    ]
    for source in outputs.keys() - inputs:
        _share(self.output_ports, workflow, source, outputs[source])
    _translate(self, workflow, cwl_element, context, name_prefix, cwl_name_prefix)
    for output, source, port in passed_on:
        _forward(workflow, output, self.input_ports[source], port)


def _follow_enclosing(
    step: cwl_utils.parser.WorkflowStep, workflow: cwl_utils.parser.Workflow
) -> None:
    """Let a step of an inner workflow run each time that the workflow runs.

    In StreamFlow, the sources of inputs without ``valueFrom`` start the step. If there are
    none, the step gets a default, or the null of an optional input, only once.
    """
    sources = [input_ for input_ in step.in_ if input_.source]
    if any(input_.valueFrom is None for input_ in sources):
        return
    module = import_module(type(step).__module__)  # the classes for this version of CWL
    followed = [input_.source for input_ in sources] or [
        input_.id for input_ in workflow.inputs
    ]
    for source in followed[:1]:
        first = source[0] if isinstance(source, list) else source
        added = module.WorkflowStepInput(id=f"{step.id}/{ENCLOSING}", source=first)
        step.in_ = [*step.in_, added]


class Signal(ForwardTransformer):
    """Signals that the enclosing workflow runs, without passing on the value of its input.

    The results of a process without inputs do not depend on this value: jobs must not get
    copies of files, and a job's result is reused regardless of the value.
    """

    async def transform(
        self, inputs: MutableMapping[str, Token]
    ) -> MutableMapping[str, Token | MutableSequence[Token]]:
        (token,) = inputs.values()
        return {self.get_output_name(): Token(None, tag=token.tag, recoverable=True)}


def _share(
    ports: MutableMapping[str, Port],
    workflow: CWLWorkflow,
    source: str,
    outputs: list[str],
) -> None:
    """Pass the values of a source to all outputs that name the source.

    :param ports: ports of sources and outputs, by name
    """
    # In StreamFlow, the source writes to the port of the last output.
    *others, last = outputs
    shared = ports.setdefault(last, workflow.create_port())
    ports[source] = shared
    for output in others:
        port = ports.setdefault(output, shared)
        if port is not shared:
            _forward(workflow, output, shared, port)


def _forward(workflow: CWLWorkflow, output: str, source: Port, port: Port) -> None:
    step = workflow.create_step(
        cls=ForwardTransformer, name=f"{output}-source-forward-transformer"
    )
    # The two ports have the same name, since the end of an iteration is passed on by name.
    step.add_input_port(posixpath.basename(output), source)
    step.add_output_port(posixpath.basename(output), port)


def _source(link: Any, source: str | list[str] | None) -> str | list[str] | None:
    """Return the source of a link in the form that StreamFlow reads correctly.

    :param link: input of a step, or output of a workflow
    :raises WorkflowDefinitionException: if a source is listed twice
    """
    if not isinstance(source, list):
        return [source] if source is not None and link.linkMerge else source
    for name, times in Counter(source).items():
        if times > 1:
            raise WorkflowDefinitionException(
                f"{name.rpartition('#')[2]} is listed {times} times as a source, and "
                "StreamFlow takes it once; let a step repeat it"
            )
    is_merged = link.linkMerge or getattr(link, "pickValue", None)
    return source[0] if len(source) == 1 and not is_merged else source


def _recursive_translate(
    self: CWLTranslator,
    workflow: CWLWorkflow,
    cwl_element: Any,
    *args: Any,
    **options: Any,
) -> None:
    """Translate a process or a step, after naming its unnamed records.

    If a process without inputs has to run with the enclosing workflow, an input is added.
    """
    added = f"{options['name_prefix']}/{ENCLOSING}"
    if added in self.input_ports and getattr(cwl_element, "inputs", None) == []:
        module: Any = import_module(type(cwl_element).__module__)
        kinds = (
            INPUTS.get(cwl_element.class_, ""),
            "InputParameter",
        )  # the second name in v1.0
        kind = next(
            getattr(module, kind_name)
            for kind_name in kinds
            if hasattr(module, kind_name)
        )
        identifier = f"#{options['cwl_name_prefix']}/{ENCLOSING}"
        cwl_element = copy(cwl_element)  # other steps may run the same process
        cwl_element.inputs = [kind(id=identifier, type_=["null", "Any"])]
        signal = workflow.create_step(cls=Signal, name=f"{added}-signal")
        signal.add_input_port(ENCLOSING, self.input_ports[added])
        self.input_ports[added] = workflow.create_port()
        signal.add_output_port(ENCLOSING, self.input_ports[added])
    for section in ("inputs", "outputs"):
        for element in getattr(cwl_element, section, None) or ():
            _name_records(element.type_)
    _translate_element(self, workflow, cwl_element, *args, **options)


def _name_records(type_: Any) -> None:
    """Name each unnamed record with the prefix of its fields' names, as StreamFlow expects."""
    if isinstance(type_, list):
        for alternative in type_:
            _name_records(alternative)
    elif isinstance(type_, cwl_utils.parser.ArraySchema):
        _name_records(type_.items)
    elif isinstance(type_, cwl_utils.parser.RecordSchema):
        record: Any = type_  # some classes of v1.0 have no name
        for field in record.fields or ():
            if str(getattr(record, "name", "_:")).startswith("_:"):
                record.name = field.name.rpartition("/")[0]
            _name_records(field.type_)


def build_context(
    inputs: MutableMapping[str, Token], *args: Any, **options: Any
) -> CWLParameterContext:
    """Build the context that an expression reads, without the input :data:`ENCLOSING`."""
    given = {name: token for name, token in inputs.items() if name != ENCLOSING}
    return _build_context(given, *args, **options)


class NestedListCombinator(ListMergeCombinator):
    """Merges a single source with ``merge_nested`` into a list of one."""


def _create_list_merger(
    name: str,
    workflow: CWLWorkflow,
    ports: MutableMapping[str, Port],
    output_port: Port | None = None,
    link_merge: str | None = None,
    pick_value: str | None = None,
) -> Step:
    """Create the steps that merge the sources of a link, and pick from them."""
    last = _create_merger(name, workflow, ports, output_port, link_merge, pick_value)
    step = workflow.steps[f"{name}-combinator"]
    assert isinstance(step, CombinatorStep)
    combinator = step.combinator
    assert isinstance(combinator, ListMergeCombinator)
    if len(ports) == 1 and link_merge == "merge_nested":
        step.combinator = NestedListCombinator(
            combinator.name, workflow, combinator.input_names, combinator.output_name
        )
        for item in combinator.items:
            step.combinator.add_item(item)
    return last


async def combine(
    self: ListMergeCombinator, port_name: str, token: Token
) -> AsyncIterator[MutableMapping[str, Any]]:
    """Merge the sources of a link or, if flattened, the items of sources that are lists.

    A single source without ``merge_nested`` is also flattened, so that ``pickValue`` picks
    from its items.
    """
    if isinstance(token, IterationTerminationToken):
        return
    is_nested = isinstance(self, NestedListCombinator)
    is_flat = self.flatten or (len(self.input_names) == 1 and not is_nested)
    async for schema in DotProductCombinator.combine(self, port_name, token):
        sources: list[Any] = [schema[name] for name in self.input_names]
        tokens: list[Token] = [source["token"] for source in sources]
        merged = [
            item
            for source_token in tokens
            for item in (
                source_token.value
                if is_flat and isinstance(source_token, ListToken)
                else [source_token]
            )
        ]
        yield {
            self.output_name: {
                "token": ListToken(merged, tag=get_tag(tokens)),
                "input_ids": [
                    input_id for source in sources for input_id in source["input_ids"]
                ],
            }
        }


def _create_nested_size_tag(
    size_ports: MutableMapping[str, Port],
    replicas_port: MutableMapping[str, Port],
    step_name: str,
    workflow: Workflow,
) -> MutableSequence[Port]:
    """Return the ports with the sizes of a nested scatter; all outputs of the step share them.

    StreamFlow would create the steps that count the sizes again for each output. As they have
    the same names, only the steps of the last output would run.
    """
    made = _sizes_of_scatters.setdefault(workflow, {})
    key = (step_name, *size_ports, *replicas_port)
    if key not in made:
        made[key] = [*_create_sizes(size_ports, replicas_port, step_name, workflow)]
    return [*made[key]]


# By workflow: the ports with the sizes of each nested scatter.
_sizes_of_scatters = WeakKeyDictionary[
    Workflow, dict[tuple[str, ...], MutableSequence[Port]]
]()
# StreamFlow's own functions, which the replacements call
_build_context = values.build_context
_create_merger = translator._create_list_merger
_create_sizes = translator._create_nested_size_tag
_translate = CWLTranslator._translate_workflow
_translate_element = CWLTranslator._recursive_translate

#: class or module, name of its function or method, and the replacement
REPLACEMENTS: tuple[tuple[type | ModuleType, str, Any], ...] = (
    (values, "build_context", build_context),
    (ListMergeCombinator, "combine", combine),
    (translator, "_create_list_merger", _create_list_merger),
    (translator, "_create_nested_size_tag", _create_nested_size_tag),
    (CWLTranslator, "_recursive_translate", _recursive_translate),
    (CWLTranslator, "_translate_workflow", _translate_workflow),
    # Only in this module: retries keep StreamFlow's own executor.
    (main, StreamFlowExecutor.__name__, WholeExecutor),
)
