"""What must be true of a store, told by watching operations and replies. It knows the rules of `store.base`, and no store."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...actors.ids import root_of
from ...store import base as b
from .expect import Violation, expect, is_a
from .ghost_memory import GhostMemory

NOTHING = (0, 0, 0, 0)


@dataclass
class Seen:
    """What is known of one turn."""

    new: b.NewTurn
    created: int
    snapshot: bytes
    schema: int
    status: str
    version: int = 0
    save_id: str = ""
    owner: str | None = None
    node: str | None = None
    epoch: int = 0
    lease: int = 0
    due: int | None = None
    ended: bool = False
    cancel: str | None = None
    acked: str | None = None
    parked_mark: bool = False
    crashes: int = 0
    mail: dict[str, b.Mail] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    waits: dict[str, b.WaitRow] = field(default_factory=dict)
    history: list[bytes] = field(default_factory=list)
    events: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    event_count: int = 0
    usage: tuple[int, int, int, int] = NOTHING

    @property
    def parked(self) -> bool:
        """Tell whether it is quarantined and no cancel wants it."""
        return self.parked_mark and not self.flagged

    @property
    def flagged(self) -> bool:
        """Tell whether its cancel flag is up, or was acknowledged."""
        return (self.cancel or self.acked) is not None

    def shows(self, token: b.Token) -> bool:
        """Tell whether a token is that of the owner."""
        return (self.owner, self.epoch) == (token.activation, token.epoch)

    def runs(self, by: b.ClaimBy) -> bool:
        """Tell whether a claimer can run it, or end it."""
        name = f"{self.new.agent}@{self.new.agent_version}"
        ends = self.cancel is not None or self.acked is not None
        return self.schema <= by.schema and (ends or by.agents is None or name in by.agents)


@dataclass
class Tree:
    """What is known of a root's tree."""

    turns: list[str] = field(default_factory=list)
    commands: dict[str, bytes] = field(default_factory=dict)
    waits: dict[str, bytes] = field(default_factory=dict)
    calls: dict[str, bytes] = field(default_factory=dict)
    replies: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Ghost:
    """The rules. `saw` judges one operation with its reply, and remembers what has become true."""

    turns: dict[str, Seen] = field(default_factory=dict)
    trees: dict[str, Tree] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)
    memory: GhostMemory = field(default_factory=GhostMemory)

    def saw(self, op: b.Op, reply: b.Reply, now: int) -> None:
        """Judge a reply. :raises Violation: if a rule is broken."""
        name = type(op).__name__.lower()
        rule = getattr(self, f"_{name}", None) or getattr(self.memory, name, None)
        try:
            if rule is not None:
                rule(op, reply, now)
        except Violation as fault:
            raise Violation(f"{fault}\n  {op}\n  {reply}") from fault

    # -- what writes

    def _create(self, op: b.Create, reply: b.Reply, now: int) -> None:
        new, claim = op.new, op.claim
        turn = self.turns.get(new.turn)
        if turn is not None:
            if turn.new.digest != new.digest:
                return expect(isinstance(reply, b.KeyReused), "another start took the id")
            if claim and claim.activation == turn.owner:
                return self._claimed(turn, claim, reply, now)
            return expect(reply == b.Existing(new.turn), "the same start was made twice")
        if new.conversation is not None and (busy := self.open.get(new.conversation)):
            return self._behind(op, busy, self.queues.setdefault(new.conversation, []), reply, now)
        expect(isinstance(reply, b.Created | b.Claimed), "a free conversation, or a new id, was refused")
        if new.conversation is not None:
            self.open[new.conversation] = new.turn
        turn = self._add(new, now)
        if claim and turn.runs(claim):
            return self._claimed(turn, claim, reply, now)
        turn.due = new.wake if new.wake is None else max(now, new.wake)
        return expect(isinstance(reply, b.Created), "nobody may own it")

    def _behind(self, op: b.Create, busy: str, queue: list[str], reply: b.Reply, now: int) -> None:
        full = op.when_busy == "queue" and len(queue) >= op.room
        if full or op.when_busy == "refuse":
            want = b.Busy(busy, self.turns[busy].status, len(queue) if full else 0)
            return expect(reply == want, "a conversation has two open turns, or too many that wait", want)
        if op.when_busy == "supersede":
            for name in (busy, *queue):
                self._flag(self.turns[name], op.cause, now)
            expect(not queue, "superseded turns stay in the queue", queue)
        self._add(op.new, now)
        queue.append(op.new.turn)
        return expect(reply == b.Queued(now), "a busy conversation does not queue")

    def _deliver(self, op: b.Deliver, reply: b.Reply, now: int) -> None:
        tree, turn, mail = self.trees.get(root_of(op.turn), Tree()), self.turns.get(op.turn), op.mail
        if mail.command_id in tree.commands:
            return expect(reply == b.Known("command", tree.commands[mail.command_id]), "a receipt was not found by command")
        if turn is None:
            return expect(isinstance(reply, b.Gone), "mail for nobody")
        if mail.wait_id in tree.waits:
            return expect(reply == b.Known("wait", tree.waits[mail.wait_id]), "an answered wait takes another answer")
        if mail.message_id in tree.replies:
            return expect(reply == b.Replied(tree.replies[mail.message_id]), "an answer was lost")
        fresh = mail.message_id not in turn.ids
        if fresh:
            if turn.ended:
                return expect(reply == b.Closed(turn.status), "a terminal turn takes mail")
            if len(turn.mail) >= op.cap and not (op.runtime and mail.command_id is None):
                return expect(reply == b.Full(len(turn.mail)), "the mailbox has no bound")
            self._post(turn, mail, now)
        return self._after_mail(turn, op.claim, reply, now, fresh=fresh)

    def _cancel(self, op: b.Cancel, reply: b.Reply, now: int) -> None:
        turn = self.turns.get(op.turn)
        if turn is None:
            return expect(isinstance(reply, b.Gone), "cancel of nobody")
        if turn.ended:
            return expect(reply == b.Closed(turn.status), "cancel of a terminal turn")
        return self._after_mail(turn, op.claim, reply, now, fresh=self._flag(turn, op.cause, now))

    def _claim(self, op: b.Claim, reply: b.Reply, now: int) -> None:
        turn, by = self.turns.get(op.turn), op.by
        if turn is None or turn.ended or (turn.owner is None and turn.parked):
            return expect(isinstance(reply, b.Gone), "there is nothing to claim")
        if turn.owner is not None and turn.owner != by.activation:
            return expect(reply == b.Held(turn.node), "an owner was robbed")
        if turn.owner is None:
            if turn.due is None or turn.due > now:
                return expect(isinstance(reply, b.NotDue), "claimed too early")
            if turn.schema > by.schema:
                return expect(reply == b.TooNew(turn.schema), "a newer snapshot was given out")
            if not turn.runs(by):
                return expect(isinstance(reply, b.UnknownAgent), "a node got an agent that it does not know")
        return self._claimed(turn, by, reply, now)

    def _renew(self, op: b.Renew, reply: b.Reply, now: int) -> None:
        flags: list[int] = []
        for name, token in op.leases:
            turn = self.turns.get(name)
            if turn is None or not turn.shows(token):
                flags.append(0)
            else:
                turn.lease = now + op.lease_ms
                flags.append(1 + bool(turn.mail) + 2 * (turn.cancel is not None))
        expect(reply == b.Renewed(now, tuple(flags)), "wrong flags", flags)

    def _save(self, op: b.Save, reply: b.Reply, now: int) -> None:
        turn = self.turns.get(op.turn)
        if turn is None:
            return expect(isinstance(reply, b.Fenced), "a save for nobody")
        if turn.save_id == op.save_id:
            owned = turn.shows(op.token)
            return self._saved(turn, op, reply, now, owned=owned, replayed=True)
        if not turn.shows(op.token):
            return expect(isinstance(reply, b.Fenced), "a stale owner's save was accepted")
        counts = (turn.version, len(turn.history), turn.event_count)
        wanted = (op.version, op.messages.at, op.events.at)
        if any(have < want for have, want in zip(counts, wanted, strict=True)):
            return expect(reply == b.Behind(*counts), "a gap was saved over")
        if counts != wanted:
            return expect(reply == b.Conflict(turn.version), "snapshots fork")
        expect(isinstance(reply, b.Saved), "the owner's save was refused")
        self._apply(turn, op, now)
        owned = op.mode is b.Mode.KEEP
        if op.mode is b.Mode.SUSPEND:
            owned = bool(turn.mail) or turn.cancel is not None
        if owned:
            turn.lease = now + op.lease_ms
        else:
            self._release(turn, op, now)
        return self._saved(turn, op, reply, now, owned=owned, replayed=False)

    def _abandon(self, op: b.Abandon, reply: b.Reply, now: int) -> None:
        turn = self.turns.get(op.turn)
        if turn is None or not turn.shows(op.token):
            return expect(isinstance(reply, b.Fenced), "abandoned by a stranger")
        turn.owner, turn.node, turn.due = None, None, now + op.delay_ms
        return expect(isinstance(reply, b.Done), "an owner cannot leave")

    def _reap(self, op: b.Reap, reply: b.Reply, now: int) -> None:
        turn = self.turns.get(op.turn)
        if turn is None or turn.owner is None:
            return expect(isinstance(reply, b.Gone), "reaped nobody")
        if turn.lease + op.grace_ms > now and (op.dead_node is None or op.dead_node != turn.node):
            return expect(reply == b.Held(turn.node), "a living owner was reaped")
        turn.owner, turn.node = None, None
        turn.crashes += 1
        turn.parked_mark = turn.parked_mark or turn.crashes > op.max_crashes
        wait = 0 if turn.crashes == 1 else min(60_000, op.back_off_ms * 2 ** (turn.crashes - 2))
        turn.due = None if turn.parked else now + wait
        return expect(reply == b.Reaped(turn.crashes, turn.parked_mark), "a dead owner stays", turn.crashes)

    def _quarantine(self, op: b.Quarantine, reply: b.Reply, now: int) -> None:
        turn = self.turns.get(op.turn)
        if turn is None or not turn.shows(op.token):
            return expect(isinstance(reply, b.Fenced), "parked by a stranger")
        turn.owner, turn.node, turn.due, turn.parked_mark = None, None, None, True
        return expect(isinstance(reply, b.Done), "an owner cannot park")

    def _revive(self, op: b.Revive, reply: b.Reply, now: int) -> None:
        turn = self.turns.get(op.turn)
        if turn is None or not turn.parked_mark:
            return expect(isinstance(reply, b.Gone), "revived what was not parked")
        turn.parked_mark, turn.crashes = False, 0
        self._rouse(turn, now)
        return expect(isinstance(reply, b.Done), "cannot be revived")

    def _discard(self, op: b.Discard, reply: b.Reply, now: int) -> None:
        turn = self.turns.get(op.turn)
        if turn is None or turn.ended or not turn.parked_mark:
            return expect(isinstance(reply, b.Gone), "discarded what was not parked")
        turn.status = op.status
        self._end(turn, op.closing, now)
        if op.notify is not None and turn.new.parent is not None:
            self._send(turn.new.parent, op.notify, now)
        return expect(isinstance(reply, b.Done), "cannot be discarded")

    # -- what reads

    def _readmail(self, op: b.ReadMail, reply: b.Reply, now: int) -> None:
        turn = self.turns[op.turn]
        expect(reply == b.MailBatch(now, tuple(turn.mail.values())[: op.batch], turn.cancel), "mail was lost or kept")

    def _find(self, op: b.Find, reply: b.Reply, now: int) -> None:
        tree = self.trees.get(op.root, Tree())
        found = [*map(tree.commands.get, op.commands), *map(tree.waits.get, op.waits), *map(tree.calls.get, op.calls)]
        expect(reply == b.Found(tuple(found)), "a receipt was lost")

    def _readreplies(self, op: b.ReadReplies, reply: b.Reply, now: int) -> None:
        tree = self.trees.get(root_of(op.turn), Tree())
        expect(reply == b.Found(tuple(map(tree.replies.get, op.message_ids))), "an answer was lost")

    def _readhistory(self, op: b.ReadHistory, reply: b.Reply, now: int) -> None:
        entries = self.turns[op.turn].history[op.start : op.start + op.limit]
        expect(reply == b.Entries(tuple(entries)), "history has a gap")

    def _readevents(self, op: b.ReadEvents, reply: b.Reply, now: int) -> None:
        turn = self.turns[op.turn]
        found = [batch for batch in turn.events if batch[0] + batch[1] > op.after + 1][: op.limit]
        expect(reply == b.EventBatches(tuple(found), turn.event_count, turn.ended), "events have a gap")

    def _versions(self, op: b.Versions, reply: b.Reply, now: int) -> None:
        reply = is_a(reply, b.Progress)
        known = [self.turns.get(name) for name in op.turns]
        want = [(-1, 0) if turn is None else (turn.version, turn.event_count) for turn in known]
        expect([(version, last) for version, last, *_ in reply.turns] == want, "progress is wrong", want)

    def _due(self, op: b.Due, reply: b.Reply, now: int) -> None:
        reply = is_a(reply, b.DueTurns)
        free = [(turn.due, name) for name, turn in self.turns.items() if turn.owner is None and turn.due is not None]
        ready = sorted((due, name) for due, name in free if due <= now)
        later = min((due for due, _ in free if due > now), default=None)
        page = [name for _, name in ready[op.offset : op.offset + op.limit]]
        expect(list(reply.turns) == page, "a turn with work is not found, or one without is", page)
        expect(reply.next == later, "the next wake is wrong", later)

    def _expired(self, op: b.Expired, reply: b.Reply, now: int) -> None:
        reply = is_a(reply, b.DueTurns)
        over = {
            name
            for name, turn in self.turns.items()
            if turn.owner is not None and (turn.lease + op.grace_ms <= now or turn.node in op.dead_nodes)
        }
        expect(set(reply.turns) <= over and len(reply.turns) == min(op.limit, len(over)), "lost owners", over)

    def _openturn(self, op: b.OpenTurn, reply: b.Reply, now: int) -> None:
        name = self.open.get(op.conversation)
        want = b.Opened(None) if name is None else b.Opened(name, self.turns[name].status)
        expect(reply == want, "a conversation is blocked by a dead turn, or forgot its open one")

    def _listqueue(self, op: b.ListQueue, reply: b.Reply, now: int) -> None:
        queue = self.queues.get(op.conversation, [])
        expect(reply == b.DueTurns(tuple(queue), None, now), "a queue lost a turn, or its order", queue)

    def _listwaits(self, op: b.ListWaits, reply: b.Reply, now: int) -> None:
        reply = is_a(reply, b.WaitListing)
        if op.after is None and reply.next is None:
            rows = [wait for turn in self.turns.values() for wait in turn.waits.values() if op.kind in (None, wait.kind)]
            when = {wait.body: wait.created for wait in rows}
            expect(sorted(when) == sorted(reply.bodies), "the inbox is wrong", rows)
            times = [when[body] for body in reply.bodies]
            expect(times == sorted(times), "the inbox is out of order", times)

    def _look(self, op: b.Look, reply: b.Reply, now: int) -> None:
        turn = self.turns[op.turn]
        reply = is_a(reply, b.Looked)
        state = "T" if turn.ended else "A" if turn.owner is not None else None
        expect(state is None or reply.state == state, "the state is wrong")
        expect(not self._queued(turn) or (reply.state, reply.wake) == ("S", None), "a queued turn is not at rest")
        same = (reply.version, reply.snapshot, reply.status, reply.activation, reply.cancel)
        expect(same == (turn.version, turn.snapshot, turn.status, turn.owner, turn.cancel), "the record is wrong")
        expect((reply.quarantine is not None, reply.crashes) == (turn.parked_mark, turn.crashes), "quarantine is wrong")
        expect((reply.message_count, reply.event_count) == (len(turn.history), turn.event_count), "counts are wrong")
        tree = [self.turns[name] for name in self._below(op.turn)]
        bodies = sorted(wait.body for one in tree for wait in one.waits.values())
        expect(sorted(reply.wait_bodies) == bodies, "open waits of the tree")
        expect(reply.live_turns == sum(not one.ended for one in tree), "live turns of the tree")

    def _below(self, name: str) -> list[str]:
        every = self.trees[root_of(name)].turns
        return [name, *(deeper for child in every if self.turns[child].new.parent == name for deeper in self._below(child))]

    def _queued(self, turn: Seen) -> bool:
        return turn.new.turn in self.queues.get(turn.new.conversation or "", ())

    def _may_run(self, turn: Seen) -> bool:
        talk = turn.new.conversation
        return talk is None or turn.flagged or (not self._queued(turn) and self.open.get(talk) == turn.new.turn)

    # -- what becomes true

    def _add(self, new: b.NewTurn, now: int) -> Seen:
        turn = self.turns[new.turn] = Seen(new, now, new.snapshot, new.schema, new.status)
        self.trees.setdefault(root_of(new.turn), Tree()).turns.append(new.turn)
        turn.history.extend(new.messages.bodies)
        if new.events.count:
            turn.events.append((1, new.events.count, 0, new.events.body))
            turn.event_count = new.events.count
        return turn

    def _claimed(self, turn: Seen, by: b.ClaimBy, reply: b.Reply, now: int) -> None:
        expect(isinstance(reply, b.Claimed), "a due turn was not given")
        reply = is_a(reply, b.Claimed)
        if turn.owner == by.activation:
            expect(reply.epoch == turn.epoch, "its own claim gave another token")
        else:
            expect(turn.owner is None, "two owners")
            expect(self._may_run(turn), "two turns of a conversation run, or one runs before its time")
            expect(reply.epoch > turn.epoch, "a token was used before")
        turn.owner, turn.node, turn.epoch = by.activation, by.node, reply.epoch
        turn.lease, turn.due = now + by.lease_ms, None
        expect((reply.version, reply.snapshot) == (turn.version, turn.snapshot), "not the last snapshot")
        expect(reply.mail == tuple(turn.mail.values())[: by.batch], "mail was lost or kept")
        expect(reply.cancel == turn.cancel, "the cancel flag is wrong")
        expect((reply.message_count, reply.event_count) == (len(turn.history), turn.event_count), "counts are wrong")
        expect(reply.tail == tuple(turn.history[-by.tail :] if by.tail else ()), "the tail is wrong")
        expect((reply.crashes, reply.quarantined) == (turn.crashes, turn.parked_mark), "crashes are wrong")

    def _saved(self, turn: Seen, op: b.Save, reply: b.Reply, now: int, *, owned: bool, replayed: bool) -> None:
        total = tuple(map(sum, zip(*(self.turns[name].usage for name in self.trees[root_of(op.turn)].turns), strict=True)))
        mail = tuple(turn.mail.values())[: op.batch] if owned else ()
        cancel = turn.cancel if owned else None
        want = b.Saved(turn.version, now, owned, mail, cancel, total, replayed)  # pyright: ignore[reportArgumentType]
        expect(reply == want, "the reply to a save should be", want)

    def _apply(self, turn: Seen, op: b.Save, now: int) -> None:
        tree = self.trees[root_of(op.turn)]
        for mid in op.consumed:
            turn.mail.pop(mid, None)
            turn.ids.add(mid)
        turn.history.extend(op.messages.bodies)
        if op.events.count:
            turn.events.append((turn.event_count + 1, op.events.count, turn.epoch, op.events.body))
            turn.event_count += op.events.count
        turn.snapshot, turn.schema, turn.status = op.snapshot, op.schema, op.status
        turn.version, turn.save_id, turn.usage = turn.version + 1, op.save_id, op.usage
        if op.progress:
            turn.crashes = 0
        if op.ack_cancel and turn.cancel is not None:
            turn.cancel, turn.acked = None, turn.cancel
        for receipt in op.receipts:
            tree.waits[receipt.wait_id] = receipt.body
            if receipt.command_id is not None:
                tree.commands[receipt.command_id] = receipt.body
            if receipt.call_key is not None:
                tree.calls[receipt.call_key] = receipt.body
        tree.replies.update((row.message_id, row.body) for row in op.replies)
        for wait in op.closed:
            turn.waits.pop(wait, None)
        turn.waits.update((row.id, row) for row in op.opened)
        cause = turn.cancel or turn.acked
        for new in op.create:
            if new.turn not in self.turns:
                child = self._add(new, now)
                child.due = now
                child.cancel = cause
        for name, mail in op.deliver:
            self._send(name, mail, now)
        for name, cause in op.cancel:
            if (other := self.turns.get(name)) is not None and not other.ended:
                self._flag(other, cause, now)
        self.memory.saved(op, now)

    def _release(self, turn: Seen, op: b.Save, now: int) -> None:
        if op.mode is b.Mode.END:
            return self._end(turn, op.closing, now)
        turn.owner, turn.node = None, None
        turn.due = op.wake if op.mode is b.Mode.SUSPEND else now
        return None

    def _end(self, turn: Seen, closing: bytes, now: int) -> None:
        tree = self.trees[root_of(turn.new.turn)]
        tree.replies.update(dict.fromkeys(turn.mail, closing))
        turn.mail, turn.waits = {}, {}
        turn.ended, turn.parked_mark, turn.owner, turn.node, turn.due = True, False, None, None, None
        talk = turn.new.conversation
        if talk is not None and self.open.get(talk) == turn.new.turn:
            del self.open[talk]
            if queue := self.queues.get(talk):
                self.open[talk] = queue.pop(0)
                self.turns[self.open[talk]].due = now

    def _after_mail(self, turn: Seen, claim: b.ClaimBy | None, reply: b.Reply, now: int, *, fresh: bool) -> None:
        due = turn.due is not None and turn.due <= now
        if claim and (turn.owner == claim.activation or (turn.owner is None and due and turn.runs(claim) and not turn.parked)):
            return self._claimed(turn, claim, reply, now)
        return expect(reply == b.Delivered(now, turn.node, fresh, turn.parked_mark), "not stored, or stored twice", fresh)

    def _rouse(self, turn: Seen, now: int) -> None:
        if turn.owner is None and not turn.parked and not self._queued(turn):
            turn.due = now if turn.due is None else min(now, turn.due)

    def _flag(self, turn: Seen, cause: str, now: int) -> bool:
        fresh = (turn.cancel or turn.acked) is None
        if fresh:
            turn.cancel = cause
            if self._queued(turn):
                self.queues[turn.new.conversation or ""].remove(turn.new.turn)
        if fresh or (turn.cancel is not None and turn.due is None):
            self._rouse(turn, now)
        return fresh

    def _post(self, turn: Seen, mail: b.Mail, now: int) -> None:
        turn.mail[mail.message_id] = b.Mail(mail.message_id, mail.body, mail.command_id, mail.wait_id, now)
        turn.ids.add(mail.message_id)
        self._rouse(turn, now)

    def _send(self, name: str, mail: b.Mail, now: int) -> None:
        turn = self.turns.get(name)
        if turn is not None and not turn.ended and mail.message_id not in turn.ids:
            self._post(turn, mail, now)
