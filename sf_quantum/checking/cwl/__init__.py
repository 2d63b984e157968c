"""Checks of CWL files and of the file of inputs, which are read as StreamFlow reads them.

``processes`` finds the steps, ports and tools of a workflow, ``parser`` reads the workflow's
files with StreamFlow's own parser, and ``javascript`` compiles its scripts with Node.js.
``steps`` checks scatter, loops and conditions, ``links`` the links to inputs and outputs,
``sources`` the sources of links, ``types`` the types, and ``expressions`` the expressions.
``inputs`` checks the file of inputs, and ``values`` finds the values of ports.

Imports: checking.
"""
