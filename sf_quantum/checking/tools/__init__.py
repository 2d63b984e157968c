"""Checks of tools that call ``sfq``: their options, and the files that they get.

``command_lines`` reads a tool's command line with the parser of the ``sfq`` command,
``sfq_tools`` checks the values that are passed to options, and ``input_files`` reads files
as the command would.

Imports: checking, checking/bindings, checking/cwl, clustering, samplers.
"""
