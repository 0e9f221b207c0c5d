"""A parent with three children on two processes, of which the parent's owner dies at a save, and what the other makes of it.

The parent is one whose tools are agents, or one with a plan of three tasks.

The saves of the parent, by the version they are on top of: 1 creates the three children · 2, 3 and 4 take their results in, one by
one, 4 with the next model request · 5 is the last.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from .cycles import results
from .processes import STEP, Gone, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from .processes import Crew, Worker

LAST = 5


class Tree:
    """The family of shop.py, and those who look after it: two executors, and an API-only node that all commands come from."""

    def __init__(self, crew: Crew, api: Worker, pair: list[Worker], point: str, agent: str) -> None:
        self.crew, self.api, self.pair = crew, api, pair
        owner = pair[0]
        owner("gate", point="model 1")
        self.root: str = owner("start", agent=agent, idempotency_key=f"{agent}, {point}")
        when, _, version = point.partition(" ")
        for worker in pair:
            worker(
                "arm",
                how="kill",
                op="save",
                when=when,
                turn=self.root,
                version=int(version),
                mark=str(crew.folder / f"{agent}, {point}"),
            )
        for worker in reversed(pair):
            worker("gate", point="tool")

    def child(self, which: str) -> dict[str, Any]:
        """Return the child of an agent, as it is seen."""
        (found,) = [child for child in self.api("children", turn=self.root) if child["agent"] == which]
        return found

    def returned(self, count: int) -> bool:
        """Tell whether that many children have given their result to the root."""
        kinds = [kind for _, kind in self.api("events", turn=self.root, follow=False)]
        return kinds.count("TASK_COMPLETED" if "TASK_STARTED" in kinds else "TOOL_COMPLETED") >= count

    def until(self, found: Callable[[], bool]) -> None:
        """Look, over and over; of calls in doubt a person says meanwhile that they have been done."""
        end = time.monotonic() + STEP
        while not found():
            for wait in self.waits("IN_DOUBT"):
                self.answer(wait, "give_result", value="paid by hand")
            assert time.monotonic() < end, self.api("view", turn=self.root)
            self.api.lull()

    def release(self) -> None:
        """Let the tools go on, wherever they run."""
        for worker in self.pair:
            with contextlib.suppress(Gone):
                worker("release")

    def waits(self, type: str) -> list[dict[str, Any]]:
        """Return the waits of a kind, as they are seen at the root."""
        return [wait for wait in self.api("view", turn=self.root)["waits"] if wait["type"] == type]

    def answer(self, wait: dict[str, Any], kind: str, **more: Any) -> None:
        """Answer at the root; the same again gets the same receipt, another answer is told of it."""
        command = {"turn": self.root, "kind": kind, "wait": wait["id"], "command_id": f"{kind} {wait['id']}", "by": "ann", **more}
        receipt = self.api("answer", **command)
        assert self.api("answer", **command) == {**receipt, "replayed": True}
        with pytest.raises(Refused) as refused:
            self.api("answer", **{**command, "command_id": f"bob {wait['id']}", "by": "bob"})
        assert refused.value.type == "AlreadyAnswered"
        assert refused.value.receipt is not None
        assert refused.value.receipt["command_id"] == command["command_id"]

    def grow(self) -> dict[str, Any]:
        """Take the tree to its end: each child's result is saved by itself, in the order plain, careful, gated."""
        self.until(lambda: self.returned(1) and bool(self.waits("TOOL_APPROVAL")))
        self.until(self._careful)
        self.release()
        self.until(lambda: self.returned(2))
        (wait,) = self.waits("TOOL_APPROVAL")
        self.answer(wait, "approve_tool")
        self.until(lambda: self.api("settle", turn=self.root)["status"] != "IN_DOUBT")
        return self.api("settle", turn=self.root)

    def _careful(self) -> bool:
        """Tell whether what runs once has been started, or may have been and was decided."""
        child = self.child("careful")
        return child["status"] == "COMPLETED" or bool(self.crew.starts(child["id"]))

    def struck(self) -> Worker:
        """Return the process that was killed: one of the two."""
        self.until(lambda: not all(worker.alive for worker in self.pair))  # it may have answered before it is gone
        (victim,) = [worker for worker in self.pair if not worker.alive]
        assert victim.ended() == -signal.SIGKILL
        return victim


def check_tree(crew: Crew, api: Worker, pair: list[Worker], point: str, agent: str) -> Worker:
    """Let the owner of a parent be killed at a save of it. Return the one that is left."""
    tree = Tree(crew, api, pair, point, agent)
    view = tree.grow()
    victim = tree.struck()
    (survivor,) = [worker for worker in pair if worker is not victim]

    assert (view["status"], view["final"], view["waits"]) == ("COMPLETED", f"{agent} done", [])
    assert (view["tokens"], view["tool_calls"]) == (70, 5 if agent == "family" else 2)
    children = api("children", turn=tree.root)
    assert sorted(child["agent"] for child in children) == ["careful", "gated", "plain"]
    assert {child["status"] for child in children} == {"COMPLETED"}
    texts = results(api, tree.root)
    if agent == "planner":
        (text,) = texts
        texts = [task["result"] for task in json.loads(text)["tasks"]]
    assert texts == ["plain done", "careful done", "gated done"]
    for child in children:
        least, most = {"plain": (0, 0), "careful": (0, 1), "gated": (1, 1)}[child["agent"]]
        assert least <= len(crew.attempts(child["id"])) <= most
        kinds = [kind for _, kind in api("events", turn=child["id"])]
        assert kinds.count("TURN_RESUMED") <= 1 + (child["agent"] == "gated")
    assert not [wait for wait in api("inbox") if wait.startswith(tree.root)]
    survivor.until(lambda found: found["live"] == 0, "statistics")
    return survivor
