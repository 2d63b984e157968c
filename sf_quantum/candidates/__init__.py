"""Quantum candidates: steps that go to a QPU when it pays, and else to a classical place.

``decision`` says where and why, from plain values; ``policy`` reads what the filter's
configuration says of a step, ``history`` what the journals say of earlier jobs; ``asking``
asks the QPUs; ``filter`` is what StreamFlow calls. Only ``filter`` and ``asking`` import
StreamFlow.
"""
