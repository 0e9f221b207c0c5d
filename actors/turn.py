"""The state of a turn: what a snapshot holds.

Stored structs are arrays (``array_like``): a field may be added at the end with a default, and none may be moved, renamed in
meaning or removed. All times are store milliseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Container
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from .carried import Marks
from .chat import HistoryEntry, Usage
from .plan import Plan
from .policies import Budget, ExecutionPolicy, OnExpiry
from .record import JsonObject, JsonValue
from .waits import Phase, SuspensionType

SCHEMA = 1
MASK = "***"
Ms: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""A time in store milliseconds, or 0; up to the end of the calendar."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
EffectKind: TypeAlias = Literal["once", "repeatable"]
Used: TypeAlias = tuple[Count, Count, Count, Count]
"""What turns have used: input, output and total tokens, tool calls."""
Spans: TypeAlias = tuple[tuple[Ms, Ms], ...]
"""Times in which something ran, from and to, in order, none touching another."""
NOTHING: Used = (0, 0, 0, 0)


def masked(arguments: JsonObject, sensitive: Container[str]) -> JsonObject:
    """Return arguments with the sensitive ones replaced."""
    return {name: MASK if name in sensitive else value for name, value in arguments.items()}


ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "MAX_ITERATIONS_REACHED", "MAX_STEPS_REACHED", "BUDGET_EXCEEDED"})


class Status(enum.StrEnum):
    """The statuses of a turn; those that are `terminal` end it."""

    READY = "READY"
    RUNNING = "RUNNING"
    WAITING_FOR_USER = "WAITING_FOR_USER"
    WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"
    WAITING_FOR_CHILD = "WAITING_FOR_CHILD"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    IN_DOUBT = "IN_DOUBT"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    MAX_ITERATIONS_REACHED = "MAX_ITERATIONS_REACHED"
    MAX_STEPS_REACHED = "MAX_STEPS_REACHED"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"

    def __init__(self, value: str) -> None:
        self.terminal: Final = value in ENDED

    @property
    def blocked(self) -> bool:
        """Tell whether the turn waits."""
        return self in BLOCKED


# What every turn passes through, by names of their own: before Python 3.12 `Status.READY` is a slow look-up.
READY, UNDER_WAY, COMPLETED = Status.READY, Status.RUNNING, Status.COMPLETED
TERMINAL = frozenset(status for status in Status if status.terminal)
WAITING = {
    SuspensionType.USER_INPUT: Status.WAITING_FOR_USER,
    SuspensionType.TOOL_APPROVAL: Status.WAITING_FOR_APPROVAL,
    SuspensionType.CHILD_AGENT: Status.WAITING_FOR_CHILD,
    SuspensionType.RETRY: Status.RETRY_SCHEDULED,
    SuspensionType.IN_DOUBT: Status.IN_DOUBT,
}
BLOCKED = frozenset(WAITING.values())


class CallStatus(enum.StrEnum):
    """Where one call stands."""

    UNDECIDED = "undecided"  # the policy has not been asked, or has not answered
    PENDING = "pending"  # may start
    AWAITING = "awaiting"  # has an open wait
    RUNNING = "running"  # an attempt was started
    DONE = "done"  # has a result
    REJECTED = "rejected"  # has a refusal as its result


FINISHED = frozenset({CallStatus.DONE, CallStatus.REJECTED})
# What every call passes through, by names of their own, as above.
UNDECIDED, PENDING, AWAITING = CallStatus.UNDECIDED, CallStatus.PENDING, CallStatus.AWAITING
RUNNING, DONE = CallStatus.RUNNING, CallStatus.DONE


class Decline(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """That a form was declined: what was said, and whether nobody answered it in time."""

    reason: str = ""
    expired: bool = False


class OpenWait(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """An open wait as the turn keeps it; `correlation` is the call's id, a child's id, or empty."""

    id: str
    type: SuspensionType
    correlation: str
    created: Ms
    expires: Ms | None = None
    on_expiry: OnExpiry | None = None
    message: str | None = None
    form_key: str | None = None
    schema: JsonObject | None = None
    phase: Phase = Phase.TOOLS
    assignee: str | None = None
    metadata: JsonObject | None = None
    default: JsonValue = None
    has_default: bool = False
    tell_decline: bool = False


class CallRecord(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """One call of the current reply.

    An approval belongs to this record and to `digest` (of name and arguments); `allowed` says that policy or person let it run.
    `attempt` counts starts of the function; `activation` made the last one. `forms` holds submitted data by form key. `failures`
    counts failed attempts (of a `once` call, those that never began), `crashes` attempts that a lost owner left open. `child` is
    the child turn that a call of an agent has started. `declined` holds what was said to forms whose tool is told of it, by form
    key; `kept` is what an attempt that asked for a form keeps for the next. `form_marks` says where Structs stand
    in the data of a form.
    """

    id: str
    name: str
    arguments: JsonObject
    digest: str
    status: CallStatus = CallStatus.UNDECIDED
    effect: EffectKind = "repeatable"
    attempt: Count = 0
    activation: str | None = None
    failures: Count = 0
    crashes: Count = 0
    waits: Count = 0
    approved: bool = False
    edited: JsonObject | None = None
    edited_by: str | None = None
    forms: JsonObject | None = None
    result: str | None = None
    invalid: str | None = None
    sequential: bool = False
    cancellable: bool = False
    counted: bool = False
    known: bool = True
    parameters: JsonObject | None = None
    started: Ms = 0
    allowed: bool = False
    sensitive: tuple[str, ...] = ()
    policy_failures: Count = 0
    child: str | None = None
    declined: dict[str, Decline] | None = None
    kept: JsonValue = None
    form_marks: dict[str, Marks] | None = None

    @property
    def effective(self) -> JsonObject:
        """Return the arguments that the function gets."""
        return self.arguments if self.edited is None else self.edited

    def unmasked(self, arguments: JsonObject) -> JsonObject:
        """Return edited arguments with what the editor saw only masked, and sent back so, as the model wrote it."""
        kept = {name: self.effective[name] for name in self.sensitive if arguments.get(name) == MASK and name in self.effective}
        return {**arguments, **kept} if kept else arguments

    @property
    def finished(self) -> bool:
        """Tell whether the call has a result."""
        return self.status in FINISHED


class ModelAttempt(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """The model request under way or due: the number of its reply, failures so far, and who sent it (`None`: nobody yet)."""

    iteration: Count
    failures: Count = 0
    activation: str | None = None


class Failure(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """Why a turn failed."""

    type: str
    message: str


class Tree(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """What a child was told of its tree when it was created.

    `depth` is the number of turns above it. `budget` is the root's, which bounds the whole tree; `None` where that has no limit.
    `active_ms` is the time in which anything of the tree had run by then. `planning` says how many levels of plans it and those
    below it may make, `None` that nobody has limited that. `above` are the turns between the root and this one.
    """

    depth: Count
    budget: Budget | None = None
    active_ms: Count = 0
    planning: Count | None = None
    above: tuple[str, ...] = ()


class Recollection(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """What has to happen before the opening of a root in a conversation may enter its history.

    `recall`: the conversation is to be read; `failures` counts how often that has failed. `bound` is false where the turn was
    started by a node that does not know its agent. The first `given` entries of the opening were given by who started it.
    """

    recall: bool = True
    bound: bool = True
    given: Count = 0
    failures: Count = 0


class TurnState(msgspec.Struct, gc=False, array_like=True, omit_defaults=True):
    """Everything that is stored of a turn, but its history, events and receipts.

    Mutable for the machine's own draft; everybody else treats it as a value. `flushed` of the `calls` have their result in the
    history; `arrived` are texts (results of children) that enter it at the next boundary; `ending` is the terminal status that an
    ending turn will have once its running calls are over. `opening` is the beginning of the history of a turn that was started
    where its agent is not known, or in a conversation (then there is a `recollection`); the first executor puts the agent's
    instructions before it, and what the conversation remembers. `tree` is absent in a root. `below` is
    what children that have ended have used, they and those below them. `spans` are the times in which this turn or one of those
    ran: of a child all, of a root those since it has open children; what is older is counted in `active_ms`. `definition` is the
    digest of the agent with which the turn runs; empty until it is known. `plan` is the one that its model has made.
    `active_tools` are the names that its tools have activated, in that order. `metadata_marks` says where Structs stand in the
    metadata.
    """

    turn_id: str
    agent_id: str
    agent_version: str
    parent_turn_id: str | None = None
    conversation_id: str | None = None
    tenant: str | None = None
    metadata: JsonObject | None = None
    streaming: bool = False
    policy: ExecutionPolicy | None = None
    status: Status = Status.READY
    phase: Phase = Phase.MODEL
    iteration_count: Count = 0
    step_count: Count = 0
    tool_call_count: Count = 0
    retry_count: Count = 0
    usage: Usage = Usage()
    started: bool = False
    step_open: bool = False
    request: ModelAttempt | None = None
    calls: tuple[CallRecord, ...] = ()
    waits: tuple[OpenWait, ...] = ()
    wait_count: Count = 0
    call_marks: bytes = b""
    question: str | None = None
    children: tuple[str, ...] = ()
    cancel_reason: str | None = None
    cancel_at: Ms = 0
    failing: Failure | None = None
    final_output: JsonValue = None
    error: Failure | None = None
    budget_exceeded_reason: str | None = None
    active_ms: Count = 0
    active_since: Ms = 0
    created_at: Ms = 0
    updated_at: Ms = 0
    completed_at: Ms = 0
    message_count: Count = 0
    event_count: Count = 0
    ending: Status | None = None
    ending_at: Ms = 0
    flushed: Count = 0
    arrived: tuple[str, ...] = ()
    opening: list[HistoryEntry] | None = None
    tree: Tree | None = None
    below: Used = NOTHING
    spans: Spans = ()
    definition: bytes = b""
    plan: Plan | None = None
    recollection: Recollection | None = None
    active_tools: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    metadata_marks: Marks = ()

    def call(self, call_id: str) -> CallRecord | None:
        """Return the record of a call of the current reply."""
        for record in self.calls:
            if record.id == call_id:
                return record
        return None
