"""One activation of one turn: its mailbox, its saves, its effects.

The loop: take what has come, let the machine make a draft, save it, then act. Nothing that the draft says is told to anybody before
the save is acknowledged, and nothing of it survives a save that failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from ..actors.agent import Agent
from ..actors.chat import Usage
from ..actors.errors import LeaseLost, SnapshotTooLarge, StoreUnavailable, VersionConflict
from ..actors.events import Event, EventType
from ..actors.machine import limits, plans, texts
from ..actors.machine import messages as m
from ..actors.machine.advance import next_deadline
from ..actors.machine.draft import (
    MEMORY,
    NOBODY,
    NOTHING_RESOLVED,
    Action,
    CallModel,
    Context,
    Draft,
    Outcome,
    Park,
)
from ..actors.machine.handle import handle
from ..actors.model import ModelRequest
from ..actors.record import JsonObject
from ..actors.tools import Tool
from ..actors.turn import TurnState, Used
from ..actors.used import minus
from ..actors.window import View
from ..store import base, codec
from ..store.records import END, KEEP
from . import memory, persist, tasks
from .acting import act, start_model
from .guard import failure_of
from .host import Host
from .intake import Intake
from .log import log
from .mailbox import Mailbox
from .recall import Recall
from .rewind import recover
from .saving import Saver
from .steps import Steps
from .watch import Rested

MOST_STARTS = 1024


class Actor(msgspec.Struct, eq=False, gc=False):
    """The live activation of a turn in this process; it owns nothing before it is told when its claim was sent (`extend`).

    `parked`: it ended by its own wish, as the turn was put into quarantine. `forgotten`: the store has forgotten what this
    activation cannot repeat. `first` is what the turn asked for when it was created, in the very step that claimed it.
    """

    host: Host
    state: TurnState
    token: base.Token
    version: int
    agent: Agent | None
    delegates: Mapping[str, Agent[Any]] = NOBODY
    turn_id: str = ""
    deadline: float = 0.0
    mailbox: Mailbox = msgspec.field(default_factory=Mailbox)
    intake: Intake = cast("Intake", None)
    saver: Saver = cast("Saver", None)
    recall: Recall = cast("Recall", None)
    steps: Steps | None = None
    started: dict[str, m.Start] = {}
    asking: frozenset[str] = limits.NO_CALLS
    resolved: Mapping[str, Tool[..., object] | None] = NOTHING_RESOLVED
    stopping: frozenset[str] = limits.NO_CALLS
    tasks: dict[asyncio.Task[None], str] = {}
    threads: dict[asyncio.Task[object], str] = {}
    model_task: asyncio.Task[None] | None = None
    seen: Usage | None = None
    others: Used | None = None
    accepting: bool = True
    first: Sequence[Action] = ()
    lost: bool = False
    parked: bool = False
    forgotten: bool = False
    _fault: Exception | None = None
    _next: int | None = None

    def __post_init__(self) -> None:
        agent = self.agent
        self.turn_id = self.state.turn_id
        self.intake = Intake(self)
        self.saver = Saver(self)
        self.recall = Recall(self)
        if agent is not None and agent.hooks.step:
            self.steps = Steps(self)

    # ------------------------------------------------------------------------------------------------ what others ask

    @property
    def executor(self) -> Agent:
        """Return the agent of an actor that runs effects."""
        assert self.agent is not None, "effects are only started where the agent is known"
        return self.agent

    @property
    def watched(self) -> bool:
        """Tell whether anybody sees live events of this turn."""
        return self.host.watch.wants_live(self.turn_id)

    def cancelled(self) -> bool:
        """Tell a tool whether its turn is to end."""
        return self.lost or self.state.ending is not None

    def extend(self, sent: float) -> None:
        """The store extended the lease with a call sent at this (monotonic) time; calls may come back in another order."""
        until = sent + self.host.term
        if until <= self.deadline:
            return
        self.deadline = until

    def owns(self) -> bool:
        """Tell whether the lease is certainly ours now; cheap, asked before every effect."""
        return not self.lost and self.host.world.monotonic() < self.deadline

    def lose(self) -> None:
        """The lease is lost: stop, save nothing, tell nobody."""
        self.lost = True
        self.mailbox.ring()
        self.saver.wake()

    def note_started(self, *starts: m.Start) -> None:
        """Remember starts, the newest of each call; it matters only if the store forgets them."""
        for start in starts:
            known = self.started.pop(start.call_id, None)
            self.started[start.call_id] = start if known is None or start.attempt >= known.attempt else known
            if len(self.started) > MOST_STARTS:
                del self.started[next(iter(self.started))]

    def known_starts(self) -> list[m.Start]:
        """Return the starts this activation knows of: its own, and those that the state had from earlier ones."""
        starts = {
            call.id: m.Start(call.id, call.attempt, call.effect)
            for call in self.state.calls
            if call.attempt and call.child is None and call.activation != self.token.activation
        }
        return [*{**starts, **self.started}.values()]

    def interrupt(self) -> None:
        """End what runs here without waiting for it, and give the turn away; a thread cannot be ended, its call stays as it is."""
        for task, name in list(self.tasks.items()):
            if name.removeprefix("tool ") not in self.threads.values():
                task.cancel()
        self.asking = limits.NO_CALLS
        self.mailbox.tell(m.HandOff(frozenset(self.threads.values())))

    def ask(self, message_id: str, message: m.MailMessage) -> asyncio.Future[Outcome]:
        """Put a local message into the mailbox; the future gets its answer once that is saved, or `Rerouted`."""
        future = self.intake.expect(message_id)
        self.mailbox.tell(m.Received(message_id, message, self.host.now()))
        return future

    def publish(self, type: EventType, data: JsonObject) -> None:
        """Show a live event to those who watch."""
        self.host.watch.publish(self._event(type, self.host.now(), data, self.state.step_count))

    def thread_ended(self, task: asyncio.Task[object]) -> None:
        """A worker thread has come back, perhaps long after anybody waited for it."""
        self.threads.pop(task, None)
        if not task.cancelled():
            task.exception()

    def model_ended(self) -> None:
        """The model request under way has ended, or was given up."""
        self.model_task = None
        self.seen = None
        self.recall.over()

    def request(self, agent: Agent, view: View, iteration: int, failures: int) -> ModelRequest:
        """Return the model request that the turn's history asks for, as far as the agent's window shows it (`view`)."""
        state = self.state
        offered = plans.definitions(state, agent, self.delegates)
        return ModelRequest(
            messages=view.messages(),
            tools=(*offered, *agent.definitions) if offered else agent.definitions,
            options=plans.options_for(agent.options, offered),
            output_schema=agent.output.schema,
            turn_id=state.turn_id,
            conversation_id=state.conversation_id,
            agent_id=state.agent_id,
            iteration=iteration,
            attempt=failures + 1,
        )

    # ------------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Live until the turn is released, terminal, or lost; every task of this actor has ended then.

        What was asked for when the turn was created, and claimed in one step, comes `first`.
        """
        mailbox, intake = self.mailbox, self.intake
        try:
            if self.first:
                act(self, self.first)
                self.first = ()
            self._next = next_deadline(self.state, self.host.settings.cancel_grace)
            while not self.lost:
                left = None if self._next is None else self._next - self.host.now()
                due = left is not None and left <= 0
                if not (due or mailbox.messages or mailbox.rung):
                    await self.host.world.rest(mailbox.armed(), None if left is None else left / 1000)
                    continue
                batch = await intake.collect(due=due) if due or mailbox.rung or intake.sent() else mailbox.take()
                if self.lost:
                    break
                if (batch or intake.pending) and not await self._commit(self._handle(batch), batch):
                    break
        except (LeaseLost, StoreUnavailable) as error:
            self.lost = True
            log.warning("activation_lost", turn=self.turn_id, epoch=self.token.epoch, error=str(error))
        finally:
            self.accepting = False
            try:
                if self.lost or self.tasks or self.steps is not None:
                    await self._wind_up()
            finally:
                intake.reroute()
                self._let_go()

    async def _wind_up(self) -> None:
        """End what runs here; where the turn is lost, see to it that no start is forgotten."""
        if self.lost:
            self.host.watch.ring(self.turn_id)  # who watches must hear of the next owner, however long this takes
        if self.tasks or self.steps is not None:
            if not self.lost:
                self.intake.reroute()
            await tasks.stop(self)
        if self.lost:
            await recover(self)  # before who waits here sends again, and wakes a turn that has forgotten its starts

    def _let_go(self) -> None:
        self._fault = None  # its traceback knows this actor
        self.intake.let_go()
        self.saver.let_go()
        self.recall.let_go()
        if self.steps is not None:
            self.steps.let_go()

    def _handle(self, batch: list[m.Message]) -> Draft:
        """Let the machine make a draft; what it cannot digest (text that is no Unicode, numbers out of range) fails the turn.

        A policy is being asked until its answer is taken in here: it may have spoken while this batch was put together.
        """
        if self.asking:
            self._take_answers(batch)
        try:
            return handle(self.state, batch, self._context())
        except Exception as error:
            log.exception("machine_failed", turn=self.turn_id)
            self._fault = error
            return self._failed(batch)

    def _take_answers(self, batch: list[m.Message]) -> None:
        """Note which of those that are being asked have answered."""
        for message in batch:
            if isinstance(message, m.PolicyDecided | m.PolicyFailed | m.ToolResolved):
                self.asking -= {message.call_id}
                if isinstance(message, m.ToolResolved):
                    self.resolved = {**self.resolved, message.call_id: message.tool}
            elif isinstance(message, m.MemoryRead | m.MemoryFailed):
                self.asking -= {MEMORY}

    def _context(self) -> Context:
        host, settings = self.host, self.host.settings
        spent = self.recall.spent()
        return Context(
            now=host.now(),
            activation=self.token.activation,
            agent=self.agent,
            execute=self.agent is not None and not host.draining,
            asking=self.asking,
            spread=host.world.spread(),
            cancel_grace=settings.cancel_grace,
            seen=spent if self.seen is None else spent + self.seen,
            others=self.others,
            park_changed=settings.park_changed,
            delegates=self.delegates,
            resolved=self.resolved,
        )

    async def _commit(self, draft: Draft, batch: list[m.Message]) -> bool:
        """Save a draft, then act on it; tell whether the actor lives on.

        A request to the model changes nothing outside, so it may leave while the save that holds it is under way; its reply waits
        in the mailbox until the save is acknowledged, and dies with this actor if it is not.

        What changes nothing is saved only to let go of the turn: where nothing runs here, and nothing can be started.
        """
        for action in draft.actions:
            if type(action) is Park:
                return await self._parked(action)
        intake = self.intake
        answers = (*draft.answers, *intake.broken) if intake.broken else draft.answers
        saves = draft.changed or intake.consumed or draft.asks_tree
        if not saves and persist.release_of(draft)[0] is KEEP:
            act(self, draft.actions)
            intake.tell(answers)
            return True
        if draft.edited is not None:
            await memory.show_edits(self, draft)
        op = self._save(draft, answers)
        if op is None:
            return await self._unsaveable(batch)
        self.recall.remember(draft.messages)
        for action in draft.actions:
            if type(action) is CallModel and self.recall.ready and self.owns() and self.executor.hooks.early:
                start_model(self, action)
                draft.actions.remove(action)
                break
        op, reply = await self.saver.save(op, draft.state.children)
        if not isinstance(reply, base.Saved):
            raise self._refused(op, reply)
        self.version = reply.version
        if self.state.definition and self.state.definition != draft.state.definition:
            log.warning("definition_changed", turn=self.turn_id, agent=self.executor.key)
        self.state = draft.state
        self.others = minus(reply.usage, op.usage)
        self._fault = None
        if self.steps is not None:
            self.steps.saved(self.state)
            if not reply.owned:
                await self.steps.close("released")
        self._shown(draft, owned=reply.owned)
        intake.saved(draft.receipts, reply)
        if draft.actions:
            flagged, spent = reply.cancel is not None, limits.unaffordable(draft, reply.usage)
            unconfirmed = op.confirm and not reply.confirmed
            act(self, draft.actions, flagged=flagged, unconfirmed=unconfirmed, spent=spent)
        if answers:
            intake.tell(answers)
        if draft.asks_tree:
            self.mailbox.tell(m.TreeKnown())
        if reply.owned:
            self._next = next_deadline(self.state, draft.context.cancel_grace)
        return reply.owned and op.mode is not END

    def _save(self, draft: Draft, answers: Sequence[tuple[str, Outcome]]) -> base.Save | None:
        consumed = self.intake.consumed
        stored = self.intake.stored(answers) if consumed else ()
        try:
            return persist.save_of(draft, self.token, self.version, self.host.settings, stored, consumed, self.saver.rewinds)
        except (SnapshotTooLarge, UnicodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            if self._fault is None:
                self._fault = error
                return None
            raise

    async def _unsaveable(self, batch: list[m.Message]) -> bool:
        """What was to be saved cannot be: the turn fails instead; where even that cannot be saved, it is parked."""
        try:
            draft = self._failed(batch)
            if not any(isinstance(action, Park) for action in draft.actions):
                return await self._commit(draft, [])
            raise ValueError("its state cannot be worked with")
        except (SnapshotTooLarge, UnicodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            await self._park(Park(f"it cannot be saved: {error}"[:500]))
            return False

    def _failed(self, batch: list[m.Message]) -> Draft:
        """Throw a step away and fail the turn; commands of the step find it closed, and its calls are known to have ended."""
        assert self._fault is not None
        failure = failure_of(self._fault)
        kept: list[m.Message] = [message for message in batch if isinstance(message, m.Received)]
        text = texts.failed("error", "What the call ended with cannot be stored.")
        kept += [
            m.ToolFailed(message.call_id, message.attempt, "error", failure, text)
            for message in batch
            if isinstance(message, m.ToolReturned | m.ToolFailed)
        ]
        try:
            return handle(self.state, [m.Fault(failure), *kept], self._context())
        except Exception as error:  # its state makes no sense; whoever takes it up next would fall over it as well
            log.exception("machine_failed", turn=self.turn_id)
            draft = Draft(self.state, self._context())
            draft.actions.append(Park(f"its state cannot be worked with: {error!r}"[:500]))
            return draft

    def _refused(self, op: base.Save, reply: base.Reply) -> Exception:
        self.lost = True
        self.forgotten = isinstance(reply, base.Behind | base.Conflict)
        if isinstance(reply, base.Conflict):
            return VersionConflict(self.turn_id, op.version, reply.version)
        return LeaseLost(self.turn_id)

    def _shown(self, draft: Draft, *, owned: bool) -> None:
        """Tell watchers and listeners of this process what has been saved."""
        watch = self.host.watch
        rested = None
        if not owned:
            had_children = bool(draft.state.children or draft.original.children or draft.children)
            rested = Rested(draft.state, self.version, had_children, draft.shown)
        watch.saved(self.turn_id, rested)
        if watch.listeners:
            first = draft.state.event_count - len(draft.events) + 1
            for sequence, (kind, at, data, step) in enumerate(draft.events, first):
                watch.tell(self._event(kind, at, data, step, sequence))
            for child in draft.children:
                watch.tell_all(persist.first_events(child))

    def _event(self, type: EventType, at: int, data: JsonObject, step: int, sequence: int = 0) -> Event:
        return codec.event_of(codec.source_of(self.state), type, at, data, step, sequence, self.token.epoch)

    async def _parked(self, action: Park) -> bool:
        await self._park(action)
        if self._fault is None:  # else the cancel would find what this batch has found
            await self._wake_for_cancel()
        return False

    async def _park(self, action: Park) -> None:
        self.lost = self.parked = True
        log.error("turn_quarantined", turn=self.turn_id, reason=action.reason)
        await self.host.call(base.Quarantine(turn=self.turn_id, token=self.token, reason=action.reason))
        self.host.watch.ring(self.turn_id)

    async def _wake_for_cancel(self) -> None:
        """Wake the turn that was just parked for a cancel that came too late for this activation to see."""
        reply = await self.host.call(base.ReadMail(turn=self.turn_id, batch=1))
        if isinstance(reply, base.MailBatch) and reply.cancel is not None:
            await self.host.call(base.Cancel(turn=self.turn_id, cause=reply.cancel))
