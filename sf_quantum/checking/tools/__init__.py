"""The tools of a workflow that call ``sfq``: their options, and the files that they get.

``command_lines`` reads a tool's command line with the command's parser, ``sfq_tools`` checks
the values that reach the options, ``input_files`` reads the files as the command would.

Imports: checking, checking/bindings, checking/cwl, clustering, samplers.
"""
