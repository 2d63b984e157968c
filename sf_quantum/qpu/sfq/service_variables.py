"""The variables with which a job's clients reach ``sfq serve``, and mark their QPU jobs.

Each variable begins with the QPU's name, such as ``NAME_SFQ_URL``. A site's file contains the
variables of the service without the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, socket_in
from sf_quantum.qpu.sfq.credentials import Credentials

URL, TOKEN_FILE, MUNGE = "SFQ_URL", "SFQ_TOKEN_FILE", "SFQ_MUNGE"
# seconds for which a client waits for a service that does not answer
PATIENCE = "SFQ_PATIENCE_SECONDS"
# a key that stays the same when the job is rerun, and the purpose of its QPU jobs
JOB_KEY, PURPOSE = "SFQ_JOB_KEY", "SFQ_PURPOSE"
#: the variables of the service, with their keys in a deployment's configuration
CONFIG_KEYS = {URL: "url", TOKEN_FILE: "tokenFile", MUNGE: "munge"}


def of_service(name: str, url: str, credentials: Credentials) -> dict[str, str]:
    """Make the variables with which the clients of a job reach the service of a QPU."""
    retry = credentials.retry_seconds
    values = {
        URL: url,
        TOKEN_FILE: credentials.token_file,
        MUNGE: "1" if credentials.munge is True else credentials.munge,
        PATIENCE: None if retry is None else f"{retry:g}",
    }
    return {f"{name}_{key}": str(value) for key, value in values.items() if value}


def credentials(name: str, environment: Mapping[str, str]) -> Credentials:
    """Read the variables that :func:`of_service` makes, except the URL.

    :raises InputError: if the patience is not a number
    """
    munge = environment.get(f"{name}_{MUNGE}", "")
    retry = environment.get(key := f"{name}_{PATIENCE}")
    try:
        retry_seconds = None if retry is None else float(retry)
    except ValueError as error:
        raise InputError(f"{key}: expected seconds") from error
    return Credentials(
        environment.get(f"{name}_{TOKEN_FILE}"),
        munge if munge.startswith("/") else munge == "1",
        retry_seconds,
    )


def marks(names: Iterable[str], key: str, purpose: str) -> dict[str, str]:
    """Make the variables with which the clients of a job mark its QPU jobs.

    :param names: names of the job's QPUs
    """
    values = {JOB_KEY: key, PURPOSE: purpose}
    return {f"{name}_{k}": value for k, value in values.items() for name in names}


def resolved(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Make the paths of a site's file absolute, since jobs run in other folders.

    :param variables: variables of one QPU, without the prefix of its name
    :param folder: the folder of the file
    """
    paths = {}
    if (url := variables.get(URL)) is not None:
        paths[URL] = socket_in(url, folder)
    if token := variables.get(TOKEN_FILE):
        paths[TOKEN_FILE] = str(folder.absolute() / Path(token).expanduser())
    return {**variables, **paths}


def config(variables: Mapping[str, str]) -> dict[str, JSON]:
    """Make the configuration of a QPU from its variables without the prefix of its name."""
    config: dict[str, JSON] = {
        key: variables[variable]
        for variable, key in CONFIG_KEYS.items()
        if variables.get(variable)
    }
    if config.get("munge") in ("0", "1"):
        config["munge"] = config["munge"] == "1"
    return config
