"""The public test kit for programs built on turnhold."""

from __future__ import annotations

from ..models.scripted import ScriptedModel, call
from .clock import VirtualClock

__all__ = ["ScriptedModel", "VirtualClock", "call"]
