"""Every order of what can happen to a small turn, breadth first. The machine is pure, so a state is a value like any other.

A `World` is a turn's state and what runs outside of it; `judge.py` says what must hold of each step. Two worlds are the same where
everything that is still to come is: numbers that only count (steps, retries, tokens) and absolute times are left out of the
comparison, as no limit of these turns depends on them.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from turnhold import Agent, AiMessage, ApprovalDecision, FormDefinition, ResumeCommand, Status, SuspensionType, UserMessage
from turnhold.actors.ids import root_id
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.advance import next_deadline
from turnhold.actors.machine.create import new_turn
from turnhold.actors.machine.draft import Context, Draft
from turnhold.actors.machine.handle import handle
from turnhold.actors.turn import Failure, OpenWait, TurnState
from turnhold.actors.waits import Receipt

START, GRACE = 1_000_000, 10_000
LOST = Failure("ConnectionError", "lost")
EDITED = {"amount": 7}


@dataclass(frozen=True)
class Story:
    """A small turn, and how much may go wrong in it: each number is how often that may happen on one path."""

    agent: Agent
    replies: tuple[AiMessage, ...]
    decisions: tuple[ApprovalDecision, ...] = ()
    forms: dict[str, FormDefinition] = field(default_factory=dict)
    failures: tuple[Any, ...] = ()
    ends: tuple[Status, ...] = (Status.COMPLETED,)
    api: bool = False
    cancels: int = 1
    crashes: int = 1
    handoffs: int = 0
    faults: int = 0
    questions: int = 0


@dataclass(frozen=True)
class World:
    """A turn, what runs outside, and what has been.

    `owner` is a number; `owned` is false where the turn was let go, `wakes` true where somebody shall go on with it at once.
    """

    state: TurnState
    now: int = START
    owner: int = 1
    owned: bool = True
    model: tuple[int, int] | None = None
    asking: frozenset[str] = frozenset()
    running: frozenset[tuple[str, int]] = frozenset()
    receipts: dict[str, Receipt] = field(default_factory=dict)
    commands: dict[str, ResumeCommand] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    unbegun: dict[str, int] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    children: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    flagged: frozenset[str] = frozenset()
    wakes: bool = False
    left: tuple[int, ...] = ()

    def key(self) -> bytes:
        """What is still to come of this world depends on this alone."""
        state = copy.copy(self.state)
        state.created_at = state.updated_at = state.active_ms = state.active_since = state.completed_at = 0
        state.retry_count = state.tool_call_count = 0
        state.step_count = min(1, state.step_count)
        state.cancel_at = min(1, state.cancel_at)
        state.ending_at = state.ending_at and max(1, state.ending_at + GRACE - self.now)
        state.spans = ()
        state.waits = tuple(
            msgspec.structs.replace(
                wait, created=0, expires=None if wait.expires is None else max(0, wait.expires - self.now), message=None
            )
            for wait in state.waits
        )
        state.calls = tuple(msgspec.structs.replace(call, started=0) for call in state.calls)
        ended = sorted((wait, receipt.effect, receipt.digest) for wait, receipt in self.receipts.items())
        outside = (self.owner, self.owned, self.model, sorted(self.asking), sorted(self.running), self.wakes)
        been = (
            sorted(self.started.items()),
            sorted(self.unbegun.items()),
            sorted(self.children),
            sorted(self.ended),
            sorted(self.flagged),
            self.left,
        )
        return msgspec.msgpack.encode((state, ended, outside, been))

    def after(self, batch: tuple[m.Message, ...], agent: Agent, *, api: bool = False, execute: bool = True) -> Draft:
        """What the machine makes of a batch. A turn that was let go is claimed first."""
        context = Context(
            now=self.now,
            activation="api" if api else f"a{self.owner}",
            agent=None if api else agent,
            execute=execute and not api,
            asking=self.asking - {message.call_id for message in batch if isinstance(message, m.PolicyDecided | m.PolicyFailed)},
            cancel_grace=GRACE,
            delegates={agent.id: agent},
        )
        return handle(self.state, batch if self.owned else (m.Activated(), *batch), context)


@dataclass(frozen=True)
class Move:
    """Something that can happen; `kind` sorts it, `before` is the world at that moment."""

    name: str
    kind: str
    before: World
    batch: tuple[m.Message, ...]
    api: bool = False
    execute: bool = True


BUDGETS = ("cancels", "crashes", "handoffs", "faults", "questions")


def spend(world: World, what: str) -> World | None:
    """The world with one fault less to come; `None` where there is none left."""
    at = BUDGETS.index(what)
    if not world.left[at]:
        return None
    return replace(world, left=(*world.left[:at], world.left[at] - 1, *world.left[at + 1 :]))


def first(story: Story) -> tuple[World, Draft]:
    """A turn that has just been created and claimed."""
    context = Context(now=START, activation="a1", agent=story.agent, cancel_grace=GRACE, delegates={story.agent.id: story.agent})
    name, agent = root_id(bytes(26), None, None, ""), story.agent
    draft = new_turn(name, agent.id, agent.version, UserMessage("hi"), context, policy=agent.policy)
    empty = World(draft.state, left=tuple(getattr(story, name) for name in BUDGETS))
    return empty, draft


# ---------------------------------------------------------------------------------------------------------- what can happen


def answers(wait: OpenWait) -> list[ResumeCommand]:
    """Every kind of command that answers a wait; its id says what it is."""
    make: dict[str, Callable[..., ResumeCommand]] = {}
    if wait.type is SuspensionType.TOOL_APPROVAL:
        make["approve"] = ResumeCommand.approve_tool
        make["edit"] = lambda name, **more: ResumeCommand.approve_tool(name, arguments=EDITED, **more)
        make["reject"] = ResumeCommand.reject_tool
    elif wait.type is SuspensionType.USER_INPUT and wait.form_key is None:
        make["say"] = lambda name, **more: ResumeCommand.user_input("text", wait=name, **more)
    elif wait.type is SuspensionType.USER_INPUT:
        make["submit"] = lambda name, **more: ResumeCommand.submit_form(name, {"a": 1}, **more)
        make["decline"] = ResumeCommand.decline
    elif wait.type is SuspensionType.RETRY:
        make["retry"] = lambda name, **more: ResumeCommand.retry(name, force=True, **more)
    elif wait.type is SuspensionType.IN_DOUBT:
        make["rerun"] = ResumeCommand.rerun
        make["give"] = lambda name, **more: ResumeCommand.give_result(name, 1, **more)
        make["fail"] = ResumeCommand.fail_call
    short = wait.id.split("/", 1)[1]
    return [made(wait.id, command_id=f"{name} {short}", by="ann") for name, made in make.items()]


def mail(command: ResumeCommand, at: int, known: Receipt | None = None, by: Any = "command") -> m.Received:
    """A command as its turn receives it, with the receipt that the store has for it."""
    return m.Received(f"m {command.command_id} {at}", m.Resume(command), at, known, by)


def moves(story: Story, world: World) -> Iterator[Move]:
    """All that can happen in a world, in one step."""
    yield from results(story, world)
    for wait in world.state.waits:
        fitting = answers(wait)
        for command in fitting:
            batch = (mail(command, world.now),)
            yield Move(f"{command.command_id}", "command", world, batch)
            if story.api and not world.owned:
                yield Move(f"{command.command_id} at an API node", "command", world, batch, api=True)
        if len(fitting) > 1:
            others = (*fitting, fitting[0])
            yield Move(f"all answers to {wait.id}", "race", world, tuple(mail(command, world.now) for command in others))
    if world.wakes:
        yield Move("another owner", "claim", world, ())
    yield from trouble(story, world)
    due = next_deadline(world.state, GRACE)
    if due is not None and not world.state.status.terminal:
        late = replace(world, now=max(due, world.now))
        yield Move("time passes", "time", late, (m.DeadlinePassed(),))
        for wait in world.state.waits:
            if wait.expires == due and wait.type is not SuspensionType.RETRY:
                for command in answers(wait):
                    for at, word in ((due - 1, "just before"), (due, "just after")):
                        batch = (mail(command, at), m.DeadlinePassed())
                        yield Move(f"{command.command_id} {word} its deadline", f"read late, {word}", late, batch)


def results(story: Story, world: World) -> Iterator[Move]:
    """What runs outside comes to an end."""
    if world.model is not None:
        iteration, failures = world.model
        reply = story.replies[min(iteration, len(story.replies)) - 1]
        yield Move("the model replies", "result", replace(world, model=None), (m.ModelReplied(iteration, failures, reply),))
        if (worse := spend(world, "faults")) is not None:
            for retryable in (False, True):
                failed = m.ModelFailed(iteration, failures, LOST, retryable=retryable)
                yield Move(f"the model fails, retryable={retryable}", "result", replace(worse, model=None), (failed,))
    for name in sorted(world.asking):
        told = replace(world, asking=world.asking - {name})
        for decision in story.decisions:
            yield Move(f"{name}: {decision.outcome}", "result", told, (m.PolicyDecided(name, decision),))
        if (worse := spend(told, "faults")) is not None:
            yield Move(f"{name}: policy fails", "result", worse, (m.PolicyFailed(name, LOST),))
    for name, attempt in sorted(world.running):
        back = replace(world, running=world.running - {(name, attempt)})
        call = next(call for call in world.state.calls if call.id == name)
        form = story.forms.get(call.name)
        if form is not None and form.form_key not in (call.forms or {}):
            yield Move(f"{name} asks", "result", back, (m.FormAsked(name, attempt, form),))
        else:
            yield Move(f"{name} returns", "result", back, (m.ToolReturned(name, attempt, "ok"),))
        if (worse := spend(back, "faults")) is not None:
            for kind in story.failures:
                if kind == "unbegun":
                    unbegun = {**worse.unbegun, name: worse.unbegun.get(name, 0) + 1}
                    lacking = replace(worse, unbegun=unbegun)
                    yield Move(f"{name} does not start", "result", lacking, (m.NotStarted(name, attempt, "no replica"),))
                else:
                    failed = m.ToolFailed(name, attempt, kind, LOST, "failed")
                    yield Move(f"{name} fails: {kind}", "result", worse, (failed,))
    for child in world.state.children:
        for status in story.ends:
            ended = m.ChildEnded(child, story.agent.id, status, "done" if status is Status.COMPLETED else None)
            yield Move(f"{child[-4:]} ends {status}", "result", world, (m.Received(f"{child}/end", ended, world.now),))


def trouble(story: Story, world: World) -> Iterator[Move]:
    """Somebody cancels, the owner dies, the node drains, the application asks a question."""
    if world.state.status.terminal:
        return
    if (worse := spend(world, "cancels")) is not None:
        yield Move("cancel", "cancel", worse, (m.CancelRequested("stop"),))
    gone: dict[str, Any] = {"owner": world.owner + 1, "model": None, "asking": frozenset(), "running": frozenset()}
    if world.owned and (worse := spend(world, "crashes")) is not None:
        yield Move("crash", "crash", replace(worse, **gone), (m.Activated(1),))
    if world.owned and (worse := spend(world, "handoffs")) is not None:
        leaving = replace(worse, model=None, asking=frozenset(), running=frozenset())
        yield Move("hand-off", "hand-off", leaving, (m.HandOff(),), execute=False)
    if (worse := spend(world, "questions")) is not None:
        yield Move("question", "question", worse, (m.Received("q", m.Suspend("which?"), world.now),))


# ------------------------------------------------------------------------------------------------------------- exploring


@dataclass
class Found:
    """What an exploration has seen: worlds in the order of their discovery, and every step between them."""

    worlds: list[World] = field(default_factory=list)
    edges: list[tuple[int, int, str]] = field(default_factory=list)
    parents: list[tuple[int, str]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def path(self, at: int) -> list[str]:
        """The names of the moves that lead to a world."""
        names: list[str] = []
        while at:
            at, name = self.parents[at]
            names.append(name)
        return names[::-1]

    def without_end(self, *, unless: frozenset[str] = frozenset()) -> list[int]:
        """Worlds from which no terminal one can be reached by moves of other kinds than these."""
        back: dict[int, list[int]] = {}
        for source, target, kind in self.edges:
            if kind not in unless:
                back.setdefault(target, []).append(source)
        todo = deque(at for at, world in enumerate(self.worlds) if world.state.status.terminal)
        good = set(todo)
        while todo:
            for source in back.get(todo.popleft(), ()):
                if source not in good:
                    good.add(source)
                    todo.append(source)
        return [at for at in range(len(self.worlds)) if at not in good]


def explore(story: Story, step: Callable[[Move, Draft], World], look: Callable[[World], object], *, most: int = 1_000_000) -> Found:
    """Walk through all worlds of a story.

    :param step: judges a move and returns the world behind it.
    :param look: judges a world by itself, once.
    """
    found = Found()
    known: dict[bytes, int] = {}
    empty, draft = first(story)
    todo: deque[int] = deque()

    def enter(world: World, source: int, name: str, kind: str) -> None:
        key = world.key()
        at = known.get(key)
        if at is None:
            at = known[key] = len(found.worlds)
            assert at < most, "more worlds than were expected"
            found.worlds.append(world)
            found.parents.append((source, name))
            todo.append(at)
            look(world)
        found.edges.append((source, at, kind))
        found.kinds.add(kind)

    enter(step(Move("start", "start", empty, ()), draft), 0, "start", "start")
    while todo:
        at = todo.popleft()
        for move in moves(story, found.worlds[at]):
            try:
                draft = move.before.after(move.batch, story.agent, api=move.api, execute=move.execute)
                enter(step(move, draft), at, move.name, move.kind)
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter {[*found.path(at), move.name]}") from error
    return found
