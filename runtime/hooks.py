"""The shapes of what a user hands to a Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..actors.events import Event

Listener: TypeAlias = Callable[[Event], object]
