"""SAPI, the dialect of D-Wave's Ocean tools.

- ``routes``: the API. A body contains whole problems; uploads in parts are not supported
- ``dialect``: the dialect's class
- ``problems``: reads problems, and shows the queue's jobs as problems
- ``qp_format``: the format of problems and answers
- ``parameters``: checks solver parameters, and translates them into those of a job
- ``solver``: describes the annealer, and models its times
- ``refusals``: writes refusals
"""
