"""Limits and failure rules of a turn; frozen into the turn when it starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeAlias

import msgspec

from .errors import InvalidDefinition
from .record import JsonObject, Record, Seconds, duration, milliseconds

ToolErrors: TypeAlias = Literal["fail", "return_to_model"]
OnExpiry: TypeAlias = Literal["reject", "cancel", "fail", "default"]


def _limit(record: object, name: str, least: int = 0) -> None:
    value = getattr(record, name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise InvalidDefinition(f"{type(record).__name__}.{name} must be None or a whole number of at least {least}, not {value!r}")


def span(record: Record, name: str) -> None:
    """Turn a duration field of a frozen record into a timedelta, in place.

    :raises InvalidDefinition: if the value is not a duration or is negative.
    """
    value = getattr(record, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise InvalidDefinition(f"{type(record).__name__}.{name} must be a timedelta or seconds, not {value!r}")
    try:
        value = duration(value)
    except (OverflowError, ValueError) as error:
        raise InvalidDefinition(f"{type(record).__name__}.{name} is not a possible duration: {value!r}") from error
    if value < timedelta(0):
        raise InvalidDefinition(f"{type(record).__name__}.{name} must not be negative, not {value!r}")
    msgspec.structs.force_setattr(record, name, value)


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
        span(self, "max_duration")
        span(self, "max_wall_time")
        for name in ("max_input_tokens", "max_output_tokens", "max_total_tokens", "max_tool_calls"):
            _limit(self, name)


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
        span(self, "initial_delay")
        span(self, "max_delay")
        if duration(self.max_delay) < duration(self.initial_delay):
            raise InvalidDefinition("RetryPolicy.max_delay must not be less than initial_delay")
        if not self.multiplier >= 1:
            raise InvalidDefinition(f"RetryPolicy.multiplier must be at least 1, not {self.multiplier!r}")
        if not 0 <= self.jitter <= 1:
            raise InvalidDefinition(f"RetryPolicy.jitter must be between 0 and 1, not {self.jitter!r}")

    def delay_ms(self, retry: int, spread: float = 0.0) -> int:
        """Return the delay before the n-th retry in milliseconds; `spread` (0 to 1) says how much of the jitter to add."""
        first, most = milliseconds(self.initial_delay), milliseconds(self.max_delay)
        exponent = min(max(0, retry - 1), 64)
        delay = min(float(most), first * self.multiplier**exponent)
        return round(delay * (1 + self.jitter * spread))


class ExecutionPolicy(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How a turn runs: its limits, what a failing tool does, retries, and the words that close an interrupted history.

    The texts may name ``{reason}``, ``{turnId}``, ``{toolCallId}`` and ``{toolName}``.
    """

    max_iterations: int = 100
    max_steps: int = 1000
    max_crashes: int = 5
    tool_errors: ToolErrors = "fail"
    retry_policy: RetryPolicy = RetryPolicy()
    budget: Budget = Budget()
    interrupted_tool_message_template: str = "The call was not finished: {reason}"
    interrupted_turn_message_template: str = "This turn was not finished: {reason}"
    cancellation_reason: str = "cancelled"

    def __post_init__(self) -> None:
        for name in ("max_iterations", "max_steps", "max_crashes"):
            if getattr(self, name) is None:
                raise InvalidDefinition(f"ExecutionPolicy.{name} must be a whole number of at least 1, not None")
            _limit(self, name, least=1)
        if self.tool_errors not in ("fail", "return_to_model"):
            raise InvalidDefinition(f"ExecutionPolicy.tool_errors must be 'fail' or 'return_to_model', not {self.tool_errors!r}")
        if not isinstance(self.retry_policy, RetryPolicy):
            raise InvalidDefinition(f"ExecutionPolicy.retry_policy must be a RetryPolicy, not {self.retry_policy!r}")
        if not isinstance(self.budget, Budget):
            raise InvalidDefinition(f"ExecutionPolicy.budget must be a Budget, not {self.budget!r}")


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
        span(self, "expires_in")
        if self.on_expiry not in (None, "reject", "cancel", "fail"):
            raise InvalidDefinition(f"ApprovalDecision.on_expiry must be 'reject', 'cancel' or 'fail', not {self.on_expiry!r}")

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
        metadata: JsonObject | None = None,
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
            metadata=metadata or {},
            assignee=assignee,
            expires_in=expires_in,
            on_expiry=on_expiry,
        )

    @classmethod
    def deny(
        cls, *, code: str | None = None, message: str | None = None, reason: str | None = None, metadata: JsonObject | None = None
    ) -> ApprovalDecision:
        """Refuse the call; the model is told why."""
        return cls(outcome="deny", code=code, message=message, reason=reason, metadata=metadata or {})


class TurnOptions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of one turn. `execution_policy` replaces the agent's as a whole; metadata is JSON-like."""

    execution_policy: ExecutionPolicy | None = None
    metadata: JsonObject = {}
    streaming: bool = False


STRICTNESS = {"allow": 0, "require": 1, "deny": 2}


def strictest(first: ApprovalDecision, second: ApprovalDecision) -> ApprovalDecision:
    """Return the stricter of two decisions, the first one where they are equally strict."""
    return second if STRICTNESS[second.outcome] > STRICTNESS[first.outcome] else first
