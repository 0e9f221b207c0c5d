"""Processes die and freeze at random store calls while turns are started and answered: nothing is lost, nothing happens twice."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from .processes import Gone, Request, Worker

if TYPE_CHECKING:
    from .processes import Crew

pytestmark = pytest.mark.process
AGENTS = ("once", "repeatable", "free-once", "free-repeatable", "both", "thread")
ANSWERS = {"TOOL_APPROVAL": ("approve_tool", "reject_tool"), "IN_DOUBT": ("rerun", "fail_call")}
ROUNDS = 8
LONG = [pytest.mark.deep, pytest.mark.timeout(240)]


def thawed(worker: Worker, request: Request) -> Any:
    """Return the answer of a process that may be, or may become, frozen; `None` where it was killed."""
    for _ in range(20):
        try:
            worker.signal(signal.SIGCONT)
            return request.get(1)
        except TimeoutError:
            continue
        except Gone:
            return None
    raise AssertionError(f"{worker.name} does not answer")


class Storm:
    """Turns, the answers given to them, and the processes that work on them."""

    def __init__(self, crew: Crew, seed: int) -> None:
        self.crew = crew
        self.random = random.Random(seed)
        self.api = crew.api("api", lease=1)
        self.steady = crew.executor("steady", lease=1)
        self.receipts: dict[str, dict[str, Any]] = {}
        self.commands: dict[str, dict[str, Any]] = {}
        self.count = 0

    def round(self) -> list[str]:
        """Let a process come into trouble while it starts turns and people answer; return the turns, which have ended."""
        shaky = self.crew.executor(lease=1)
        how = self.random.choice(["kill", "stop"])
        shaky("arm", how=how, op="*", when=self.random.choice(["before", "after"]), nth=self.random.randint(1, 80))
        keys = [(agent, f"{self.count} {agent}") for agent in AGENTS for _ in range(2)]
        self.count += 1
        asked = [shaky.ask("start", agent=agent, idempotency_key=key) for agent, key in keys]
        if how == "stop" and self.random.random() < 0.5:
            shaky.ask("freeze")
        # who asks again elsewhere finds what has been started, or starts it
        turns = [self.steady("start", agent=agent, idempotency_key=key) for agent, key in keys]
        while open_turns := [turn for turn in turns if not self.over(turn)]:
            for turn in open_turns:
                self.answer(turn)
        for request, turn in zip(asked, turns, strict=True):
            assert thawed(shaky, request) in {turn, None}
        if self.random.random() < 0.5:
            shaky.kill()
        return turns

    def over(self, turn: str) -> bool:
        return self.api("settle", turn=turn)["status"] not in {"WAITING_FOR_APPROVAL", "IN_DOUBT"}

    def answer(self, turn: str) -> None:
        """Answer what is open, sometimes twice, sometimes from two sides."""
        for wait in self.api("view", turn=turn)["waits"]:
            kind = self.random.choice(ANSWERS[wait["type"]])
            command = {"turn": turn, "wait": wait["id"], "kind": kind, "by": "ann", "command_id": f"ann {wait['id']}"}
            rival = {**command, "by": "bob", "command_id": f"bob {wait['id']}"}
            asked = [(worker, self.random.choice([command, rival])) for worker in (self.api, self.steady)]
            for (_, sent), request in [(one, one[0].ask("answer_all", items=[one[1]])) for one in asked]:
                (found,) = request.get()
                if found.get("type") == "AlreadyAnswered":
                    found = found["receipt"]
                else:
                    assert found["command_id"] == sent["command_id"], found
                found.pop("replayed")
                assert self.receipts.setdefault(wait["id"], found) == found
                self.commands[found["command_id"]] = command if found["by"] == "ann" else rival

    def check(self, turn: str) -> None:
        """The events have no gap, and no attempt at what runs once was made without a person."""
        happened = [number for number, _ in self.api("events", turn=turn)]
        assert happened == list(range(1, len(happened) + 1))
        mine = [receipt for wait, receipt in self.receipts.items() if wait.startswith(turn)]
        reruns = sum(receipt["effect"] == "RERUN" for receipt in mine)
        for key in {key for key, *_ in self.crew.starts(turn)}:
            if self.agents[turn] in {"once", "free-once", "thread"} or key.endswith("_1"):
                assert len([found for found, *_ in self.crew.starts(turn) if found == key]) <= 1 + reruns
        if any(receipt["effect"] == "REJECTED" for receipt in mine) and self.agents[turn] in {"once", "repeatable"}:
            assert self.crew.starts(turn) == []

    agents: dict[str, str]


@pytest.mark.parametrize(
    ("place", "seed", "rounds"),
    [
        pytest.param("redis_crew", 0, 2, marks=pytest.mark.redis),
        *(pytest.param("crew", seed, ROUNDS, marks=LONG) for seed in range(6)),
        *(pytest.param("redis_crew", seed, ROUNDS, marks=[*LONG, pytest.mark.redis]) for seed in range(6)),
    ],
)
def test_storm(request: pytest.FixtureRequest, place: str, seed: int, rounds: int) -> None:
    """Every turn ends, every answer has one receipt for ever, every attempt is made once."""
    storm = Storm(request.getfixturevalue(place), seed)
    storm.agents = {}
    for _ in range(rounds):
        for turn, agent in zip(storm.round(), [agent for agent in AGENTS for _ in range(2)], strict=True):
            storm.agents[turn] = agent
    for turn in storm.agents:
        storm.check(turn)
    for name, command in storm.commands.items():
        again = storm.steady("answer", **command)
        assert again.pop("replayed")
        assert (again, again["command_id"]) == (storm.receipts[command["wait"]], name)
