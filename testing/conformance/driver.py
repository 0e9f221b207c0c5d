"""Drives any store with several simulated actors that crash, freeze, lose replies and are put back in time.

    await Driver(send, seed=7).drive(500)

Needs a function ``send(op, now)`` that gives the reply. `supports` names the operations that the store knows (a partial one is
driven with those); `rewind` is (take, put back) of the whole store; `reference` is a core whose every reply must be the same.
`dead` is a node that may be called dead at any time.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from ...actors.ids import partition_of, root_id, root_of
from ...store import base as b
from .actors import AGENTS, GRACE, LEASE, Actor, Minds, State
from .expect import Violation, expect, is_a
from .ghost import Ghost, Seen

EVERYTHING = frozenset(cls for cls in b.Op.__subclasses__())


TALKS = ("talk", "chat")
WRITES = (b.Create, b.Deliver, b.Cancel, b.Claim, b.Save, b.Abandon, b.Reap, b.Quarantine, b.Discard, b.WriteMemory, b.WriteNote)


Send: TypeAlias = Callable[[b.Op, int], Awaitable[b.Reply]]
Step: TypeAlias = Callable[[], Awaitable[None]]


def same(one: b.Reply, other: b.Reply) -> bool:
    """Tell whether two stores answered the same; waits opened in one millisecond have no order."""
    if isinstance(one, b.WaitListing) and isinstance(other, b.WaitListing):
        return sorted(one.bodies) == sorted(other.bodies)
    return one == other


class Driver(Minds):
    """One run. The same seed gives the same run."""

    def __init__(
        self,
        send: Send,
        *,
        seed: int,
        supports: Iterable[type[b.Op]] = EVERYTHING,
        rewind: tuple[Callable[[], Any], Callable[[Any], None]] | None = None,
        reference: b.StoreCore | None = None,
        turns: int = 8,
        dead: str = "n3",
    ) -> None:
        super().__init__(seed)
        self.send, self.seed, self.rewind, self.dead = send, seed, rewind, dead
        self.reference: b.StoreCore | None = reference
        self.limit = turns
        self.supports = frozenset(supports)
        self.counts: Counter[str] = Counter()
        self.actors: list[Actor] = []
        self.sent: list[b.Op] = []
        self.saved: tuple[Any, Ghost, b.StoreCore | None] | None = None
        self.roots: list[str] = []

    # -- the run

    async def drive(self, steps: int, *, drain: bool = True) -> Counter[str]:
        """Take random steps, then let good actors finish all turns. :raises Violation: if the store breaks a rule."""
        try:
            for _ in range(steps):
                await self._step()
            if drain and {b.Claim, b.Due, b.Expired, b.Reap, b.Revive, b.Deliver} <= self.supports:
                await self._drain()
        except Violation as fault:
            raise Violation(f"seed {self.seed}: {fault}") from fault
        return self.counts

    async def apply(self, op: b.Op) -> b.Reply:
        """Apply an operation and judge the reply."""
        if isinstance(op, WRITES) and self._chance(0.3):
            self.sent = [*self.sent[-30:], op]
        reply = await self.send(op, self.now)
        if self.reference is not None:
            other = self.reference.apply(op, self.now)
            expect(same(other, reply), f"replies differ\n  {op}\n  {reply}\n  reference: {other}")
        self.counts[f"{type(op).__name__}:{type(reply).__name__}"] += 1
        self.ghost.saw(op, reply, self.now)
        return reply

    async def _step(self) -> None:
        choices = [(weight, step) for weight, needs, step in self._steps() if needs <= self.supports]
        step = self.random.choices([step for _, step in choices], [weight for weight, _ in choices])[0]
        await step()
        self.now += self.random.choice((0, 0, 1, 5, 20, 60))

    def _steps(self) -> list[tuple[int, frozenset[type[b.Op]], Step]]:
        def row(weight: int, step: Step, *needs: type[b.Op]) -> Any:
            return weight, frozenset(needs), step

        return [
            row(8, self._create, b.Create),
            row(14, self._deliver, b.Deliver),
            row(4, self._cancel, b.Cancel),
            row(10, self._claim, b.Claim),
            row(40, self._act, b.Save),
            row(3, self._renew, b.Renew),
            row(2, self._abandon, b.Abandon),
            row(4, self._reap, b.Reap),
            row(3, self._freeze),
            row(2, self._crash),
            row(5, self._again),
            row(2, self._quarantine, b.Quarantine),
            row(1, self._revive, b.Revive),
            row(1, self._discard, b.Discard),
            row(1, self._prune, b.Prune),
            row(2, self._pause),
            row(5, self._rewind),
            row(3, self._look_due, b.Due),
            row(4, self._read),
            row(4, self._remember, b.WriteMemory),
        ]

    # -- small things

    def _any(self) -> str:
        known = list(self.ghost.turns)
        return self.random.choice(known) if known and not self._chance(0.02) else "00-" + "a" * 26

    def _by(self) -> b.ClaimBy:
        agents = frozenset(f"{name}@1" for name in (AGENTS if self._chance(0.8) else AGENTS[:1]))
        return b.ClaimBy(
            activation=self._name("act"),
            node=self.random.choice(("n1", "n2", "n3")),
            lease_ms=LEASE,
            agents=None if self._chance(0.2) else agents,
            schema=2 if self._chance(0.9) else 1,
            tail=self.random.choice((0, 2, 100)),
            batch=self.random.choice((1, 3, 16)),
        )

    async def _start(self, op: b.Op, by: b.ClaimBy | None, turn: str, reply: b.Reply) -> None:
        if not isinstance(reply, b.Claimed) or by is None or self._chance(0.1):
            return  # not ours, or the process died before it read the reply
        if self._chance(0.1):
            again = await self.apply(op)  # the reply was lost
            expect(isinstance(again, b.Claimed), "an own claim is not repeated", again)
            reply = is_a(again, b.Claimed)
        known = msgspec.msgpack.decode(reply.snapshot, type=State)
        self.actors.append(
            Actor(
                turn=turn,
                by=by,
                token=b.Token(by.activation, reply.epoch),
                version=reply.version,
                state=known,
                messages=reply.message_count,
                events=reply.event_count,
                mail=list(reply.mail),
                cancel=reply.cancel,
                quarantined=reply.quarantined,
                usage=self.random.randrange(100),
                base_messages=reply.message_count,
                base_events=reply.event_count,
                sent=[op],
            )
        )

    # -- steps of the world outside

    async def _create(self) -> None:
        live = sum(not turn.ended for turn in self.ghost.turns.values())
        if self.roots and (live >= self.limit or self._chance(0.15)):
            old = self.ghost.turns.get(self.random.choice(self.roots))
            if old is None:
                return
            new = old.new if self._chance(0.7) else msgspec.structs.replace(old.new, digest="other")
        else:
            conversation = self.random.choice((None, *TALKS))
            partition = self.random.randrange(256)
            turn = root_id(bytes([partition]) + self.random.randbytes(25), conversation, None, "")
            new = self._new(turn, None, conversation)
            if self._chance(0.1):
                new = msgspec.structs.replace(new, wake=self.random.choice((None, self.now + 300)))
            self.roots.append(turn)
        by = self._by() if self._chance(0.6) else None
        when: b.WhenBusy = self.random.choices(("refuse", "queue", "supersede"), (2, 6, 1))[0]
        op = b.Create(new=new, claim=by, when_busy=when, room=self.random.choice((1, 3, 64)), cause=self._name("cause"))
        await self._start(op, by, new.turn, await self.apply(op))

    async def _deliver(self) -> None:
        turn = self._any()
        known = self.ghost.turns.get(turn)
        tree = self.ghost.trees.get(root_of(turn))
        command: str | None = self._name("cmd")
        wait: str | None = None
        message = self._name("mid")
        if known is not None and tree is not None:
            open_waits, commands = list(known.waits), list(tree.commands)
            if tree.waits and self._chance(0.2):
                wait = self.random.choice(list(tree.waits))  # answered already
            elif open_waits:
                wait = self.random.choice(open_waits)
            if commands and self._chance(0.15):
                command = self.random.choice(commands)
            if known.ids and self._chance(0.15):
                message = self.random.choice(sorted(known.ids))
        runtime = self._chance(0.2)
        mail = b.Mail(message, b"mail " + message.encode(), None if runtime else command, None if runtime else wait)
        by = self._by() if self._chance(0.5) else None
        op = b.Deliver(turn=turn, mail=mail, cap=self.random.choice((1, 3, 256)), runtime=runtime, claim=by)
        await self._start(op, by, turn, await self.apply(op))
        if self._chance(0.2):
            await self.apply(op)  # the sender did not see the reply

    async def _cancel(self) -> None:
        by = self._by() if self._chance(0.5) else None
        parked = [name for name, turn in self.ghost.turns.items() if turn.parked_mark]
        turn = self.random.choice(parked) if parked and self._chance(0.3) else self._any()
        op = b.Cancel(turn=turn, cause=self._name("cause"), claim=by)
        await self._start(op, by, op.turn, await self.apply(op))

    async def _claim(self) -> None:
        turn = self._any()
        if b.Due in self.supports and self._chance(0.8):
            due = await self.apply(b.Due(limit=4))
            due = is_a(due, b.DueTurns)
            turn = self.random.choice(due.turns) if due.turns else turn
        by = self._by()
        op = b.Claim(turn=turn, by=by)
        await self._start(op, by, turn, await self.apply(op))

    async def _reap(self) -> None:
        turn = self._any()
        if b.Expired in self.supports and self._chance(0.7):
            over = await self.apply(b.Expired(grace_ms=GRACE, dead_nodes=(self.dead,) if self._chance(0.2) else ()))
            over = is_a(over, b.DueTurns)
            turn = self.random.choice(over.turns) if over.turns else turn
        dead = self.dead if self._chance(0.15) else None
        await self.apply(b.Reap(turn=turn, grace_ms=GRACE, dead_node=dead, back_off_ms=50, max_crashes=4))

    async def _again(self) -> None:
        actor = self._pick(frozen=True)
        late = list(self.sent) if actor is None or self._chance(0.4) else actor.sent
        if late:
            await self.apply(self.random.choice(late))  # a duplicate on the wire; nobody reads the reply

    async def _revive(self) -> None:
        await self.apply(b.Revive(turn=self._any()))

    async def _discard(self) -> None:
        parked = [name for name, turn in self.ghost.turns.items() if turn.parked_mark]
        turn = self.random.choice(parked) if parked else self._any()
        notify = b.Mail(self._name("mid"), b"discarded")
        await self.apply(b.Discard(turn=turn, status="FAILED", notify=notify, closing=b"discarded"))

    async def _prune(self) -> None:
        await self.apply(b.Prune())  # nothing is old enough: nothing may be missed later

    async def _pause(self) -> None:
        self.now += self.random.choice((300, 900, LEASE + GRACE))

    async def _rewind(self) -> None:
        if self.rewind is None:
            return
        take, put_back = self.rewind
        if self.saved is None or self._chance(0.3):
            self.saved = (take(), copy.deepcopy(self.ghost), copy.deepcopy(self.reference))
            if self._chance(0.5):
                return
            for _ in range(self.random.randrange(1, 5)):
                await self._act()  # owners go on, and what they saved is forgotten
        core, self.ghost, self.reference = self.saved
        self.saved = None
        put_back(core)
        self.counts["rewind"] += 1

    async def _look_due(self) -> None:
        await self.apply(b.Due(limit=1000))

    async def _read(self) -> None:
        turn = self.ghost.turns.get(name := self._any())
        if turn is None:
            return
        tree = self.ghost.trees[root_of(name)]
        replies = tuple(self.random.sample(sorted(turn.ids | {"none"}), 1)) + tuple(tree.replies)[-3:]
        reads: list[b.Op] = [
            b.ReadMail(turn=name, batch=2),
            b.Look(turn=name),
            b.ReadHistory(turn=name, start=self.random.randrange(3), limit=self.random.choice((1, 1000))),
            b.ReadEvents(turn=name, after=self.random.randrange(turn.event_count + 1), limit=self.random.choice((1, 100))),
            b.ReadReplies(turn=name, message_ids=replies),
            b.Find(root=root_of(name), commands=tuple(tree.commands), waits=tuple(tree.waits), calls=tuple(tree.calls)),
            b.Versions(turns=(name, "00-" + "a" * 26)),
            b.Expired(grace_ms=GRACE),
            b.ListWaits(limit=1000, kind=self.random.choice((None, "TOOL_APPROVAL", "RETRY"))),
            *(b.OpenTurn(conversation=talk) for talk in TALKS),
            *(b.ListQueue(conversation=talk) for talk in TALKS),
        ]
        for op in reads:
            if type(op) in self.supports:
                await self.apply(op)

    async def _remember(self) -> None:
        talk = self.random.choice(TALKS)
        known = self.ghost.memory.shelf(talk)
        row, old = self.row(), known.entries.get(self.random.choice((*known.entries, "none")))
        version = self.random.choice((None, 0, 1)) if old is None else max(0, old.version + self.random.choice((0, 0, 0, -1, 1)))
        row = row if old is None else msgspec.structs.replace(row, id=old.id)
        change = known.change - self.random.randrange(6)
        noted = known.notes.get("note", (0, b""))[0]
        writes: list[b.Op] = [
            b.WriteMemory(conversation=talk, row=row, expected=version, relay=self._chance(0.3)),
            b.Relayed(conversation=talk, change=old.change if old is not None and self._chance(0.7) else change),
            b.WriteNote(
                conversation=talk, name="note", body=self._name("note").encode(), expected=max(0, noted - self._chance(0.3))
            ),
        ]
        write = b.ClearMemory(conversation=talk) if self._chance(0.03) else self.random.choices(writes, (4, 2, 1))[0]
        page = self.random.choice((1, 3, 64))
        before = self.random.choice((None, row.id))
        for op in (
            write,
            b.ReadMemory(conversation=talk, before=before, limit=page, shown=self._chance(0.5)),
            b.FindMemory(conversation=talk, ids=(row.id, "none", "e0", "e1")),
            b.ReadRelay(conversation=talk, limit=page),
            b.Relays(before=self.now - self.random.choice((0, 50)), limit=page),
            b.ReadNote(conversation=talk, name="note"),
        ):
            if type(op) in self.supports:
                await self.apply(op)

    # -- steps of an actor's process

    def _pick(self, *, frozen: bool = False) -> Actor | None:
        fit = [actor for actor in self.actors if frozen or not actor.frozen]
        return self.random.choice(fit) if fit else None

    async def _freeze(self) -> None:
        if actor := self._pick(frozen=True):
            actor.frozen = not actor.frozen  # thawed, it goes on as if nothing had happened

    async def _crash(self) -> None:
        if actor := self._pick(frozen=True):
            self.actors.remove(actor)

    async def _renew(self) -> None:
        fit = [actor for actor in self.actors if not actor.frozen]
        for partition in sorted({partition_of(actor.turn) for actor in fit}):
            mine = [actor for actor in fit if partition_of(actor.turn) == partition]
            leases = tuple((actor.turn, actor.token) for actor in mine)
            reply = is_a(await self.apply(b.Renew(leases=leases, lease_ms=LEASE)), b.Renewed)
            for actor, flag in zip(mine, reply.flags, strict=True):
                if not flag:
                    self.actors.remove(actor)

    async def _abandon(self) -> None:
        if (actor := self._pick()) and actor.unknown is None:
            await self.apply(b.Abandon(turn=actor.turn, token=actor.token, delay_ms=self.random.choice((0, 100))))
            self.actors.remove(actor)

    async def _quarantine(self) -> None:
        flagged = [actor for actor in self.actors if actor.cancel is not None and not actor.frozen]
        actor = self.random.choice(flagged) if flagged else self._pick()
        if actor and actor.unknown is None:
            await self.apply(b.Quarantine(turn=actor.turn, token=actor.token, reason="unreadable"))
            self.actors.remove(actor)

    async def _act(self) -> None:
        if actor := self._pick():
            op = actor.unknown
            if op is None:
                op = self.plan(actor)
            reply = await self.apply(op)
            if self._chance(0.15):
                actor.unknown = op  # the reply was lost: the same call again, later
                return
            await self.learn(actor, op, reply)

    async def learn(self, actor: Actor, op: b.Save, reply: b.Reply) -> None:
        """Take the store's answer to a save into the actor, or let the actor go."""
        actor.unknown = None
        if isinstance(reply, b.Behind):
            self.counts["behind"] += 1
            again = self._save(actor, op.mode, behind=reply)
            return await self.learn(actor, again, await self.apply(again))
        if not isinstance(reply, b.Saved) or not reply.owned:
            self.actors.remove(actor)
            return None
        expect(reply.version == op.version + 1, "another save came in between")
        expect(len(set(actor.state.applied)) == len(actor.state.applied), "mail was applied twice")
        actor.version = reply.version
        actor.sent = [*actor.sent[:1], *actor.sent[1:][-2:], op]
        actor.messages, actor.events = op.messages.at + len(op.messages.bodies), op.events.at + op.events.count
        actor.mail, actor.cancel = list(reply.mail), reply.cancel
        return None

    # -- the end

    async def _drain(self) -> None:
        self.actors = []
        for _ in range(400):
            if not any(self.ghost.queues.values()) and not any(self._left(turn) for turn in self.ghost.turns.values()):
                return self._check_end()
            await self._drain_once()
        raise Violation(f"turns never end: {[name for name, turn in self.ghost.turns.items() if self._left(turn)]}")

    @staticmethod
    def _left(turn: Seen) -> bool:
        return not turn.ended and (turn.owner is not None or turn.due is not None or bool(turn.mail) or turn.parked_mark)

    async def _drain_once(self) -> None:
        self.now += LEASE + GRACE
        over = await self.apply(b.Expired(grace_ms=GRACE))
        over = is_a(over, b.DueTurns)
        for turn in over.turns:
            await self.apply(b.Reap(turn=turn, grace_ms=GRACE, back_off_ms=50, max_crashes=4))
        for name in [name for name, turn in self.ghost.turns.items() if turn.parked_mark and not turn.ended]:
            await self.apply(b.Revive(turn=name))
        for talk in [talk for talk, queue in self.ghost.queues.items() if queue]:
            await self.apply(b.Deliver(turn=self.ghost.open[talk], mail=b.Mail(self._name("mid"), b"others wait"), runtime=True))
        due = await self.apply(b.Due(limit=8, offset=0))
        due = is_a(due, b.DueTurns)
        for turn in due.turns:
            by = b.ClaimBy(activation=self._name("act"), node="n1", lease_ms=LEASE, schema=9)
            reply = await self.apply(b.Claim(turn=turn, by=by))
            if not isinstance(reply, b.Claimed):
                continue
            await self._start(b.Claim(turn=turn, by=by), by, turn, reply)
            if self.actors:
                actor = self.actors.pop()
                self.actors.append(actor)
                op = self.plan(actor, finish=True)
                await self.learn(actor, op, await self.apply(op))

    def _check_end(self) -> None:
        for name, turn in self.ghost.turns.items():
            known = msgspec.msgpack.decode(turn.snapshot, type=State)
            expect(len(set(known.applied)) == len(known.applied), "mail was applied twice", name)
            answered = self.ghost.trees[root_of(name)].replies
            lost = [mid for mid in turn.ids if mid not in known.applied and mid not in answered]
            expect(not lost or self.counts["rewind"] > 0, "accepted mail was neither consumed nor answered", name, lost)
