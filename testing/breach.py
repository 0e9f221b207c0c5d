"""How a race says that a promise was broken."""

from __future__ import annotations


class Breach(AssertionError):
    """Something happened that must never happen."""
