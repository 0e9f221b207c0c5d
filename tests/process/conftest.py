"""Processes for the tests; all are gone at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .processes import Crew

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes on one SQLite file. At the end no attempt of a call has been started twice."""
    crew = Crew(tmp_path)
    try:
        yield crew
    finally:
        crew.close()
    crew.check()
