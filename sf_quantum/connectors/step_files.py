"""The files of a workflow's steps, each read once when StreamFlow checks the workflow's links.

cwl-utils 0.42 compares the types of all inputs and outputs of a step with those of its
process, and reads the process from its file again for each of them. That takes most of the
time from the start of StreamFlow to the first job. :func:`install` replaces the function that
reads.
"""

from __future__ import annotations

from cwl_utils.parser import Process, WorkflowStep, utils

_read = utils.load_step
_KEY = "_sfq_read"


def install() -> None:
    """Replace the function of cwl-utils in this process."""
    setattr(utils, load_step.__name__, load_step)


def load_step(step: WorkflowStep) -> Process:
    """Return the process of a step, the same object for each of its links."""
    read: tuple[object, Process] | None = vars(step).get(_KEY)
    if read is None or read[0] is not step.run:
        read = vars(step)[_KEY] = (step.run, _read(step))
    return read[1]
