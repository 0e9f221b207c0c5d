"""Those who start and answer turns from outside, and what each of them is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..actors.errors import AlreadyAnswered, AnswerPending, CommandRefused, ConversationBusy, StoreUnavailable, TurnNotFound
from ..actors.events import Event, EventType
from ..actors.waits import Effect, Receipt, ResumeCommand, Suspension
from ..runtime.runtime import Runtime
from ..store.base import WhenBusy
from .breach import Breach

Told = Receipt | CommandRefused


@final
@dataclass
class Begun:
    """One start under a key, sent once or more: the turn it has made, or that it was refused.

    `unknown`: how often it was sent and nobody was told what came of it. Each of those may make the turn yet, also behind a refusal
    of another one: the conversation may have become free in between.
    """

    key: str
    said: str
    conversation: str | None = None
    when_busy: WhenBusy = "refuse"
    turn: str | None = None
    refused: bool = False
    unknown: int = 0

    async def send(self, runtime: Runtime, agent: str) -> None:
        """Start it. :raises Breach: if that makes a second turn."""
        self.unknown += 1
        try:
            turn = await runtime.start(
                agent, self.said, conversation=self.conversation, when_busy=self.when_busy, idempotency_key=self.key
            )
        except StoreUnavailable:
            return
        except ConversationBusy:
            self.unknown -= 1
            self.refused = self.turn is None
            return
        self.unknown -= 1
        if self.turn not in {None, turn.id}:
            raise Breach(f"{self} made another turn, {turn.id}")
        self.turn, self.refused = turn.id, False


@final
class Sender:
    """One command, sent once or more, by whatever node, and the answers in the order in which they came."""

    def __init__(self, turn_id: str, command: ResumeCommand, wait: Suspension | None = None) -> None:
        self.turn_id = turn_id
        self.wait = wait
        self.command = command
        self.told: list[Told] = []
        self.void = False  # the store has forgotten something of this tree, perhaps what somebody was told
        self.under_way = 0
        self.pending = True  # nobody was told a decision yet

    async def send(self, runtime: Runtime, timeout: float = 30) -> None:
        """Send it and note the answer; a node that dies, or cannot reach the store, gives none."""
        self.under_way += 1
        try:
            answer: Told = await runtime.turn(self.turn_id).submit(self.command, timeout)
        except CommandRefused as error:
            answer = error
        except (AnswerPending, StoreUnavailable, TurnNotFound):
            return
        finally:
            self.under_way -= 1
        self._judge(answer)
        self.told.append(answer)
        self.pending = False

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the command, once somebody was told."""
        return next((told for told in self.told if isinstance(told, Receipt)), None)

    def _judge(self, answer: Told) -> None:
        first = self.receipt
        if first is None or self.void:
            return
        if not isinstance(answer, Receipt):
            raise Breach(f"{self.command} was accepted, and then refused: {answer!r}")
        if plain(answer) != plain(first):
            raise Breach(f"{self.command} got two receipts: {first}, {answer}")
        if not answer.replayed and any(isinstance(told, Receipt) and not told.replayed for told in self.told):
            raise Breach(f"{self.command} was accepted twice")


def plain(receipt: Receipt) -> dict[str, object]:
    """Return what of a receipt never changes."""
    return {key: value for key, value in receipt.to_dict().items() if key != "replayed"}


def judge(senders: list[Sender], events: dict[str, list[Event]]) -> None:
    """Hold what senders were told against what the turns' events say.

    :raises Breach: if two answers were accepted for one wait, or somebody was told what is not so.
    """
    ended: dict[str, Event] = {}
    for event in (event for stored in events.values() for event in stored if event.type is EventType.WAIT_ENDED):
        name = str(event.data["suspensionId"])
        if name in ended:
            raise Breach(f"wait {name} ended twice: {ended[name]}, {event}")
        ended[name] = event
    for sender in senders:
        for told in sender.told:
            receipt = told if isinstance(told, Receipt) else told.receipt if isinstance(told, AlreadyAnswered) else None
            if receipt is None:
                continue
            event = ended.get(receipt.suspension_id)
            if event is None or event.data["effect"] != receipt.effect.value or event.data.get("by") != receipt.by:
                raise Breach(f"the sender of {sender.command} was told {receipt}, stored is {event}")


def rejected_calls(events: list[Event]) -> list[str]:
    """Return the calls that a person has rejected or declined."""
    effects = {Effect.REJECTED.value}
    ended = [event.data for event in events if event.type is EventType.WAIT_ENDED and event.data["effect"] in effects]
    return [str(data["correlationId"]) for data in ended]


def reruns(events: list[Event], call_id: str) -> int:
    """Return how often a person has let a call be started again, or has answered a form it asked for."""
    effects = {Effect.RERUN.value, Effect.SUBMITTED.value}
    ended = [event.data for event in events if event.type is EventType.WAIT_ENDED and event.data["effect"] in effects]
    return sum(data.get("correlationId") == call_id for data in ended)
