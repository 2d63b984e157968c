"""Contract tests for registered samplers, QPUs and devices, including a site's own plug-ins.

Each contract has one module: ``samplers``, ``qpus``, ``devices`` and ``candidates``.

Imports: checking, checking/cwl, protocol, qpu, samplers, service, service/device, service/domain.
"""

from __future__ import annotations

import pytest

# A failed assertion then shows values, even if a site's tests import these modules.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in ("candidates", "devices", "qpus", "samplers")
    )
)
