"""The variables of vendors' clients, which our clients read and our SDK servers set."""

from __future__ import annotations

#: D-Wave's client: URL and credential
DWAVE_ENDPOINT, DWAVE_TOKEN = "DWAVE_API_ENDPOINT", "DWAVE_API_TOKEN"
#: QRMI's type ``iqm-server``: URL and credential
IQM_ENDPOINT, IQM_TOKEN = "QRMI_IQM_ISA_ENDPOINT", "QRMI_IQM_ISA_TOKEN"
#: QRMI's type ``pasqal-local``: URL
WARDEN_URL = "QRMI_WARDEN_URL"
