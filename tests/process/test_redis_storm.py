"""Three processes on one Redis, standalone or a Cluster: turns are started, answered and cancelled from random ones of them."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import checked, namespaced
from .places import RedisPlace
from .processes import Crew

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.redis]
AGENTS = ("once", "once", "repeatable", "both", "free-once", "free-repeatable")
ROUND = 50
BOUND = 60.0


class Wait:
    """A wait, the commands sent to it, and what came back: (command, answer)."""

    def __init__(self, turn: str, id: str) -> None:
        self.turn, self.id = turn, id
        self.told: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.receipt: dict[str, Any] = {}

    def check(self, *, cancelled: bool) -> None:
        """All were told one and the same receipt; whose it is was told so once."""
        for command, answer in self.told:
            if cancelled and answer.get("type") == "TurnClosed":
                continue  # it lay unread in the mailbox when the turn ended
            told = answer if "effect" in answer else answer["receipt"]
            assert "effect" in answer or answer["type"] == "AlreadyAnswered", answer
            assert ("effect" in answer) == (told["command_id"] == command["command_id"])
            stored = {name: value for name, value in told.items() if name != "replayed"}
            assert self.receipt in ({}, stored)
            self.receipt = stored
        fresh = [answer for _, answer in self.told if answer.get("replayed") is False]
        assert len(fresh) == (0 if self.receipt.get("effect", "CANCELLED") == "CANCELLED" else 1)
        assert self.receipt or cancelled


class Storm:
    """The turns, and the processes that work on them."""

    def __init__(self, crew: Crew, seed: int) -> None:
        self.crew = crew
        self.random = random.Random(seed)
        self.workers = crew.executors("one", "two", "three", lease=15)
        self.agents: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.waits: list[Wait] = []

    def scattered(self, asked: list[tuple[int, dict[str, Any]]]) -> list[Any]:
        """Let each process do its share, all at once; return the answers in the order of what was asked."""
        shares: dict[int, list[int]] = defaultdict(list)
        for place, (worker, _) in enumerate(asked):
            shares[worker].append(place)
        requests = {
            worker: self.workers[worker].ask("do_all", items=[asked[place][1] for place in places])
            for worker, places in shares.items()
        }
        answers: dict[int, Any] = {}
        for worker, request in requests.items():
            answers.update(zip(shares[worker], request.get(BOUND), strict=True))
        return [answers[place] for place in range(len(asked))]

    def anyone(self, count: int = 1) -> list[int]:
        return self.random.sample(range(len(self.workers)), count)

    def start(self, first: int) -> list[str]:
        """Start turns, some of them twice at once; return their ids."""
        asked: list[tuple[int, dict[str, Any]]] = []
        for number in range(first, first + ROUND):
            order = {"do": "start", "agent": AGENTS[number % len(AGENTS)], "idempotency_key": f"key {number}"}
            asked += [(worker, dict(order)) for worker in self.anyone(self.random.choice((1, 1, 2)))]
        found: dict[str, str] = {}
        for (_, order), turn in zip(asked, self.scattered(asked), strict=True):
            assert found.setdefault(order["idempotency_key"], turn) == turn
            self.agents[turn] = order["agent"]
        return list(found.values())

    def settle(self, turns: list[str]) -> list[dict[str, Any]]:
        return self.scattered([(self.anyone()[0], {"do": "settle", "turn": turn, "timeout": 30}) for turn in turns])

    def orders(self, wait: Wait) -> list[tuple[int, dict[str, Any]]]:
        """Return what people, all at once, want of a turn: the same twice, the contrary, its end."""
        kinds = self.random.choice(["approve_tool", "reject_tool"]), self.random.choice(["approve_tool", "reject_tool"])
        chance = self.random.random()
        found: list[tuple[int, dict[str, Any]]] = []
        if chance < 0.2:
            self.cancelled.add(wait.turn)
            found.append((self.anyone()[0], {"do": "cancel", "turn": wait.turn, "timeout": 30}))
        if chance < 0.05:
            return found
        names = self.random.choice(["a", "aa", "ab", "aab", "aabb"])
        workers = [*self.anyone(min(3, len(names))), *self.anyone(max(0, len(names) - 3))]
        for worker, name in zip(workers, names, strict=True):
            order = {"do": "answer", "turn": wait.turn, "wait": wait.id, "kind": kinds["ab".index(name)], "by": name}
            found.append((worker, {**order, "command_id": f"{name} {wait.id}", "timeout": 30}))
        return found

    def round(self, first: int) -> None:
        """Let turns live from start to end."""
        turns = self.start(first)
        waits: list[Wait] = []
        for turn, view in zip(turns, self.settle(turns), strict=True):
            assert view["status"] in {"WAITING_FOR_APPROVAL", "COMPLETED"}, view
            waits += [Wait(turn, wait["id"]) for wait in view["waits"]]
        asked = [(wait, worker, order) for wait in waits for worker, order in self.orders(wait)]
        self.random.shuffle(asked)
        answers = self.scattered([(worker, dict(order)) for _, worker, order in asked])
        for (wait, _, order), answer in zip(asked, answers, strict=True):
            if order["do"] == "answer":
                wait.told.append((order, answer))
            else:
                assert answer.get("status") in {"CANCELLED", "COMPLETED"}, answer
        for turn, view in zip(turns, self.settle(turns), strict=True):
            assert view["status"] == "COMPLETED" or (turn in self.cancelled and view["status"] == "CANCELLED"), view
        self.waits += waits

    def check(self) -> None:
        """Every command has its one answer, for ever; every tool ran as often as was decided."""
        starts: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for key, attempt, _ in self.crew.starts():
            turn, _, call = key.partition(":")
            starts[turn].append((call, attempt))
        asked = [(wait, order) for wait in self.waits for order, _ in wait.told]
        again = self.scattered([(self.anyone()[0], dict(order)) for _, order in asked])
        for wait in self.waits:
            wait.check(cancelled=wait.turn in self.cancelled)
        for (wait, order), answer in zip(asked, again, strict=True):
            wait.receipt = wait.receipt or answer["receipt"]
            mine = wait.receipt["command_id"] == order["command_id"]
            expected = {**wait.receipt, "replayed": True}
            assert answer == expected if mine else answer["receipt"].items() >= wait.receipt.items(), answer
        decided = {wait.turn: wait.receipt.get("effect") for wait in self.waits}
        for turn, agent in self.agents.items():
            free = [("call_1_0", 1)] if agent in {"both", "free-once", "free-repeatable"} else []
            name = "call_1_1" if agent == "both" else "call_1_0"
            bound = [(name, 1)] if decided.get(turn) == "APPROVED" else []
            allowed = [free + bound, free] if turn in self.cancelled else [free + bound]
            assert sorted(starts[turn]) in allowed, (turn, agent, decided.get(turn), starts[turn])


def storm(crew: Crew, count: int) -> None:
    """Let the storm blow, and look at what it leaves behind."""
    storm = Storm(crew, seed=count)
    for first in range(0, count, ROUND):
        storm.round(first)
    storm.check()

    place = RedisPlace(crew.url)
    assert len(storm.agents) == count
    assert place.left("wake", "leases", "waits") == {}
    assert sum(worker("statistics")["fenced"] for worker in storm.workers) == 0
    by_master = place.keys("t:*")
    assert sum(map(len, by_master.values())) == count
    assert min(map(len, by_master.values())) > count / len(by_master) / 2


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=[pytest.mark.deep, pytest.mark.timeout(300)])])
@pytest.mark.parametrize("place", ["redis_url", "cluster_url"])
def test_storm(tmp_path: Path, request: pytest.FixtureRequest, place: str, count: int) -> None:
    """Every tool runs once, every command has one answer, no turn is left behind, and all masters carry their share."""
    with checked(Crew(tmp_path, namespaced(request.getfixturevalue(place)))) as crew:
        storm(crew, count)
