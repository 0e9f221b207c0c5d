"""An approve cycle on a process that dies at a boundary of it, and what others make of what it leaves.

The store calls of a cycle, in order: create-and-claim · save the wait · deliver-and-claim · receipt and intent · result and next
model attempt · final. The points inside are those of shop.py.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from .processes import Gone

if TYPE_CHECKING:
    from .processes import Crew, Worker

# A start was saved and no result: whoever takes over cannot know whether the tool has run.
DOUBTFUL = ("after save 2", "tool", "effect", "before save 3")
RESOLVED: dict[str, dict[str, Any]] = {
    "after save 2": {"kind": "rerun"},
    "tool": {"kind": "give_result", "value": "paid by hand"},
    "effect": {"kind": "fail_call", "reason": "the bank knows nothing of it"},
    "before save 3": {"kind": "rerun"},
}


def victim_of(crew: Crew, point: str, **options: Any) -> Worker:
    """Start a process that will be killed at a point."""
    when, _, rest = point.partition(" ")
    if when not in {"before", "after"}:
        return crew.executor(die=point, **options)
    victim = crew.executor(**options)
    op, _, nth = rest.partition(" ")
    victim("arm", how="kill", op=op, when=when, nth=int(nth))
    return victim


def cycle(worker: Worker, agent: str, key: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Start a turn, approve its call and let it settle; the same again finds what has been done."""
    turn = worker("start", agent=agent, idempotency_key=key)
    worker("settle", turn=turn)
    receipt = worker("answer", turn=turn, kind="approve_tool", wait="call_1_0", command_id=f"approve {key}", by="ann")
    return turn, receipt, worker("settle", turn=turn)


def killed(victim: Worker) -> None:
    assert victim.ended() == -signal.SIGKILL


def resolve(worker: Worker, turn: str, view: dict[str, Any], **command: Any) -> dict[str, Any]:
    """Answer the one wait in doubt."""
    (wait,) = view["waits"]
    assert (view["status"], wait["type"]) == ("IN_DOUBT", "IN_DOUBT")
    assert worker("answer", turn=turn, wait=wait["id"], by="bob", **command)["by"] == "bob"
    return worker("settle", turn=turn)


def results(worker: Worker, turn: str) -> list[str]:
    return [text for kind, text in worker("history", turn=turn) if kind == "ToolMessage"]


def check_killed(crowd: Crew, survivor: Worker, agent: str, point: str, **options: Any) -> None:
    """Let a process be killed at a point of a cycle: the cycle, repeated elsewhere, finds its turn and ends it."""
    key = f"{agent}, {point}"
    victim = victim_of(crowd, point, **options)

    with pytest.raises(Gone):
        cycle(victim, agent, key)
    killed(victim)
    turn, receipt, view = cycle(survivor, agent, key)

    assert (receipt["effect"], receipt["by"], receipt["command_id"]) == ("APPROVED", "ann", f"approve {key}")
    attempts = crowd.attempts(turn)
    if agent == "once":
        assert len(attempts) == (0 if point == "after save 2" else 1)
        if point in DOUBTFUL:
            view = resolve(survivor, turn, view, **RESOLVED[point])
            assert crowd.attempts(turn) == [*attempts, 2] if RESOLVED[point]["kind"] == "rerun" else attempts
    else:
        assert attempts
    assert (view["status"], view["final"], view["waits"]) == ("COMPLETED", "done", [])
    assert len(results(survivor, turn)) == 1
    happened = survivor("events", turn=turn)
    assert [number for number, _ in happened] == list(range(1, len(happened) + 1))
    assert [kind for _, kind in happened].count("TURN_RESUMED") == (2 if agent == "once" and point in DOUBTFUL else 1)
