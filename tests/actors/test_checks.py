"""What JSON-like data must be, and what it costs to see that."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold.actors import checks
from turnhold.actors.errors import InvalidDefinition


def test_no_place_is_written_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is not ASCII is nothing wrong: a place 60 levels down took longer to write than 50 such texts to check."""
    found: Any = ["ä", {"ö": "ü"}]
    for _ in range(20):
        found = {"é": [found]}

    def path(place: checks.Place) -> str:
        raise AssertionError(place)

    monkeypatch.setattr(checks, "_path", path)

    assert checks.check_json("it", found, levels=50)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": ["\ud800"]}, r"it\.a\[0\] is not valid Unicode: surrogates not allowed"),
        ({"a": {"\ud800": 1}}, r"it\.a: a key is not valid Unicode: surrogates not allowed"),
    ],
)
def test_text_that_has_no_bytes_is_named(value: object, message: str) -> None:
    """With its place, as text or as a key."""
    with pytest.raises(InvalidDefinition, match=f"^{message}$"):
        checks.check_json("it", value)
