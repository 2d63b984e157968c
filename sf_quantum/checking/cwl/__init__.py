"""CWL files and the file of inputs, read as StreamFlow reads them.

``processes`` finds the steps, ports and tools of a workflow, ``parser`` reads them by the
engine's own parser, ``javascript`` by its JavaScript engine. ``steps`` checks what steps run,
``links`` and ``sources`` what their inputs get, ``types`` and ``expressions`` what may be
written. ``inputs`` checks the file of inputs, ``values`` tells what each port gets of it.

Imports: checking.
"""
