"""Commands that are steps of a workflow: files in, files out."""
