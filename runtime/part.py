"""A part of an actor: it knows its actor, which knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .actor import Actor  # noqa: TC004 - a cycle; nobody reads the hints at run time


class Part(msgspec.Struct, eq=False, gc=False):
    """Something that an actor is made of. The garbage collector looks at neither: each activation lets go of its parts itself."""

    _actor: Actor

    def let_go(self) -> None:
        """The activation is over: forget it, so that neither waits for the garbage collector. A second time is an error."""
        del self._actor
