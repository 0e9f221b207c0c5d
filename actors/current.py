"""What is current where code of the user runs."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Generic, TypeVar, final

V = TypeVar("V")


@final
class Entered(Generic[V]):
    """Gives a context variable a value while a block runs."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[V], value: V) -> None:
        self._variable = variable
        self._value = value
        self._token: Token[V] | None = None

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            self._variable.reset(self._token)
