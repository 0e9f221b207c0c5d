"""How a history begins; in a conversation: hold its entry first, read what it remembers second, then ask the model.

A turn of a conversation is created with its input set aside (`opening`). Whoever owns it first and runs effects asks the memory,
and puts instructions, what was recalled, and the input into the history in one draft, which also sends the first model request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..agent import Agent
from ..chat import HistoryEntry, SystemMessage, Usage
from ..turn import Recollection
from ..waits import SuspensionType
from .draft import DEFAULT_POLICY, MEMORY, AskMemory, Draft
from .messages import MemoryFailed, MemoryRead
from .waiting import back_off, open_retry


def open_history(draft: Draft, instructions: str | None, opening: Sequence[HistoryEntry]) -> None:
    """Begin the history: the agent's instructions, earlier messages, the input."""
    if instructions is not None:
        draft.append(SystemMessage(instructions))
    for entry in opening:
        draft.append(entry)


def begin(draft: Draft, agent: Agent[Any], recalled: Sequence[HistoryEntry] = ()) -> None:
    """Open the history of a turn that had to wait for its executor, or for what its conversation remembers.

    Of all this, the turn adds to the memory what was said to it, not what was recalled or given.
    """
    state = draft.state
    opening, state.opening = state.opening or [], None
    how, state.recollection = state.recollection, None
    if how is None:  # started by a node that does not know its agent, and without a conversation
        how = Recollection(bound=False)
    if not how.bound and state.policy is None and agent.policy != DEFAULT_POLICY:
        state.policy = agent.policy
    open_history(draft, agent.instructions, [*recalled, *opening])
    draft.known = len(draft.messages) - len(opening) + how.given


def ask(draft: Draft) -> None:
    """Ask for what the conversation remembers, unless that is under way or to be tried later."""
    context = draft.context
    if context.execute and context.agent is not None and MEMORY not in context.asking and not _later(draft):
        draft.actions.append(AskMemory())


def _later(draft: Draft) -> bool:
    """Tell whether the next try has its time: before its history is open, nothing else of a turn can wait for a retry."""
    return any(wait.type is SuspensionType.RETRY and not wait.correlation for wait in draft.state.waits)


def read(draft: Draft, message: MemoryRead) -> None:
    """The memory has been read; what that has cost counts, also of a turn that ends."""
    agent = draft.context.agent
    if message.spent != Usage():
        draft.state.usage = draft.state.usage + message.spent
    if _asked(draft) is not None and agent is not None:
        draft.progress = True
        begin(draft, agent, message.messages)


def failed(draft: Draft, message: MemoryFailed) -> None:
    """The memory could not be read: recorded, counted and tried again later; no turn fails of it."""
    how = _asked(draft)
    if how is None:
        return
    how = draft.state.recollection = msgspec.structs.replace(how, failures=how.failures + 1)
    delay = back_off(how.failures)
    open_retry(draft, None, delay, f"the conversation could not be read: {message.error.message}", how.failures)


def _asked(draft: Draft) -> Recollection | None:
    """Return what the turn waits for, if it still does."""
    state = draft.state
    return None if state.ending is not None or state.status.terminal else state.recollection


def set_aside(draft: Draft, opening: list[HistoryEntry], *, recall: bool, bound: bool) -> None:
    """Keep the opening of a new turn of a conversation until it has its time."""
    given = len(opening) - 1
    draft.state.opening = opening
    draft.state.recollection = Recollection(recall=recall, bound=bound, given=given)
