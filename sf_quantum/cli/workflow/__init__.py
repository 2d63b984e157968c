"""Commands for a workflow's author: check, init, plan, report, run."""
