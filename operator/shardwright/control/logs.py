"""Logs: one JSON line an entry, ours and those of libraries alike, with the pass's context.

Inside a pass `key`, `generation` and `reconcile_id` stand on every line (contextvars). Loggers are
asked for with `structlog.get_logger`; libraries go on using the standard library's.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

# kopf says at INFO and below what its own machinery does; only what is wrong concerns people
_QUIET: Final = {
    "kopf": logging.WARNING,
    "kopf.objects": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.WARNING,
}


def configure(level: str = "INFO", form: str = "json", stream: TextIO | None = None) -> None:
    """Send all logs of the process to one stream.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
        form: `json`, or `console` for people.
        stream: Where to; None is stderr.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_objects,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    final: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        final += [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(sort_keys=True, default=str),
        ]
    else:
        final.append(structlog.dev.ConsoleRenderer(colors=False))
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=final)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, floor in _QUIET.items():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(floor, logging.getLevelName(level)))


def _without_objects(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Drop what kopf hangs onto its records: whole objects, where a name is enough."""
    for name in ("k8s_ref", "k8s_skip", "settings"):
        event.pop(name, None)
    return event
