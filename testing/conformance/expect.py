"""How a check says that a store is wrong."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Violation(AssertionError):
    """The store did what no store may do."""


def equal(found: object, expected: object) -> None:
    """Fail unless both are the same. :raises Violation: if they are not."""
    if found != expected:
        raise Violation(f"expected {expected!r}, found {found!r}")


def hold(truth: object, what: str) -> None:
    """Fail unless something is true. :raises Violation: if it is not."""
    if not truth:
        raise Violation(what)


def is_a(found: Any, kind: type[T]) -> T:
    """Return a reply that must be of a kind. :raises Violation: if it is of another."""
    if not isinstance(found, kind):
        raise Violation(f"expected {kind.__name__}, found {found!r}")
    return found


def expect(truth: bool, *what: object) -> None:  # noqa: FBT001 - reads as a sentence
    """Fail unless something is true; what follows is said in words. :raises Violation: if it is not."""
    if not truth:
        raise Violation(" ".join(map(str, what)))
