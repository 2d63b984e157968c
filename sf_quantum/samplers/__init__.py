"""The samplers, which solve QUBOs, and the files of problems and samples.

Each installed sampler has one module and entry point: ``neal``, ``exact``, ``qaoa``,
``neutral_atom``. ``problem`` reads, checks and writes problems and samples as JSON.
``presolve`` reduces a problem by the rules of ``reduction``, so that a sampler gets only the
rest. ``parameters`` checks the parameters of samplers, ``defaults`` defines their defaults and
limits, and ``energies`` and ``states`` compute with samples.

In addition to dimod's interface, a sampler may offer a class method ``problem()`` (see
:func:`obstacle`) and a method ``check_parameters(**parameters)`` that raises the errors that
``sample`` would raise for wrong values. :class:`~.presolve.Presolve` calls this method, since
a problem that the presolve solves completely never reaches ``sample``.

Imports: nothing above the foundation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.registry import Registry

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

_registry: Registry[type[Sampler]] = Registry("sf_quantum.samplers", "sampler")


def names() -> list[str]:
    """List the names of all installed samplers, sorted, without importing them."""
    return _registry.names()


def load(name: str) -> type[Sampler]:
    """Load a sampler's class, a ``dimod.Sampler`` that is constructed without arguments.

    :param name: name of the sampler's entry point in the group ``sf_quantum.samplers``
    :raises InputError: if there is no such sampler, or its package cannot be imported
    """
    return _registry.load(name)


def obstacle(name: str) -> str | None:
    """Explain in a few words why a sampler cannot be used here; ``None`` if it can.

    The explanation comes from the sampler's class method ``problem()``, which should not
    import large packages. A sampler without this method is usable if it can be loaded.

    :raises InputError: if there is no such sampler
    """
    try:
        sampler = load(name)
    except InputError as error:
        if name not in names():
            raise
        return str(error)
    problem = getattr(sampler, "problem", None)
    obstacle = problem() if callable(problem) else None
    return None if obstacle is None else str(obstacle)
