"""A turn's address. Making one does no I/O; it works on every node."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Generic, final

from ..actors.agent import Agent
from ..actors.chat import ChatMessage, UserMessage
from ..actors.checks import MAX_ID, MAX_TEXT, check_flag, check_text, check_whole
from ..actors.errors import NotQuarantined, TurnNotFound
from ..actors.events import TERMINAL_EVENTS, Event
from ..actors.history import readable
from ..actors.ids import child_id, is_turn_id, root_of
from ..actors.machine.activate import CHANGED
from ..actors.machine.draft import Noted, Outcome, Refusal
from ..actors.machine.messages import ChildEnded, DefinitionAccepted, StartChild, Suspend
from ..actors.output import Out, Output, Said
from ..actors.record import JsonValue, Seconds, duration
from ..actors.turn import Failure, Status
from ..actors.view import TurnView, view_of
from ..actors.waits import Receipt, ResumeCommand
from ..store import base, codec
from . import inputs, views
from .errors import refuse
from .starting import find_definition
from .watch import Subscription

if TYPE_CHECKING:
    from .node import Node


@final
class TurnRef(Generic[Out]):
    """The address of a turn; hold as many as you like, anywhere. Waiting on one never owns the turn.

    Its views have their `final_output` as a value of the type that it was made with (by an `Agent`, or by ``output_type=``), else
    as JSON has it. What returns a view of a turn whose output does not fit that type raises `OutputInvalid`; the turn is as it was.
    """

    def __init__(self, node: Node, turn_id: str, output: Output[Out] | None = None) -> None:
        self._node = node
        self._id = turn_id
        self._output = output

    @property
    def id(self) -> str:
        """The turn's id."""
        return self._id

    def __repr__(self) -> str:
        return f"<TurnRef {self._id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TurnRef) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    async def view(self) -> TurnView[Out]:
        """Return the turn as it is stored now.

        :raises TurnNotFound: if there is no such turn.
        """
        return views.typed(views.view_of_look(await self._look(), self._node.types), self._output)

    async def history(self) -> list[ChatMessage]:
        """Return the turn's messages so far; edited calls show the edited arguments and who edited them.

        :raises TurnNotFound: if there is no such turn.
        """
        look = await self._look()
        reply = await self._node.call(base.ReadHistory(turn=self._id, limit=max(1, look.message_count)))
        assert isinstance(reply, base.Entries)
        if not reply.bodies:  # no executor has opened the history yet
            return readable(codec.decode_state(self._id, look.schema, look.snapshot).opening or [])
        return readable(codec.decode_entries(self._id, reply.bodies))

    async def settle(
        self,
        timeout: Seconds | None = None,
        through_retries: bool = False,  # noqa: FBT001, FBT002
    ) -> TurnView[Out]:
        """Wait until the tree (the turn and all below it) is terminal, or nothing in it runs or can run now.

        :param timeout: seconds (or a timedelta) to wait at most.
        :param through_retries: go on waiting while a retry is scheduled.
        :raises TimeoutError: if it takes longer; nothing is changed by that.
        :raises TurnNotFound: if there is no such turn.
        """
        check_flag("through_retries", through_retries)
        limit = inputs.optional_seconds("timeout", timeout)
        return await self._until(limit, views.settled_through_retries if through_retries else views.settled)

    async def submit(self, command: ResumeCommand, timeout: Seconds = 30) -> Receipt:
        """Deliver an answer and return its receipt, once that is stored; repeated with the same ``command_id`` it is the same one.

        :raises AlreadyAnswered: if the wait has ended before; the error carries who ended it, and how.
        :raises AnswerPending: if the answer is stored but not decided within the timeout; ask again with the same id.
        :raises CommandIdReused: if the command's id was accepted with other content before.
        :raises InvalidFormData: if the data, or the edited arguments, do not fit; the wait stays open.
        :raises NotSuspended: if the turn waits for nothing.
        :raises RetryNotDue: if a retry is asked for before its time.
        :raises SuspensionMismatch: if no open wait, or more than one, is meant.
        :raises TurnClosed: if the turn has ended.
        :raises TurnNotFound: if there is no such turn.
        :raises WrongCommand: if this kind of command does not answer that kind of wait.
        :raises MailboxFull: if the turn has too much unread mail.
        """
        inputs.resume_command(command)
        return await self._node.commands.submit(self._id, command, inputs.seconds("timeout", timeout))

    async def resume(
        self, command: ResumeCommand, timeout: Seconds | None = None, *, through_retries: bool = False
    ) -> TurnView[Out]:
        """Deliver an answer, then wait until the turn settles (see `submit` and `settle` for what may be raised)."""
        check_flag("through_retries", through_retries)
        clock = self._node.world.monotonic
        start, limit = clock(), inputs.optional_seconds("timeout", timeout)
        inputs.resume_command(command)
        await self._node.commands.submit(self._id, command, 30.0 if limit is None else min(30.0, limit))
        left = None if limit is None else max(0.0, limit - (clock() - start))
        return await self._until(left, views.settled_through_retries if through_retries else views.settled)

    async def cancel(self, reason: str | None = None, timeout: Seconds | None = None) -> TurnView[Out]:
        """Cancel the turn and all its children; returns when the tree is terminal. A second time does nothing.

        :raises TimeoutError: if that takes longer; the cancel stands.
        :raises TurnNotFound: if there is no such turn.
        """
        check_text("reason", reason, 4096, optional=True)
        limit = inputs.optional_seconds("timeout", timeout)
        await self._raise_flag(reason or "")
        return await self._until(limit, views.tree_terminal)

    async def suspend(self, message: str) -> None:
        """Ask a plain question; it is opened when the calls in flight have ended, before the model is asked again.

        Questions are asked one after the other, each when the one before it has been answered; the same text sent again while it is
        not open yet is one question.

        :raises CommandRefused: if sixteen questions stand behind the next one.
        :raises TurnClosed: if the turn has ended.
        :raises TurnNotFound: if there is no such turn.
        """
        check_text("message", message, MAX_TEXT, empty=False)
        outcome = await self._node.commands.post(self._id, Suspend(message))
        self._noted(outcome)

    async def start_child(
        self, agent: Agent[Said] | str, input: str | UserMessage, metadata: Mapping[str, object] | None = None
    ) -> TurnRef[Said]:
        """Start a child turn that this turn waits for; its outcome enters this turn's history as a message.

        :raises AgentNotFound: if no such agent is known here (on a node that runs nothing: is announced by any other).
        :raises CommandRefused: if this turn has eight turns above it.
        :raises TurnClosed: if this turn has ended.
        :raises TurnNotFound: if there is no such turn.
        """
        node = self._node
        message = inputs.user_message(input, node.settings)
        extra, marks = inputs.metadata(node.types, metadata)
        found = await find_definition(node, agent)
        name = child_id(root_of(self._id), node.world.token(10))
        start = StartChild(
            child_id=name,
            agent_id=found.id,
            agent_version=found.version,
            input=message,
            policy=found.policy,
            instructions=found.instructions,
            metadata=extra or None,
            marks=marks,
            bound=found.agent is not None,
        )
        self._noted(await node.commands.post(self._id, start))
        return TurnRef(node, name, agent.output if isinstance(agent, Agent) else None)

    async def children(self) -> list[TurnRef[JsonValue]]:
        """Return the turn's direct children, oldest first.

        :raises TurnNotFound: if there is no such turn.
        """
        self._check_id()
        items, after = list[TurnRef[JsonValue]](), None
        while True:
            reply = await self._node.call(base.ListTurns(parent=self._id, root=root_of(self._id), limit=200, after=after))
            assert isinstance(reply, base.TurnListing)
            items += [TurnRef(self._node, look.turn) for look in reply.turns]
            if (after := reply.next) is None:
                break
        if not items:
            await self._look()
        return items

    def events(
        self,
        after: int = 0,
        live: bool = True,  # noqa: FBT001, FBT002
        *,
        follow: bool = True,
    ) -> AsyncIterator[Event]:
        """Yield the turn's events behind a cursor, then new ones as they are stored; ends after the terminal one.

        :param after: the sequence of the last event already seen; 0 for all.
        :param live: also yield deltas and progress (``durable=False``); a slow reader loses those, never stored ones.
        :param follow: wait for new ones; without it the iterator ends behind the last one that is stored by now.
        :raises InvalidDefinition: if an argument is wrong (here and now).
        :raises TurnNotFound: if there is no such turn (with the first event).
        """
        check_whole("after", after)
        check_flag("live", live)
        check_flag("follow", follow)
        return self._events(after, live=live, follow=follow)

    async def _events(self, after: int, *, live: bool, follow: bool) -> AsyncGenerator[Event]:
        subscription = self._node.watch.add(self._id, each=True, live=live)
        try:
            if follow:
                self._listen(subscription)
            look = await self._look()
            source = views.source_of_look(look)
            while True:
                subscription.rung = False
                reply = await self._node.call(base.ReadEvents(turn=self._id, after=after))
                if isinstance(reply, base.Gone):
                    raise TurnNotFound(self._id)
                assert isinstance(reply, base.EventBatches)
                for first, _, epoch, body in reply.batches:
                    for event in codec.decode_events(source, first, epoch, body):
                        if event.sequence > after:
                            after = event.sequence
                            yield event
                            if event.type in TERMINAL_EVENTS:
                                return
                if after < reply.last:
                    continue
                if reply.terminal or not follow:
                    return
                while subscription.live:
                    event = subscription.live.popleft()
                    if event.turn_id == self._id:
                        yield event
                self._listen(subscription)
                await subscription.armed()
        finally:
            self._node.watch.drop(subscription)

    async def revive(self, *, by: str | None = None) -> None:
        """End the quarantine of the turn; it may run again at once. One that was parked as its agent has changed goes on with that.

        :raises NotQuarantined: if it is not in quarantine.
        """
        check_text("by", by, MAX_ID, optional=True)
        look = await self._look()
        if (reason := look.quarantine) is None:
            raise NotQuarantined(self._id, look.status)
        if reason.startswith(CHANGED):
            body = codec.encode_mail(DefinitionAccepted(by), self._node.settings.max_message)
            await self._node.call(base.Deliver(turn=self._id, mail=base.Mail(self._node.new_id(), body), runtime=True))
        await self._node.call(base.Revive(turn=self._id))  # "gone": this very call, repeated, or somebody else was faster

    async def discard(self, reason: str, *, by: str | None = None) -> None:
        """End the record of a parked turn, whose snapshot perhaps nobody can read: FAILED; its parent and its conversation go on.

        :raises NotQuarantined: if it is not in quarantine.
        """
        check_text("reason", reason, 4096, empty=False)
        check_text("by", by, MAX_ID, optional=True)
        look = await self._look()
        text = f"turn {self._id} was discarded{f' by {by}' if by else ''}: {reason}"
        closing = codec.encode_outcome(Refusal("TurnClosed", text, status=Status.FAILED.value))
        view = views.view_of_look(look, self._node.types)
        used = (view.usage.input_tokens, view.usage.output_tokens, view.usage.total_tokens, view.tool_call_count)
        ended = ChildEnded(self._id, look.agent, Status.FAILED, None, Failure("Discarded", text), usage=used)
        mail = base.Mail(f"{self._id}/end", codec.encode_mail(ended, self._node.settings.max_message))
        op = base.Discard(
            turn=self._id,
            status=Status.FAILED.value,
            notify=None if look.parent is None else mail,
            closing=closing,
            retention_ms=self._node.settings.retention,
        )
        if isinstance(await self._node.call(op), base.Gone):
            parked, look = look.quarantine is not None, await self._look()
            if not (parked and look.state == "T"):  # else this very call, repeated, has ended it
                raise NotQuarantined(self._id, look.status)
        await self._raise_flag(f"parent {self._id} was discarded")

    # ---------------------------------------------------------------------------------------------------------- inside

    def _listen(self, subscription: Subscription) -> None:
        """Hear what other nodes do with the turn before waiting for it; who lives here tells by itself, also when it leaves."""
        if self._node.placement.live(self._id) is None:
            self._node.watch.listen(subscription)

    def _check_id(self) -> None:
        if not is_turn_id(self._id):
            raise TurnNotFound(self._id)

    async def _look(self) -> base.Looked:
        self._check_id()
        reply = await self._node.call(base.Look(turn=self._id))
        if not isinstance(reply, base.Looked):
            raise TurnNotFound(self._id)
        return reply

    async def _until(self, limit: float | None, done: views.Done) -> TurnView[Out]:
        """Wait until a condition holds, at most some seconds.

        Where the turn lives here and has no tree, its last save is handed over as it is; everything else is read from the store.
        No condition begins to hold by the passing of time alone: a wake that comes makes a tree runnable, never settled, and what
        then happens changes the tree. So this rests until it is rung (by a bell, or by the node's poll), or its limit is over.
        """
        node = self._node
        end = None if limit is None else node.world.monotonic() + limit
        subscription = node.watch.add(self._id)
        try:
            look_now = node.placement.live(self._id) is None
            while True:
                rested, subscription.rested = subscription.rested, None
                subscription.rung = False
                if rested is not None and views.alone(rested, self._id):
                    view = view_of(rested.state, version=rested.version, shown=rested.shown, types=node.types)
                    if done(view, None):
                        return views.typed(view, self._output)
                elif look_now:
                    look = await self._look()
                    subscription.read(look)
                    view = views.view_of_look(look, node.types)
                    if done(view, look):
                        return views.typed(view, self._output)
                left = None if end is None else end - node.world.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"turn {self._id} has not settled within {duration(limit or 0)}")
                if look_now:  # else it was seen to live here a moment ago
                    self._listen(subscription)
                look_now = True
                await node.world.rest(subscription.armed(), left, exact=False)
        finally:
            node.watch.drop(subscription)

    async def _raise_flag(self, cause: str) -> None:
        """Cancel the turn; of one that has ended, the children: one that was discarded could not do that itself."""
        if await self._node.commands.cancel(self._id, cause):
            return
        for child in await self.children():
            await child._raise_flag(cause)  # noqa: SLF001 - of the same class

    def _noted(self, outcome: Outcome) -> None:
        if isinstance(outcome, Refusal):
            refuse(outcome, self._id, None)
        assert isinstance(outcome, Noted)
