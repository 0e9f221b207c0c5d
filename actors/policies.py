"""Limits and failure rules of a turn; frozen into the turn when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, TypeAlias, cast

import msgspec

from .carried import carried_object
from .checks import MAX_ID, MAX_TEXT, check_flag, check_object, check_span, check_text, check_whole, shown
from .errors import InvalidDefinition
from .record import JsonObject, Metadata, Record, Seconds, duration, milliseconds

MAX_MULTIPLIER = 100
MAX_REASON = 4096
MAX_TASKS = 100
CALL_CLOSED = "The call was not finished: {reason}"
TURN_CLOSED = "This turn was not finished: {reason}"
CANCELLED = "cancelled"

FailureStrategy: TypeAlias = Literal["stop", "continue"]
ToolErrors: TypeAlias = Literal["fail", "return_to_model"]
OnExpiry: TypeAlias = Literal["reject", "cancel", "fail", "default"]


def _limit(record: Record, name: str, least: int = 0) -> None:
    check_whole(f"{type(record).__name__}.{name}", getattr(record, name), least)


def _optional_limit(record: Record, name: str) -> None:
    if getattr(record, name) is not None:
        _limit(record, name)


def _number(record: Record, name: str, least: float, most: float) -> None:
    value = getattr(record, name)
    place = f"{type(record).__name__}.{name}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidDefinition(f"{place} must be a number, not {shown(value)}")
    if not least <= value <= most:
        raise InvalidDefinition(f"{place} must be from {least} to {most}, not {shown(value)}")


def _object(record: Record, name: str) -> None:
    """Check a JSON-like dict of a frozen record, and copy it."""
    value = getattr(record, name)
    if value or not isinstance(value, dict):
        body = check_object(f"{type(record).__name__}.{name}", value)
        msgspec.structs.force_setattr(record, name, msgspec.json.decode(body))


def _one_of(value: object, *words: str) -> bool:
    return isinstance(value, str) and value in words


def _span(record: Record, name: str) -> None:
    """Turn a duration field of a frozen record into a timedelta, in place; `None` stays."""
    value = getattr(record, name)
    if value is not None:
        msgspec.structs.force_setattr(record, name, check_span(f"{type(record).__name__}.{name}", value))


class Budget(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn may use. `None` is no limit, 0 allows none.

    `max_duration` counts the time in which something runs, `max_wall_time` all time since the start, waits included.
    """

    max_duration: Seconds | None = None
    max_wall_time: Seconds | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None
    max_tool_calls: int | None = None

    def __post_init__(self) -> None:
        _span(self, "max_duration")
        _span(self, "max_wall_time")
        for name in ("max_input_tokens", "max_output_tokens", "max_total_tokens", "max_tool_calls"):
            _optional_limit(self, name)


UNLIMITED = Budget()


class RetryPolicy(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How often one operation (a model request, a call) is tried again, and after how long.

    The delay before retry n is ``initial_delay * multiplier ** (n - 1)``, at most `max_delay`, plus up to `jitter` of itself; a
    provider's retry-after is honoured where it is longer.
    """

    max_retries: int = 0
    initial_delay: Seconds = timedelta(seconds=1)
    max_delay: Seconds = timedelta(seconds=60)
    multiplier: float = 2.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _limit(self, "max_retries")
        for name in ("initial_delay", "max_delay"):
            if getattr(self, name) is None:
                raise InvalidDefinition(f"RetryPolicy.{name} must be a timedelta or seconds, not None")
            _span(self, name)
        if duration(self.max_delay) < duration(self.initial_delay):
            raise InvalidDefinition("RetryPolicy.max_delay must not be less than initial_delay")
        _number(self, "multiplier", 1, MAX_MULTIPLIER)
        _number(self, "jitter", 0, 1)

    def delay_ms(self, retry: int, spread: float = 0.0) -> int:
        """Return the delay before the n-th retry in milliseconds; `spread` (0 to 1) says how much of the jitter to add."""
        first, most = milliseconds(self.initial_delay), milliseconds(self.max_delay)
        exponent = min(max(0, retry - 1), 64)
        delay = min(float(most), first * self.multiplier**exponent)
        return round(delay * (1 + self.jitter * spread))


class ExecutionPolicy(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How a turn runs: its limits, what a failing tool does, retries, and the words that close an interrupted history.

    The texts may name ``{reason}``, ``{turnId}``, ``{toolCallId}`` and ``{toolName}``. With `sequential` the calls of one reply run
    one at a time, in its order.
    """

    max_iterations: int = 100
    max_steps: int = 1000
    max_crashes: int = 5
    tool_errors: ToolErrors = "fail"
    retry_policy: RetryPolicy = RetryPolicy()
    budget: Budget = UNLIMITED
    interrupted_tool_message_template: str = CALL_CLOSED
    interrupted_turn_message_template: str = TURN_CLOSED
    cancellation_reason: str = CANCELLED
    sequential: bool = False

    def __post_init__(self) -> None:
        check_whole("ExecutionPolicy.max_iterations", self.max_iterations, 1)
        check_whole("ExecutionPolicy.max_steps", self.max_steps, 1)
        check_whole("ExecutionPolicy.max_crashes", self.max_crashes, 1)
        check_flag("ExecutionPolicy.sequential", self.sequential)
        if not _one_of(self.tool_errors, "fail", "return_to_model"):
            found = shown(self.tool_errors)
            raise InvalidDefinition(f"ExecutionPolicy.tool_errors must be 'fail' or 'return_to_model', not {found}")
        if not isinstance(self.retry_policy, RetryPolicy):
            raise InvalidDefinition(f"ExecutionPolicy.retry_policy must be a RetryPolicy, not {shown(self.retry_policy)}")
        if not isinstance(self.budget, Budget):
            raise InvalidDefinition(f"ExecutionPolicy.budget must be a Budget, not {shown(self.budget)}")
        # a stored policy is read often, and mostly has these very words
        if self.interrupted_tool_message_template is not CALL_CLOSED:
            check_text("ExecutionPolicy.interrupted_tool_message_template", self.interrupted_tool_message_template, MAX_REASON)
        if self.interrupted_turn_message_template is not TURN_CLOSED:
            check_text("ExecutionPolicy.interrupted_turn_message_template", self.interrupted_turn_message_template, MAX_REASON)
        if self.cancellation_reason is not CANCELLED:
            check_text("ExecutionPolicy.cancellation_reason", self.cancellation_reason, MAX_REASON)


class PlanningPolicy(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How the turns of an agent may plan; frozen into each plan that is made.

    A task goes to the agent itself or to one of `allowed_agent_ids`. Independent tasks run at once, up to `max_parallel`. When one
    does not complete, ``"stop"`` starts no more; ``"continue"`` lets the model change the plan, up to `max_replans` times
    (`task_revision_allowed`: what has not started, `task_append_allowed`: more tasks), else goes on with what can.
    `max_depth` counts levels of plans, where `child_planning_allowed` lets tasks make plans of their own. The model is told
    `planning_instructions`, and of each result `task_result_max_length` characters (`None`: as far as a stored plan has room,
    128 KiB for `max_tasks`). Without `final_summary_required` the last result that is not empty is the turn's answer.
    """

    max_tasks: int = 10
    max_depth: int = 1
    child_planning_allowed: bool = False
    failure_strategy: FailureStrategy = "stop"
    planning_instructions: str | None = None
    max_replans: int = 0
    task_revision_allowed: bool = False
    task_append_allowed: bool = False
    task_result_max_length: int | None = None
    final_summary_required: bool = True
    allowed_agent_ids: tuple[str, ...] = ()
    max_parallel: int = 4

    def __post_init__(self) -> None:
        check_whole("PlanningPolicy.max_tasks", self.max_tasks, 1, MAX_TASKS)
        for name, least in (("max_depth", 1), ("max_replans", 0), ("max_parallel", 1)):
            _limit(self, name, least)
        if self.task_result_max_length is not None:
            _limit(self, "task_result_max_length", 1)
        for name in ("child_planning_allowed", "task_revision_allowed", "task_append_allowed", "final_summary_required"):
            check_flag(f"PlanningPolicy.{name}", getattr(self, name))
        if not _one_of(self.failure_strategy, "stop", "continue"):
            found = shown(self.failure_strategy)
            raise InvalidDefinition(f"PlanningPolicy.failure_strategy must be 'stop' or 'continue', not {found}")
        check_text("PlanningPolicy.planning_instructions", self.planning_instructions, MAX_TEXT, optional=True)
        if self.max_replans and not (self.task_revision_allowed or self.task_append_allowed):
            raise InvalidDefinition("PlanningPolicy.max_replans needs task_revision_allowed or task_append_allowed")
        ids = cast("object", self.allowed_agent_ids)
        if isinstance(ids, str) or not isinstance(ids, tuple | list):
            raise InvalidDefinition(f"PlanningPolicy.allowed_agent_ids must be a tuple of agent ids, not {shown(ids)}")
        for each in cast("tuple[object, ...]", ids):
            check_text("PlanningPolicy.allowed_agent_ids", each, MAX_ID, empty=False)
        msgspec.structs.force_setattr(self, "allowed_agent_ids", tuple(dict.fromkeys(cast("tuple[str, ...]", ids))))


class ApprovalDecision(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What an approval policy says of one call; of several decisions the strictest wins."""

    outcome: Literal["allow", "require", "deny"]
    code: str | None = None
    message: str | None = None
    reason: str | None = None
    metadata: JsonObject = {}
    assignee: str | None = None
    expires_in: Seconds | None = None
    on_expiry: OnExpiry | None = None

    def __post_init__(self) -> None:
        if not _one_of(self.outcome, "allow", "require", "deny"):
            raise InvalidDefinition(f"ApprovalDecision.outcome must be 'allow', 'require' or 'deny', not {shown(self.outcome)}")
        for name, limit in (("code", MAX_ID), ("message", MAX_REASON), ("reason", MAX_REASON), ("assignee", MAX_ID)):
            check_text(f"ApprovalDecision.{name}", getattr(self, name), limit, optional=True)
        _object(self, "metadata")
        _span(self, "expires_in")
        if self.on_expiry is not None and not _one_of(self.on_expiry, "reject", "cancel", "fail"):
            found = shown(self.on_expiry)
            raise InvalidDefinition(f"ApprovalDecision.on_expiry must be 'reject', 'cancel' or 'fail', not {found}")

    @classmethod
    def allow(cls) -> ApprovalDecision:
        """Let the call run."""
        return cls(outcome="allow")

    @classmethod
    def require(
        cls,
        *,
        code: str | None = None,
        message: str | None = None,
        reason: str | None = None,
        metadata: Mapping[str, object] | None = None,
        assignee: str | None = None,
        expires_in: Seconds | None = None,
        on_expiry: OnExpiry | None = None,
    ) -> ApprovalDecision:
        """Let the call wait until a person approves or rejects it."""
        return cls(
            outcome="require",
            code=code,
            message=message,
            reason=reason,
            metadata=cast("JsonObject", {} if metadata is None else metadata),
            assignee=assignee,
            expires_in=expires_in,
            on_expiry=on_expiry,
        )

    @classmethod
    def deny(
        cls,
        *,
        code: str | None = None,
        message: str | None = None,
        reason: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ApprovalDecision:
        """Refuse the call; the model is told why."""
        return cls(
            outcome="deny",
            code=code,
            message=message,
            reason=reason,
            metadata=cast("JsonObject", {} if metadata is None else metadata),
        )


ALLOW = ApprovalDecision.allow()
REQUIRE = ApprovalDecision.require()


class TurnOptions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of one turn. `execution_policy` replaces the agent's as a whole; for metadata see `Runtime.start`."""

    execution_policy: ExecutionPolicy | None = None
    metadata: Metadata = {}
    streaming: bool = False

    def __post_init__(self) -> None:
        policy = self.execution_policy
        if policy is not None and not isinstance(policy, ExecutionPolicy):
            raise InvalidDefinition(f"TurnOptions.execution_policy must be an ExecutionPolicy, not {shown(policy)}")
        if self.metadata or not isinstance(self.metadata, dict):
            msgspec.structs.force_setattr(self, "metadata", carried_object("TurnOptions.metadata", self.metadata))
        check_flag("TurnOptions.streaming", self.streaming)


STRICTNESS = {"allow": 0, "require": 1, "deny": 2}


def strictest(first: ApprovalDecision, second: ApprovalDecision) -> ApprovalDecision:
    """Return the stricter of two decisions, the first one where they are equally strict."""
    return second if STRICTNESS[second.outcome] > STRICTNESS[first.outcome] else first
