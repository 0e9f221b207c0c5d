"""A race that is played again, step by step, as Hypothesis prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnhold.testing import TurnRaceMachine
    from turnhold.testing.witness import Witness

END = "the end"


def play(machine: type[TurnRaceMachine], steps: Sequence[str]) -> Witness:
    """Make the steps, the first of which is `open`; `END` heals everything, and judges. Return what was seen."""
    playing: Any = machine()
    try:
        for step in steps:
            if step == END:
                playing.field.loop.run_until_complete(playing.field.finish())
            else:
                eval(f"playing.{step}", {"playing": playing})
        return playing.field.witness
    finally:
        playing.field.close()
