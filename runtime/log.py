"""The runtime's log: structured events on the standard logger ``turnhold``, silent until the application configures logging.

Event names are stable; the keys are ours (`turn`, `epoch`, `node`, `call`) and come as attributes of the log record.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import structlog

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

_logger = logging.getLogger("turnhold")
_logger.addHandler(logging.NullHandler())

log = cast(
    "BoundLogger",
    structlog.wrap_logger(
        _logger,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
    ),
)
