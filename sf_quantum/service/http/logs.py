"""What the service logs, as text or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from sf_quantum.files import JSON

TEXT = "%(levelname)s %(name)s: %(message)s"
# what a request's line has beside its text
FIELDS = ("request", "user", "method", "route", "status", "seconds")


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, JSON] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= {key: vars(record)[key] for key in FIELDS if key in vars(record)}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)


def configure(level: str, format_: str) -> None:
    """Log to standard error.

    :param format_: text or json
    """
    handler = logging.StreamHandler()
    formatter = JsonFormatter() if format_ == "json" else logging.Formatter(TEXT)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
