"""Who watches which tree in this process, and what they are told. Nothing here is durable; a missed hint costs one poll."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from ..actors.errors import SnapshotCorrupt
from ..actors.events import Event
from ..actors.ids import root_of
from ..actors.turn import TurnState
from ..actors.waits import Suspension
from ..store import base, codec
from .hooks import Listener
from .log import log

MAX_LIVE = 1000
NOTHING_LIVE: deque[Event] = deque(maxlen=0)
Progress: TypeAlias = tuple[int, int, str, int]


class Rested(msgspec.Struct, gc=False, frozen=True, eq=False):
    """A turn was saved and released here: the state that others may now read, and `shown`, the waits that this save has opened."""

    state: TurnState
    version: int
    had_children: bool
    shown: tuple[Suspension, ...] = ()


class Subscription(msgspec.Struct, eq=False, gc=False):
    """One watcher of one tree.

    `at` is how far the root was (version, last event, state) when the watcher last read it, None where it has not. `wide`: other
    things may matter to it, too, what happens below the root or what leaves no trace there. `afar`: it hears from the store.
    """

    turn_id: str
    root: str
    each: bool
    wants_live: bool
    wide: bool
    at: tuple[int, int, str] | None = None
    afar: bool = False
    rung: bool = True
    rested: Rested | None = None
    live: deque[Event] = NOTHING_LIVE
    waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Tell the watcher to look."""
        self.rung = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def armed(self) -> asyncio.Future[None]:
        """Return a future that is done when there is something to look at."""
        self.waiter = waiter = asyncio.get_running_loop().create_future()
        if self.rung or self.live:
            waiter.set_result(None)
        return waiter

    def read(self, look: base.Looked) -> None:
        """Note what the watcher has just read of its turn.

        A root that sleeps may be claimed and parked with no trace but a bell: nothing that is counted differs then. One that has
        ended may have left turns below it that still end.
        """
        if look.parent is None:
            self.at = look.version, look.event_count, look.state
            self.wide = look.live_turns > (look.state != "T") or look.state == "S"

    def missed(self, before: Progress | None, found: Progress) -> bool:
        """Tell whether the watcher may not have seen how far its tree is; `before` is what was found the last time, if ever."""
        root = self.at if self.at is not None or before is None else before[:3]
        if root != found[:3]:
            return True
        return self.wide and (before is None or before[3] != found[3])


class Watch:
    """The watchers of a node, by the root of the tree they watch, and its listeners."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._trees: dict[str, dict[Subscription, None]] = {}  # in order: who rings first must not hang on addresses
        self._afar: dict[tuple[str, bool], int] = {}  # by root and live: how many watchers hear from the store
        self._connection: base.StoreConnection | None = None
        self.listeners: list[Listener] = list(listeners)

    # ------------------------------------------------------------------------------------------------------ the store

    def connect(self, connection: base.StoreConnection) -> None:
        """Hear from a store; also for those who watched before."""
        self._connection = connection
        for root, live in self._afar:
            connection.watch(root, live=live)

    def disconnect(self) -> None:
        """Hear from no store any more. All may look: what was handed over says nothing any more."""
        self._connection = None
        for watchers in self._trees.values():
            for subscription in watchers:
                subscription.rested = None
                subscription.ring()

    def heard(self, root: str, body: bytes) -> None:
        """Show what another node published of a tree to those who watch it here; what cannot be read is noted."""
        try:
            event = codec.decode_live(root, body)
        except SnapshotCorrupt as error:
            log.warning("live_event_unreadable", root=root, error=str(error))
        else:
            self._show(event)

    # ------------------------------------------------------------------------------------------------------- watchers

    def add(self, turn_id: str, *, each: bool = False, live: bool = False) -> Subscription:
        """Start watching the tree of a turn; with `each`, every save of it, else only those that let a turn rest.

        It hears what happens on this node; before it waits for what others do, it must `listen`.
        """
        root = root_of(turn_id)
        subscription = Subscription(turn_id, root, each, live, wide=turn_id != root)
        if live:
            subscription.live = deque(maxlen=MAX_LIVE)
        self._trees.setdefault(root, {})[subscription] = None
        return subscription

    def listen(self, subscription: Subscription) -> None:
        """Let a watcher hear what other nodes do, too, until it is dropped. A second time does nothing."""
        if subscription.afar:
            return
        subscription.afar = True
        root, live = kind = subscription.root, subscription.wants_live
        self._afar[kind] = self._afar.get(kind, 0) + 1
        if self._afar[kind] == 1 and self._connection is not None:
            self._connection.watch(root, live=live)

    def drop(self, subscription: Subscription) -> None:
        """Stop watching."""
        root = subscription.root
        watchers = self._trees.get(root)
        if watchers is not None:
            watchers.pop(subscription, None)
            if not watchers:
                del self._trees[root]
        if not subscription.afar:
            return
        subscription.afar = False
        live = subscription.wants_live
        kind = root, live
        self._afar[kind] -= 1
        if not self._afar[kind]:
            del self._afar[kind]
            if self._connection is not None:
                self._connection.unwatch(root, live=live)

    @property
    def trees(self) -> int:
        """Return how many trees are watched."""
        return len(self._trees)

    def watched(self, root: str) -> bool:
        """Tell whether a tree is watched."""
        return root in self._trees

    def roots(self, here: Callable[[str], object]) -> list[str]:
        """Return the roots of the trees of which somebody watches a turn that does not live here."""
        return [root for root, watchers in self._trees.items() if any(not here(watcher.turn_id) for watcher in watchers)]

    # ---------------------------------------------------------------------------------------------------------- bells

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

    def found(self, root: str, before: Progress | None, progress: Progress) -> None:
        """The store was asked how far a tree is; `before` is the answer of the last time, if there was one."""
        for subscription in self._trees.get(root, ()):
            if subscription.missed(before, progress):
                subscription.rested = None
                subscription.ring()

    # --------------------------------------------------------------------------------------------------------- events

    def wants_live(self, turn_id: str) -> bool:
        """Tell whether anybody would see a live event of a turn."""
        root = root_of(turn_id)
        if self.listeners or any(item.wants_live for item in self._trees.get(root, ())):
            return True
        return self._connection is not None and self._connection.wants(root)

    def publish(self, event: Event) -> None:
        """Show a live event of a turn that runs here to those who watch now, here and elsewhere, and to the listeners."""
        self._show(event)
        self.tell(event)
        connection = self._connection
        if connection is None or not connection.wants(event.root_turn_id):
            return
        try:
            body = codec.encode_live(event)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            log.warning("live_event_unsendable", turn=event.turn_id, event_type=event.type.value, error=str(error))
        else:
            connection.publish(event.root_turn_id, body)

    def _show(self, event: Event) -> None:
        """Show a live event to those who watch here; a slow reader loses the oldest."""
        for subscription in self._trees.get(event.root_turn_id, ()):
            if subscription.wants_live:
                subscription.live.append(event)
                subscription.ring()

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
            except (Exception, asyncio.CancelledError):  # a task that does not wait is not cancelled: it is the listener's own
                log.exception("listener_failed", turn=event.turn_id, event_type=event.type.value)
