"""The simulated actors: what they remember, and what they decide to save."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from ...actors.ids import call_key, child_id, root_of
from ...store import base as b
from .ghost import Ghost

LEASE, GRACE = 1_000, 200
AGENTS = ("alpha", "beta")


class State(msgspec.Struct):
    """What a simulated actor keeps in its snapshot."""

    applied: list[str] = []
    waits: list[str] = []
    number: int = 0
    children: int = 0
    cancelled: bool = False
    deadline: int | None = None
    fired: int = 0


@dataclass
class Since:
    """Everything an actor appended since its claim: what it repeats after Behind."""

    messages: list[bytes] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    consumed: list[str] = field(default_factory=list)
    receipts: list[b.ReceiptRow] = field(default_factory=list)
    replies: list[b.ReplyRow] = field(default_factory=list)
    opened: dict[str, b.WaitRow] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    create: list[b.NewTurn] = field(default_factory=list)
    deliver: list[tuple[str, b.Mail]] = field(default_factory=list)
    cancel: list[tuple[str, str]] = field(default_factory=list)
    acked: bool = False
    memory: dict[str, b.MemoryRow] = field(default_factory=dict)


@dataclass
class Actor:
    """One activation, as its process sees it."""

    turn: str
    by: b.ClaimBy
    token: b.Token
    version: int
    state: State
    messages: int
    events: int
    mail: list[b.Mail]
    cancel: str | None
    quarantined: bool
    usage: int
    since: Since = field(default_factory=Since)
    base_messages: int = 0
    base_events: int = 0
    unknown: b.Save | None = None
    frozen: bool = False
    sent: list[b.Op] = field(default_factory=list)


class Minds:
    """Makes the decisions of all actors of a run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ghost: Ghost = Ghost()
        self.now: int = 1_700_000_000_000
        self.names = 0
        self.limit = 8

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _new(self, turn: str, parent: str | None, conversation: str | None) -> b.NewTurn:
        return b.NewTurn(
            turn=turn,
            parent=parent,
            agent=self.random.choice(AGENTS),
            agent_version="1",
            conversation=conversation,
            digest=self.random.choice("de"),
            schema=1,
            status="READY",
            snapshot=msgspec.msgpack.encode(State()),
            messages=b.Messages(0, (f"{turn} begins".encode(),)),
            events=b.Events(0, 1, b"created"),
        )

    def plan(self, actor: Actor, *, finish: bool = False) -> b.Save:
        """Decide a step and make its save."""
        state, since = actor.state, actor.since
        taken = [mail for mail in actor.mail if finish or self._chance(0.7)]
        fresh = [mail for mail in taken if mail.message_id not in state.applied]
        events: list[bytes] = []
        replies: list[b.ReplyRow] = []
        for mail in fresh:
            state.applied.append(mail.message_id)
            events.append(b"applied " + mail.message_id.encode())
            if mail.command_id is not None:
                replies.append(self._answer(actor, mail))
        since.replies += replies
        since.consumed += [mail.message_id for mail in taken]
        if actor.cancel is not None and (finish or self._chance(0.6)):
            state.cancelled = since.acked = True
        if not finish:
            self._grow(actor)
        mode = self._mode(actor, finish=finish)
        if mode is b.Mode.SUSPEND and self._chance(0.3):
            state.deadline = self.now + self.random.choice((0, 30, 400))
        else:
            state.deadline = None
        events.append(b"saved")
        since.events += events
        since.messages += [f"{actor.turn} entry {self._name('h')}".encode() for _ in range(self.random.randrange(3))]
        return self._save(actor, mode)

    def _answer(self, actor: Actor, mail: b.Mail) -> b.ReplyRow:
        wait = mail.wait_id
        if wait in actor.state.waits:
            actor.state.waits.remove(wait)
            actor.since.closed.append(wait)
            actor.since.opened.pop(wait, None)
            call = call_key(actor.turn, wait.split("/")[1])
            actor.since.receipts.append(b.ReceiptRow(wait, b"receipt " + mail.message_id.encode(), mail.command_id, call))
            return b.ReplyRow(mail.message_id, b"accepted " + wait.encode())
        return b.ReplyRow(mail.message_id, b"refused")

    def _grow(self, actor: Actor) -> None:
        state, since = actor.state, actor.since
        if self._chance(0.3):
            state.number += 1
            wait = f"{actor.turn}/c{state.number % 3}/{state.number}"
            state.waits.append(wait)
            kind = self.random.choice(("TOOL_APPROVAL", "RETRY"))
            since.opened[wait] = b.WaitRow(wait, kind, self.now, b"wait " + wait.encode(), "alpha")
        tree = self.ghost.trees.get(root_of(actor.turn))
        others = [name for name in tree.turns if name != actor.turn] if tree else []
        if self._chance(0.08) and state.children < 2 and len(self.ghost.turns) < 3 * self.limit:
            state.children += 1
            since.create.append(self._new(child_id(root_of(actor.turn), self.random.randbytes(10)), actor.turn, None))
        if others and self._chance(0.2):
            mid = self._name("mid")
            since.deliver.append((self.random.choice(others), b.Mail(mid, b"mail " + mid.encode())))
        if self._chance(0.2):
            row = self.row()
            since.memory.pop(row.id, None)
            since.memory[row.id] = row
        if others and self._chance(0.05):
            since.cancel.append((self.random.choice(others), self._name("cause")))

    def talk_of(self, turn: str) -> str | None:
        """Return the conversation of a turn's root."""
        root = self.ghost.turns.get(root_of(turn))
        return None if root is None else root.new.conversation

    def row(self) -> b.MemoryRow:
        """Make an entry; ids come again, and so do some bodies."""
        body = self._name("body") if self._chance(0.5) else f"body of {self.random.randrange(2)}"
        return b.MemoryRow(f"e{self.random.randrange(12)}", body.encode(), self._chance(0.7))

    def _mode(self, actor: Actor, *, finish: bool) -> b.Mode:
        if finish:
            return b.Mode.END
        if actor.quarantined:
            return self.random.choice((b.Mode.END, b.Mode.SUSPEND, b.Mode.HAND_OFF))
        return self.random.choices(list(b.Mode), (5, 6, 2, 1))[0]

    def _save(self, actor: Actor, mode: b.Mode, *, behind: b.Behind | None = None) -> b.Save:
        since, state = actor.since, actor.state
        messages_at = actor.messages if behind is None else behind.message_count
        events_at = actor.events if behind is None else behind.event_count
        bodies = since.messages[messages_at - actor.base_messages :]
        events = since.events[events_at - actor.base_events :]
        return b.Save(
            turn=actor.turn,
            token=actor.token,
            version=actor.version if behind is None else behind.version,
            save_id=self._name("save"),
            mode=mode,
            lease_ms=LEASE,
            wake=state.deadline,
            schema=2 if self._chance(0.2) else 1,
            status="COMPLETED" if mode is b.Mode.END else "RUNNING",
            snapshot=msgspec.msgpack.encode(state),
            messages=b.Messages(messages_at, tuple(bodies)),
            events=b.Events(events_at, len(events), b"\n".join(events)),
            progress=self._chance(0.3),
            ack_cancel=since.acked,
            consumed=tuple(since.consumed),
            receipts=tuple(since.receipts),
            replies=tuple(since.replies),
            opened=tuple(since.opened.values()),
            closed=tuple(since.closed),
            create=tuple(since.create),
            deliver=tuple(since.deliver),
            cancel=tuple(since.cancel),
            usage=(actor.usage, 1, actor.usage + 1, state.number),
            closing=b"closed",
            batch=self.random.choice((1, 16)),
            conversation=self.talk_of(actor.turn),
            memory=tuple(since.memory.values()),
            relay=self._chance(0.3),
        )
