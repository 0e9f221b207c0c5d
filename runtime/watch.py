"""Who watches which tree in this process, and what they are told. Nothing here is durable; a missed hint costs one poll."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from ..actors.events import Event
from ..actors.ids import root_of
from ..actors.turn import TurnState
from .hooks import Listener
from .log import log

MAX_LIVE = 1000


class Rested:
    """A turn was saved and released here: the state that others may now read."""

    __slots__ = ("had_children", "state", "version")

    def __init__(self, state: TurnState, version: int, *, had_children: bool) -> None:
        self.had_children = had_children
        self.state = state
        self.version = version


class Subscription:
    """One watcher of one tree."""

    __slots__ = ("each", "live", "rested", "rung", "waiter", "wants_live", "wide")

    def __init__(self, *, each: bool, wants_live: bool) -> None:
        self.each = each
        self.wants_live = wants_live
        self.wide = False
        self.rung = True
        self.rested: Rested | None = None
        self.live: deque[Event] = deque(maxlen=MAX_LIVE)
        self.waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Tell the watcher to look."""
        self.rung = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def armed(self) -> asyncio.Future[None]:
        """Return a future that is done when there is something to look at."""
        self.waiter = asyncio.get_running_loop().create_future()
        if self.rung or self.live:
            self.waiter.set_result(None)
        return self.waiter


class Watch:
    """The watchers of a node, by the root of the tree they watch, and its listeners."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._trees: dict[str, dict[Subscription, None]] = {}  # in order: who rings first must not hang on addresses
        self.listeners: list[Listener] = list(listeners)

    def add(self, turn_id: str, *, each: bool = False, live: bool = False) -> Subscription:
        """Start watching the tree of a turn; with `each`, every save of it, else only those that let a turn rest."""
        subscription = Subscription(each=each, wants_live=live)
        self._trees.setdefault(root_of(turn_id), {})[subscription] = None
        return subscription

    def drop(self, turn_id: str, subscription: Subscription) -> None:
        """Stop watching."""
        root = root_of(turn_id)
        watchers = self._trees.get(root)
        if watchers is not None:
            watchers.pop(subscription, None)
            if not watchers:
                del self._trees[root]

    def ring(self, turn_id: str) -> None:
        """Something of a tree was saved, nobody knows what."""
        for subscription in self._trees.get(root_of(turn_id), ()):
            subscription.rested = None
            subscription.ring()

    def saved(self, turn_id: str, rested: Rested | None) -> None:
        """A turn that lives here was saved; `None`: it runs on, so its tree cannot have settled."""
        for subscription in self._trees.get(root_of(turn_id), ()):
            if rested is not None or subscription.each:
                subscription.rested = rested
                subscription.ring()

    def ring_wide(self) -> None:
        """Ring those who watch a tree of several turns: the root's version says nothing about its children."""
        for watchers in self._trees.values():
            for subscription in watchers:
                if subscription.wide:
                    subscription.ring()

    def ring_all(self) -> None:
        """Let everybody look: this node is gone, and what was handed over says nothing any more."""
        for watchers in self._trees.values():
            for subscription in watchers:
                subscription.rested = None
                subscription.ring()

    def roots(self) -> tuple[str, ...]:
        """Return the roots of the trees that are watched."""
        return tuple(self._trees)

    @property
    def trees(self) -> int:
        """Return how many trees are watched."""
        return len(self._trees)

    def wants_live(self, turn_id: str) -> bool:
        """Tell whether anybody would see a live event of a turn."""
        return bool(self.listeners) or any(item.wants_live for item in self._trees.get(root_of(turn_id), ()))

    def publish(self, event: Event) -> None:
        """Show a live event to those who watch now; a slow reader loses the oldest."""
        for subscription in self._trees.get(event.root_turn_id, ()):
            if subscription.wants_live:
                subscription.live.append(event)
                subscription.ring()
        self.tell(event)

    def tell_all(self, events: Iterable[Event]) -> None:
        """Hand events to the listeners, if there are any."""
        if self.listeners:
            for event in events:
                self.tell(event)

    def tell(self, event: Event) -> None:
        """Hand an event to the listeners; one that raises is noted and hurts nobody."""
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception:
                log.exception("listener_failed", turn=event.turn_id, event_type=event.type.value)
