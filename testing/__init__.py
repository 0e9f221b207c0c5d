"""The public test kit for programs built on turnhold.

Hypothesis and pytest are imported only where they are used.
"""

from __future__ import annotations

from ..models.scripted import ScriptedModel, call
from .clock import VirtualClock
from .crashes import crash
from .tools import assert_once, tool_context

__all__ = ["ScriptedModel", "VirtualClock", "assert_once", "call", "crash", "tool_context"]
