"""Contract tests for registered samplers, QPUs and devices, including a site's own.

Each contract is one module: ``samplers``, ``qpus``, ``devices`` and ``candidates``.

Imports: checking, checking/cwl, protocol, qpu, samplers, service, service/device, service/domain.
"""

from __future__ import annotations

import pytest

# With this, a failure shows the values, even if a site's tests import these modules.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in ("candidates", "devices", "qpus", "samplers")
    )
)
