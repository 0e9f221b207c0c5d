"""The runtime's log: structured events on the standard logger ``turnhold``, silent until the application configures logging.

Event names are stable; the keys are ours (`turn`, `epoch`, `node`, `call`) and come as attributes of the log record.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

_logger = logging.getLogger("turnhold")
_logger.addHandler(logging.NullHandler())


@cache
def _made() -> BoundLogger:
    """Make the logger; structlog is a tenth of what importing this package would cost."""
    import structlog

    wrapped = structlog.wrap_logger(
        _logger,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
    )
    return cast("BoundLogger", wrapped)


class _Log:
    """The logger, made with the first line that is logged."""

    def __getattr__(self, name: str) -> object:
        return getattr(_made(), name)


log = cast("BoundLogger", _Log())
