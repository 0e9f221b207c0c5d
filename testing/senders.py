"""Those who answer from outside, and what each of them is told."""

from __future__ import annotations

from typing import final

from ..actors.errors import AlreadyAnswered, AnswerPending, CommandRefused, StoreUnavailable
from ..actors.events import Event, EventType
from ..actors.waits import Effect, Receipt, ResumeCommand
from ..runtime.runtime import Runtime
from .witness import Breach

Told = Receipt | CommandRefused


@final
class Sender:
    """One command, sent once or more, by whatever node, and the answers in the order in which they came."""

    def __init__(self, turn_id: str, command: ResumeCommand) -> None:
        self.turn_id = turn_id
        self.command = command
        self.told: list[Told] = []
        self.under_way = 0
        self.pending = True  # nobody was told a decision yet

    async def send(self, runtime: Runtime, timeout: float = 30) -> None:
        """Send it and note the answer; a node that dies, or cannot reach the store, gives none."""
        self.under_way += 1
        try:
            answer: Told = await runtime.turn(self.turn_id).submit(self.command, timeout)
        except CommandRefused as error:
            answer = error
        except (AnswerPending, StoreUnavailable):
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
        if first is None:
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
