"""What an actor receives, beside commands from outside the runtime's own results.

Those that may come as mail (`MailMessage`) are stored; the others live and die in the owner's process.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ..carried import Marks
from ..chat import AiMessage, HistoryEntry, Usage, UserMessage
from ..forms import FormDefinition
from ..policies import ApprovalDecision, ExecutionPolicy
from ..record import JsonObject, JsonValue
from ..tools import Tool
from ..turn import NOTHING, EffectKind, Failure, Spans, Status, Used
from ..waits import Receipt, ResumeCommand


class Stored(msgspec.Struct, gc=False, frozen=True, tag=True, omit_defaults=True):
    """The base of messages that travel as mail."""


class Resume(Stored, frozen=True):
    """A command from outside; `marks` says where Structs stand in its value."""

    command: ResumeCommand
    marks: Marks = ()


class Suspend(Stored, frozen=True):
    """The application asks a plain question."""

    message: str


class StartChild(Stored, frozen=True):
    """A child turn of this one is to start: the application, or a call of an agent, asks for it.

    `bound` is false where the sender does not know the agent: the first executor adds its instructions and its policy. `planning`
    is what `Tree.planning` is to be; `None`: as the parent has it. `marks` says where Structs stand in `metadata`.
    """

    child_id: str
    agent_id: str
    agent_version: str
    input: UserMessage
    policy: ExecutionPolicy | None = None
    instructions: str | None = None
    metadata: JsonObject | None = None
    bound: bool = True
    planning: int | None = None
    marks: Marks = ()


class ChildEnded(Stored, frozen=True):
    """A child turn is terminal. `reason` says why it was cancelled, or which limit it reached.

    `usage` and `spans` are what it and those below it have used, and when anything of them ran.
    """

    child_id: str
    agent_id: str
    status: Status
    output: JsonValue = None
    error: Failure | None = None
    reason: str | None = None
    usage: Used = NOTHING
    spans: Spans = ()


class Start(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """A call's function was started: the number of its newest attempt, and the call's effect."""

    call_id: str
    attempt: int
    effect: EffectKind


class Rewound(Stored, frozen=True):
    """The store has gone back behind saves of this turn; `started` are starts that the owner of that time knows of."""

    started: tuple[Start, ...]


class DefinitionAccepted(Stored, frozen=True):
    """A person lets a turn that was parked go on with an agent that has changed."""

    by: str | None = None


MailMessage: TypeAlias = Resume | Suspend | StartChild | ChildEnded | Rewound | DefinitionAccepted


class Received(msgspec.Struct, gc=False, frozen=True):
    """Mail, or a local message of the same kinds: `at` is when the store (or this process) took it.

    `known` is a receipt that the store had for its command or wait before this activation; `known_by` says which.
    """

    message_id: str
    message: MailMessage
    at: int
    known: Receipt | None = None
    known_by: Literal["command", "wait"] = "command"


class Activated(msgspec.Struct, gc=False, frozen=True):
    """The turn was claimed by a new activation; `crashes` counts lost owners since the last recorded result."""

    crashes: int = 0
    quarantined: bool = False


class CancelRequested(msgspec.Struct, gc=False, frozen=True):
    """The turn's cancel flag is up."""

    cause: str


class ModelReplied(msgspec.Struct, gc=False, frozen=True):
    """A model request came back; `spent` are tokens that the reply does not count."""

    iteration: int
    failures: int
    reply: AiMessage
    spent: Usage | None = None


class ModelFailed(msgspec.Struct, gc=False, frozen=True):
    """A model request failed; `retry_after` is the provider's wish in milliseconds, `spent` are tokens it has used."""

    iteration: int
    failures: int
    error: Failure
    retryable: bool = False
    retry_after: int = 0
    spent: Usage | None = None


class PolicyDecided(msgspec.Struct, gc=False, frozen=True):
    """The approval policies have spoken about a call."""

    call_id: str
    decision: ApprovalDecision


RESOLVER = "the tool resolver"


class PolicyFailed(msgspec.Struct, gc=False, frozen=True):
    """An approval policy, or what else of the application was asked about a call, raised."""

    call_id: str
    error: Failure
    what: str = "the approval policy"


class ToolResolved(msgspec.Struct, gc=False, frozen=True):
    """The resolvers have said which tool a call names, if any; from now on it is in the context."""

    call_id: str
    tool: Tool[..., Any] | None


class MemoryRead(msgspec.Struct, gc=False, frozen=True):
    """What the turn's conversation remembers, as far as its agent's model will see it; oldest first. `spent` are tokens it took."""

    messages: tuple[HistoryEntry, ...] = ()
    spent: Usage = Usage()


class MemoryFailed(msgspec.Struct, gc=False, frozen=True):
    """The memory of the turn's conversation could not be read."""

    error: Failure


class ToolReturned(msgspec.Struct, gc=False, frozen=True):
    """An attempt of a call came back with a result, as text for the model; `activates` are names of tools that it has activated."""

    call_id: str
    attempt: int
    text: str
    activates: tuple[str, ...] = ()


class ToolFailed(msgspec.Struct, gc=False, frozen=True):
    """An attempt of a call failed.

    ``told``: the tool raised ToolError, or its arguments were wrong: the model is told. ``error``: any other exception.
    ``timeout``: the waiting has ended, the function may still run, or it said that its outcome is unknown.
    ``loop``: a mistake that the next attempt would repeat (FormLoop, ProceedTwice). ``interrupted``: cancelled by us.
    ``spent``: not begun, the budget of the tree is used up.
    `text` is what the model reads if the turn goes on.
    """

    call_id: str
    attempt: int
    kind: Literal["told", "error", "timeout", "loop", "interrupted", "spent"]
    error: Failure
    text: str


class FormAsked(msgspec.Struct, gc=False, frozen=True):
    """An attempt of a call left with FormRequired."""

    call_id: str
    attempt: int
    form: FormDefinition[Any]
    keep: JsonValue = None


class NotStarted(msgspec.Struct, gc=False, frozen=True):
    """An attempt of a call is known not to have begun, for a reason that will pass."""

    call_id: str
    attempt: int
    why: str


class DeadlinePassed(msgspec.Struct, gc=False, frozen=True):
    """Some deadline of the turn is due."""


class TreeKnown(msgspec.Struct, gc=False, frozen=True):
    """The save that had to come first has brought the tree's usage back; from now on it is in the context."""


class HandOff(msgspec.Struct, gc=False, frozen=True):
    """The node drains: what runs here is put back, or in doubt. `running` are calls whose thread cannot be stopped."""

    running: frozenset[str] = frozenset()


class Fault(msgspec.Struct, gc=False, frozen=True):
    """The runtime cannot go on with this turn as it is: what was to be stored is too large."""

    error: Failure


Message: TypeAlias = (
    Received
    | Activated
    | CancelRequested
    | ModelReplied
    | ModelFailed
    | PolicyDecided
    | PolicyFailed
    | ToolResolved
    | MemoryRead
    | MemoryFailed
    | ToolReturned
    | ToolFailed
    | FormAsked
    | NotStarted
    | DeadlinePassed
    | TreeKnown
    | HandOff
    | Fault
)
