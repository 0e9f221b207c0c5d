"""The path of a command (DESIGN 5.6) as a pure model, explored to its last state.

Two senders answer one wait, each from a node of its own (0 and 1); a third node runs turns. The store is that of
`store/rules.py`, as far as commands see it; senders and owners do what `runtime/commands.py` and `runtime/actor.py` do. Replies of
the store are lost, nodes crash, leases end, senders run out of patience, the turn ends: a few of these, in any order, at any place.

In every state: who was told something was told what is stored. In every state without a next one: everybody has been answered, and
no mail is left. A sender who ran out of patience (`AnswerPending`), or whose node died, asks again under the same command id.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = tuple[int, int]  # the sender, and how often he has asked before
OVER = "over"  # what a wait's receipt names where no command ended it


class Sender(NamedTuple):
    command: str
    phase: str = "ask"  # ask, here (a future of an activation), away (a reply will be stored), done
    asked: int = 0
    told: tuple[str, ...] = ()


class Activation(NamedTuple):
    epoch: int
    node: int
    local: tuple[Message, ...] = ()
    batch: tuple[Message, ...] | None = None  # taken in, not saved
    known: str | None = None  # the wait's receipt, as it was found then
    saved: tuple[tuple[Message, str], ...] | None = None  # answers of a save that the store has applied
    owned: bool = True  # whether that save kept the turn


class Store(NamedTuple):
    owner: int = 0
    epoch: int = 0
    granted: int = -1  # the node that was made the owner, and has not heard of it
    wake: bool = False
    over: bool = False
    receipt: str | None = None
    mail: tuple[Message, ...] = ()
    seen: frozenset[Message] = frozenset()
    replies: tuple[tuple[Message, str], ...] = ()
    last: int = 0  # the epoch of the last save


class State(NamedTuple):
    store: Store
    senders: tuple[Sender, Sender]
    activations: tuple[Activation, ...] = ()
    faults: int = 2


class Model:
    """The transitions; a mutant leaves one rule out."""

    def __init__(self, mutant: str = "") -> None:
        self.mutant = mutant

    # ------------------------------------------------------------------------------------------------------- decisions

    def decide(self, receipt: str | None, command: str) -> tuple[str, str | None]:
        """One command, one answer; what the wait's receipt is then."""
        if receipt == command and self.mutant != "no look-up by command":
            return "accepted", receipt
        if receipt is not None:
            return "answered", receipt
        return "accepted", command

    def steps(self, state: State) -> Iterator[State]:
        for number in (0, 1):
            yield from self.sender(state, number)
        for activation in state.activations:
            yield from self.owner(state, activation)
        yield from self.world(state)

    # --------------------------------------------------------------------------------------------------------- senders

    def sender(self, state: State, number: int) -> Iterator[State]:
        sender = state.senders[number]
        message = (number, sender.asked)
        if sender.phase == "ask":
            live = next((each for each in state.activations if each.node == number), None)
            if live is not None:
                yield to(put(state, live._replace(local=(*live.local, message))), number, sender._replace(phase="here"))
            else:
                yield from self.deliver(state, number, message)
        reply = dict(state.store.replies).get(message)
        if sender.phase == "away" and reply is not None:
            if reply == "closed" and self.mutant != "the end believed":  # accepted perhaps by the very save that ended the turn
                reply = "accepted" if state.store.receipt == sender.command else reply
            yield tell(state, number, reply)
        if sender.phase in {"here", "away"} and state.faults:  # AnswerPending; he asks again
            yield to(state, number, sender._replace(phase="ask", asked=sender.asked + 1), fault=True)

    def deliver(self, state: State, number: int, message: Message) -> Iterator[State]:
        store, sender = state.store, state.senders[number]
        reply = dict(store.replies).get(message)
        if store.receipt is not None and not (self.mutant == "no look-up by command" and store.receipt == sender.command):
            yield tell(state, number, self.decide(store.receipt, sender.command)[0])
            return
        if reply is not None:
            yield tell(state, number, reply)
            return
        if message not in store.seen:
            if store.over:
                yield tell(state, number, "closed")
                return
            store = store._replace(mail=(*store.mail, message), seen=store.seen | {message}, wake=store.wake or not store.owner)
        if not store.owner and store.wake:
            store = store._replace(owner=store.epoch + 1, epoch=store.epoch + 1, granted=number, wake=False)
        if state.faults:  # the reply is lost; the identical delivery is sent again
            yield state._replace(store=store, faults=state.faults - 1)
        if store.granted == number:
            activation = Activation(store.owner, number)
            state = state._replace(store=store._replace(granted=-1), activations=(*state.activations, activation))
            yield to(state, number, sender._replace(phase="here"))
        else:
            yield to(state._replace(store=store), number, sender._replace(phase="away"))

    # ---------------------------------------------------------------------------------------------------------- owners

    def owner(self, state: State, mine: Activation) -> Iterator[State]:
        if mine.saved is not None:
            yield self.acknowledged(state, mine)
            if state.faults and state.store.last != mine.epoch:  # the reply was lost, and repeating it finds another's save
                yield self.lose(state._replace(faults=state.faults - 1), mine)
        elif mine.batch is None:
            batch = tuple(dict.fromkeys((*state.store.mail, *mine.local))) if state.store.owner == mine.epoch else mine.local
            if batch:
                yield put(state, mine._replace(batch=batch, local=(), known=state.store.receipt))
            elif state.store.owner == mine.epoch:  # what else ran here is over, or the turn ends
                yield self.save(state, mine._replace(batch=(), known=state.store.receipt), "suspend")
        elif state.store.owner != mine.epoch and self.mutant != "no fence":
            yield self.lose(state, mine)
        else:
            for mode in ("keep", "suspend", "end"):
                if mode != "end" or state.faults:
                    yield self.save(state, mine, mode)
        if state.store.owner != mine.epoch and mine.saved is None and mine.batch is None:  # a renewal says so
            yield self.lose(state, mine)

    def save(self, state: State, mine: Activation, mode: str) -> State:
        store, answers = state.store, list[tuple[Message, str]]()
        receipt = mine.known
        for message in mine.batch or ():
            answer, receipt = self.decide(receipt, state.senders[message[0]].command)
            answers.append((message, answer))
        replies = [each for each in answers if each[0] in store.mail] if self.mutant != "no replies" else []
        left = tuple(message for message in store.mail if message not in (mine.batch or ()))
        owned = mode == "keep" or (mode == "suspend" and bool(left) and self.mutant != "release over mail")
        if mode == "end":
            receipt = receipt or OVER
            if self.mutant != "mail dropped at the end":
                replies += [(message, "closed") for message in left]
            left = ()
        store = store._replace(
            owner=store.owner if owned else 0,
            over=store.over or mode == "end",
            receipt=receipt,
            mail=left,
            replies=(*store.replies, *replies),
            last=mine.epoch,
        )
        state = state._replace(store=store, faults=state.faults - (mode == "end"))
        return put(state, mine._replace(batch=None, known=None, saved=tuple(answers), owned=owned))

    def acknowledged(self, state: State, mine: Activation) -> State:
        for message, answer in mine.saved or ():
            number, asked = message
            if state.senders[number].phase == "here" and state.senders[number].asked == asked:
                state = tell(state, number, answer)
        return put(state, mine._replace(saved=None)) if mine.owned else self.lose(state, mine)

    def lose(self, state: State, mine: Activation) -> State:
        """The activation is gone; who waits for it in this process sends again, under the same message id."""
        state = state._replace(activations=tuple(each for each in state.activations if each.epoch != mine.epoch))
        if mine.node < 2 and state.senders[mine.node].phase == "here" and self.mutant != "no rerouting":
            state = to(state, mine.node, state.senders[mine.node]._replace(phase="ask"))
        return state

    # ----------------------------------------------------------------------------------------------------------- world

    def world(self, state: State) -> Iterator[State]:
        store = state.store
        if not store.owner and store.wake:  # the third node looks for work
            epoch = store.epoch + 1
            claimed = store._replace(owner=epoch, epoch=epoch, wake=False)
            yield state._replace(store=claimed, activations=(*state.activations, Activation(epoch, 2)))
        alive = any(each.epoch == store.owner for each in state.activations)
        asks = store.granted >= 0 and state.senders[store.granted].phase == "ask"
        if store.owner and (state.faults or not (alive or asks)):  # the lease ends, of a living owner by a fault
            yield state._replace(
                store=store._replace(owner=0, granted=-1, wake=not store.over), faults=state.faults - (alive or asks)
            )
        for node in (0, 1, 2):
            here = [each for each in state.activations if each.node == node]
            waits = node < 2 and state.senders[node].phase != "done"
            if state.faults and (here or waits):
                crashed = state._replace(
                    activations=tuple(each for each in state.activations if each.node != node),
                    store=store._replace(granted=-1 if store.granted == node else store.granted),
                )
                if waits:
                    sender = state.senders[node]
                    crashed = to(crashed, node, sender._replace(phase="ask", asked=sender.asked + 1))
                yield crashed._replace(faults=state.faults - 1)


def put(state: State, activation: Activation) -> State:
    return state._replace(activations=tuple(activation if each.epoch == activation.epoch else each for each in state.activations))


def to(state: State, number: int, sender: Sender, *, fault: bool = False) -> State:
    senders = (sender, state.senders[1]) if number == 0 else (state.senders[0], sender)
    return state._replace(senders=senders, faults=state.faults - fault)


def tell(state: State, number: int, answer: str) -> State:
    sender = state.senders[number]
    return to(state, number, sender._replace(phase="done", told=(*sender.told, answer)))


def fault(state: State) -> str | None:
    """What is wrong with a state."""
    receipt = state.store.receipt
    for sender in state.senders:
        for answer in sender.told:
            if answer == "accepted" and receipt != sender.command:
                return f"{sender} was told so, stored is {receipt}"
            if answer != "accepted" and receipt in {None, sender.command}:
                return f"{sender} was told so, stored is {receipt}"
    return None


def explore(model: Model, start: State) -> tuple[int, str | None]:
    """Walk through all states; return their number, and the first fault."""
    seen, todo = {start}, deque([start])
    while todo:
        state = todo.popleft()
        found = fault(state)
        following = list(model.steps(state))
        if not following and not found and (state.store.mail or any(sender.phase != "done" for sender in state.senders)):
            found = f"stuck: {state}"
        if found:
            return len(seen), found
        fresh = [each for each in following if each not in seen]
        seen.update(fresh)
        todo.extend(dict.fromkeys(fresh))
    return len(seen), None


def starts(faults: int, seconds: str = "ba") -> Iterator[State]:
    """Two answers, or one sent twice; the turn sleeps, or lives on the third node, or on that of the first sender."""
    for second in seconds:
        senders = (Sender("a"), Sender(second))
        yield State(Store(), senders, faults=faults)
        for node in (2, 0):
            yield State(Store(owner=1, epoch=1), senders, (Activation(1, node),), faults)


DEEP = [pytest.mark.deep, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [(0, "ba"), (1, "ba"), (2, "b"), pytest.param(2, "a", marks=DEEP), pytest.param(3, "ba", marks=DEEP)],
)
def test_every_sender_gets_exactly_one_answer(faults: int, seconds: str) -> None:
    """Or `AnswerPending`, and then that answer; over all orders of deliveries, saves and faults."""
    for start in starts(faults, seconds):
        count, found = explore(Model(), start)
        assert found is None
        assert count > 10 ** (faults + 1)


@pytest.mark.parametrize(
    "mutant",
    [
        "no look-up by command",
        "no fence",
        "no replies",
        "release over mail",
        "mail dropped at the end",
        "no rerouting",
        "the end believed",
    ],
)
def test_a_rule_that_is_left_out_is_missed(mutant: str) -> None:
    """Each rule of the path is needed: without it some order of things goes wrong."""
    assert any(explore(Model(mutant), start)[1] for start in (*starts(1), *starts(2)))
