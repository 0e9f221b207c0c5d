"""The public test kit for programs built on turnhold.

Hypothesis and pytest are imported only where they are used.
"""

from __future__ import annotations

import typing

from ..models.scripted import ScriptedModel, call
from .clock import VirtualClock
from .conformance.check import StoreCheck
from .conformance.suite import StoreReport, check_store, checks
from .crashes import crash
from .tools import assert_once, tool_context

if typing.TYPE_CHECKING:
    from .races import TurnRaceMachine

__all__ = [
    "ScriptedModel",
    "StoreCheck",
    "StoreReport",
    "TurnRaceMachine",
    "VirtualClock",
    "assert_once",
    "call",
    "check_store",
    "checks",
    "crash",
    "tool_context",
]


def __getattr__(name: str) -> object:
    """Import what needs Hypothesis when it is asked for."""
    if name == "TurnRaceMachine":
        from .races import TurnRaceMachine

        return TurnRaceMachine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
