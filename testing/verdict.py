"""The judgement over what can be seen of a race: events, calls, budgets, conversations, ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from ..actors.agent import Agent
from ..actors.chat import ChatMessage, ToolMessage
from ..actors.errors import TurnNotFound
from ..actors.events import TERMINAL_EVENTS, Event, EventType
from ..actors.history import readable
from ..actors.ids import root_of
from ..actors.memory import MemoryMessage
from ..actors.turn import Status
from ..actors.view import TurnView
from ..actors.waits import CommandType
from ..runtime.runtime import Runtime, node_of
from ..store import base, codec
from .breach import Breach
from .senders import Begun, Sender, judge, rejected_calls, reruns
from .talks import judge_memory, own_part
from .witness import Witness, unanswered

MOST = 1000


def children_of(events: Iterable[Event]) -> list[str]:
    """Return the children that a turn says it has started."""
    return [str(event.data["childTurnId"]) for event in events if event.type is EventType.CHILD_STARTED]


@final
class Verdict:
    """Looks at everything, as an observer who takes no part, and remembers what was seen before."""

    def __init__(self, observer: Runtime, witness: Witness, agent: Agent) -> None:
        self.observer = observer
        self.witness = witness
        self.events: dict[str, list[Event]] = {}
        self._agent = agent
        self._memories: dict[str, list[MemoryMessage]] = {}

    def forget(self) -> None:
        """The store went back: what was seen may not have been."""
        self._memories.clear()
        for turn_id in [turn_id for turn_id in self.events if self._tainted(turn_id)]:
            del self.events[turn_id]

    def _tainted(self, turn_id: str) -> bool:
        return root_of(turn_id) in self.witness.tainted

    async def look(self, roots: Iterable[str], senders: list[Sender]) -> dict[str, TurnView]:
        """Judge trees, and return their views. :raises Breach: if something impossible has happened."""
        views: dict[str, TurnView] = {}
        left = list(roots)
        while left:
            turn = self.observer.turn(left.pop(0))
            try:
                views[turn.id] = await turn.view()
            except TurnNotFound:
                if self._tainted(turn.id):
                    continue
                raise
            self._judge_events(turn.id, [event async for event in turn.events(live=False, follow=False)])
            left += children_of(self.events[turn.id])
        sound = {turn_id: events for turn_id, events in self.events.items() if not self._tainted(turn_id)}
        judge([sender for sender in senders if not self._tainted(sender.turn_id)], sound)
        for turn_id, events in sound.items():
            self._judge_calls(turn_id, events)
        self._judge_edits(senders)
        self._judge_budgets()
        return views

    def _judge_events(self, turn_id: str, events: list[Event]) -> None:
        before = [] if self._tainted(turn_id) else self.events.get(turn_id, [])
        if [event.sequence for event in events] != list(range(1, len(events) + 1)):
            raise Breach(f"the events of turn {turn_id} have a gap: {events}")
        if events[: len(before)] != before:
            raise Breach(f"the events of turn {turn_id} have changed from {before} to {events}")
        if any(event.type in TERMINAL_EVENTS for event in events[:-1]):
            raise Breach(f"turn {turn_id} went on behind its end: {events}")
        self.events[turn_id] = events

    def _judge_calls(self, turn_id: str, events: list[Event]) -> None:
        for call_id in rejected_calls(events):
            if self.witness.starts_of(turn_id, call_id):
                raise Breach(f"call {call_id} of turn {turn_id} was rejected and started")
        for call_id in self.witness.once_calls(turn_id):
            if self.witness.starts_of(turn_id, call_id) > 1 + reruns(events, call_id):
                raise Breach(f"the once call {call_id} of turn {turn_id} was started again without a person")

        started = [event.data for event in events if event.type is EventType.CHILD_STARTED and "toolCallId" in event.data]
        calls = [(str(data["toolCallId"]), str(data.get("taskId"))) for data in started]
        if len(set(calls)) != len(calls):
            raise Breach(f"a call of turn {turn_id}, or a task of its plan, has started two children: {events}")

    def _judge_edits(self, senders: Iterable[Sender]) -> None:
        """What was started behind an approval has the arguments that the accepted answer gave."""
        for sender in senders:
            wait, command = sender.wait, sender.command
            if wait is None or wait.call is None or sender.receipt is None or self._tainted(wait.turn_id):
                continue
            if command.type is not CommandType.APPROVE_TOOL:
                continue
            shown = wait.call.arguments
            given = shown if command.arguments is None else command.arguments
            for arguments in self.witness.given.get((wait.turn_id, wait.call.id), ()):
                wrong = [name for name in given if given[name] != shown.get(name) and given[name] != arguments.get(name)]
                if wrong or (given == shown and set(arguments) != set(shown)):
                    raise Breach(f"call {wait.call.id} of turn {wait.turn_id} got {arguments}, approved was {given}")

    def _judge_budgets(self) -> None:
        most = self._agent.policy.budget.max_tool_calls
        for root in {root_of(turn_id) for turn_id in self.events} if most is not None else ():
            if (calls := self.witness.overdrawn(root, most or 0)) and not self._tainted(root):
                raise Breach(f"{', '.join(calls)} were started in the tree of turn {root}, which may have {most} calls")

    # --------------------------------------------------------------------------------------------------- conversations

    async def look_at_talk(self, name: str, begun: Sequence[Begun]) -> None:
        """Judge a conversation: who has it, who waits for it, and what it remembers.

        :raises Breach: if it is blocked, out of order, or remembers something else than its turns have said.
        """
        conversation = self.observer.conversation(name)
        turn, queue = await conversation.open_turn(), [ref.id for ref in await conversation.queued()]
        if queue and turn is None:
            raise Breach(f"nobody has {name}, and yet {queue} wait for it")
        for ref in [turn.id, *queue] if turn is not None else ():
            view = await self.observer.turn(ref).view()
            if view.status.terminal:
                raise Breach(f"{name} is blocked by turn {ref}, which is {view.status.value}")
        talk, witness = self.witness.talks.known.get(name), self.witness
        if talk is not None and not witness.talks.lost:
            found = queue if turn is None else [turn.id, *queue]
            if found != talk.waiting:
                raise Breach(f"{name} is held by {found}; by what it was told it is held by {talk.waiting}")
        if witness.talks.lost:
            return
        entries = await conversation.messages(limit=MOST)
        spoken = {*witness.begun, *(talk.spoken if talk is not None else ())}
        turns = {each.turn: each.said for each in begun if each.turn is not None}
        histories = {name: (said, await self._history(name) if name in spoken else []) for name, said in turns.items()}
        judge_memory(name, entries, self._memories.get(name, []), histories)
        self._memories[name] = entries

    async def _history(self, turn_id: str) -> list[ChatMessage]:
        """Read what an executor has written of a turn; nothing where none has begun."""
        reply = await node_of(self.observer).call(base.ReadHistory(turn=turn_id, limit=MOST))
        assert isinstance(reply, base.Entries)
        return readable(codec.decode_entries(turn_id, reply.bodies))

    # ------------------------------------------------------------------------------------------------------------- end

    async def look_at_ends(self, views: Mapping[str, TurnView], begun: Iterable[Begun]) -> None:
        """Judge trees that have ended: each call has one result, a parent knows its children, a root what its tree has used.

        :raises Breach: if that is not so, or somebody still has a conversation, or one that was taken out of a queue has run.
        """
        told = {each.turn: each.said for each in begun}
        for turn_id, view in views.items():
            turn = self.observer.turn(turn_id)
            whole = await turn.history()
            history = own_part(whole, told[turn_id]) or whole if turn_id in told else whole
            results = [message.call_id for message in history if isinstance(message, ToolMessage)]
            if unanswered(history) or len(set(results)) != len(results):
                raise Breach(f"the history of turn {turn_id} is not closed, or has a result twice: {history}")
            if self._tainted(turn_id):
                continue
            children = {ref.id for ref in await turn.children()}
            if children != set(children_of(self.events[turn_id])):
                raise Breach(f"turn {turn_id} has the children {children}, its events say {self.events[turn_id]}")
            used = [state.tool_call_count for name, state in self.witness.saved.items() if name.startswith(turn_id)]
            if view.parent_turn_id is None and view.tool_call_count > sum(used):
                raise Breach(f"the tree of turn {turn_id} has used {used}, not {view.tool_call_count} calls")
        for name, talk in self.witness.talks.known.items():
            if (turn := await self.observer.conversation(name).open_turn()) is not None:
                raise Breach(f"all turns have ended, and {turn.id} still has {name}")
            for out in talk.out if not self.witness.talks.lost else ():
                if (status := (await self.observer.turn(out).view()).status) is not Status.CANCELLED:
                    raise Breach(f"turn {out} was taken out of the queue of {name}, and ended as {status.value}")
