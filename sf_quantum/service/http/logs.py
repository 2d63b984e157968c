"""Formats of the service's log: text or JSON.

A record is about one event. The data of the event is not in the message, but in
``extra={"fields": {...}}``.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

from sf_quantum.files import JSON
from sf_quantum.text import escaped

# maximum length of a message, of which a part may come from others, such as a QPU's vendor
MAX_CHARACTERS = 4000
# values that need no quotes in a line of text
_WORD = re.compile(r"[\w.@:/{}+-]+", re.ASCII)


class JsonFormatter(logging.Formatter):
    """Writes each record as a line of JSON, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, JSON] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_CHARACTERS],
        }
        content |= _fields(record)
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)


class TextFormatter(logging.Formatter):
    """Writes each record as a line of text: time, level, logger, message, ``key=value``.

    Text from users cannot begin a line, and its control characters are escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: "
        line += escaped(record.getMessage()[:MAX_CHARACTERS])
        for name, value in _fields(record).items():
            line += f" {name}={_value(value)}"
        if record.exc_info:
            for part in self.formatException(record.exc_info).splitlines():
                line += f"\n    {escaped(part)}"
        return line


def configure(level: str, format_: str) -> None:
    """Log to standard error.

    :param format_: ``text`` or ``json``
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if format_ == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # omit uvicorn's warnings about single connections: any client could fill the log
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: record.levelno != logging.WARNING
    )


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, JSON]:
    fields: dict[str, JSON] = getattr(record, "fields", {})
    return fields


def _value(value: JSON) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value)
