"""The machine's one entrance: a state and the messages that have come, out comes a draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..turn import TurnState
from . import activate, advance, calls, children, commands, deadlines, ending, policy, recall, replies, rewound
from .create import new_child
from .draft import Context, Draft, Outcome
from .messages import (
    Activated,
    CancelRequested,
    ChildEnded,
    DeadlinePassed,
    DefinitionAccepted,
    Fault,
    FormAsked,
    HandOff,
    MemoryFailed,
    MemoryRead,
    Message,
    ModelFailed,
    ModelReplied,
    NotStarted,
    PolicyDecided,
    PolicyFailed,
    Received,
    Resume,
    Rewound,
    StartChild,
    Suspend,
    ToolFailed,
    ToolResolved,
    ToolReturned,
    TreeKnown,
)


def handle(state: TurnState, messages: Iterable[Message], context: Context) -> Draft:
    """Take messages one at a time, each to completion, then bring the turn to rest. The state given is not changed.

    A hand-off is taken last: what has been reported with it is known, and neither done again nor in doubt.
    """
    draft = Draft(state, context)
    handed: HandOff | None = None
    for message in messages:
        if type(message) is HandOff:
            handed = message
        else:
            _TAKE[type(message)](draft, message)
    if handed is not None:
        calls.hand_off(draft, handed)
    advance.settle(draft)
    if draft.starting:
        draft.children = tuple([new_child(draft.state, wanted, context.now) for wanted in draft.starting])
    return draft


def receive(draft: Draft, message: Received) -> None:
    """Take mail, or a local message of its kinds, behind the deadlines that were over when it was delivered."""
    deadlines.fire(draft, message.at)
    body = message.message
    outcome: Outcome
    match body:
        case Resume():
            outcome = commands.command(draft, message, body.command, body.marks)
        case Suspend():
            outcome = children.suspend(draft, body)
        case StartChild():
            outcome = children.start(draft, body)
        case ChildEnded():
            outcome = children.ended(draft, body)
        case Rewound():
            outcome = rewound.rewound(draft, body)
        case DefinitionAccepted():
            outcome = activate.definition_accepted(draft, body)
    draft.answers = (*draft.answers, (message.message_id, outcome))


def _again(draft: Draft, message: TreeKnown | ToolResolved) -> None:
    """What could not start before the tree's usage, or the tool, was known is looked at again."""


def _due(draft: Draft, message: DeadlinePassed) -> None:
    deadlines.passed(draft)


def _faulty(draft: Draft, message: Fault) -> None:
    draft.too_large = message.error.type == "SnapshotTooLarge"
    ending.fail(draft, message.error.type, message.error.message)


_TAKE: dict[type[Message], Callable[[Draft, Any], None]] = {
    Received: receive,
    ModelReplied: replies.replied,
    ModelFailed: replies.failed,
    ToolReturned: calls.returned,
    ToolFailed: calls.failed,
    FormAsked: calls.form_asked,
    NotStarted: calls.not_started,
    PolicyDecided: policy.decided,
    PolicyFailed: policy.failed,
    MemoryRead: recall.read,
    MemoryFailed: recall.failed,
    Activated: activate.activated,
    CancelRequested: activate.cancel_requested,
    DeadlinePassed: _due,
    TreeKnown: _again,
    ToolResolved: _again,
    Fault: _faulty,
}
"""What takes a message of each kind in; a hand-off comes last, behind them."""
