"""Value objects: budgets, retries, decisions, commands."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import reduce
from types import MappingProxyType
from typing import Any

import pytest

from turnhold.actors.errors import InvalidDefinition
from turnhold.actors.model import ModelOptions
from turnhold.actors.policies import ApprovalDecision, Budget, ExecutionPolicy, RetryPolicy, TurnOptions, strictest
from turnhold.actors.waits import ResumeCommand

LIMITS = ("max_input_tokens", "max_output_tokens", "max_total_tokens", "max_tool_calls")


def test_a_budget_without_limits() -> None:
    """Scenario Q 329: nothing is limited unless said; 0 allows none."""
    assert Budget().max_total_tokens is None
    assert Budget(max_tool_calls=0).max_tool_calls == 0
    assert Budget(max_duration=1.5).max_duration == timedelta(seconds=1.5)


@pytest.mark.parametrize("field", LIMITS)
@pytest.mark.parametrize("value", [-1, True, 1.5, "1"])
def test_wrong_limits(field: str, value: Any) -> None:
    """Scenario Q 329: each negative limit, and what is no whole number."""
    with pytest.raises(InvalidDefinition, match=f"Budget.{field}"):
        Budget(**{field: value})


@pytest.mark.parametrize("field", ["max_duration", "max_wall_time"])
@pytest.mark.parametrize("value", [-1, True, "1", float("nan"), 1e300])
def test_wrong_durations(field: str, value: Any) -> None:
    """Scenario Q 329: negative and impossible durations."""
    with pytest.raises(InvalidDefinition, match=f"Budget.{field}"):
        Budget(**{field: value})


@pytest.mark.parametrize(("retry", "delay"), [(0, 100), (1, 100), (2, 200), (3, 350), (10, 350), (10**6, 350)])
def test_back_off(retry: int, delay: int) -> None:
    """Scenario Q 330: 100 ms, doubled, at most 350."""
    policy = RetryPolicy(max_retries=3, initial_delay=0.1, max_delay=0.35, multiplier=2)

    assert policy.delay_ms(retry) == delay
    assert delay <= policy.delay_ms(retry, spread=1.0) <= delay * 1.1 + 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_retries": -1},
        {"initial_delay": -1},
        {"initial_delay": 2, "max_delay": 1},
        {"multiplier": 0.5},
        {"multiplier": float("nan")},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_wrong_retry_policies(arguments: dict) -> None:
    """Scenario Q 331: each value out of its range."""
    with pytest.raises(InvalidDefinition, match="RetryPolicy"):
        RetryPolicy(**arguments)


def test_a_decision_keeps_what_it_was_given() -> None:
    """Scenario Q 332: outcome, code, metadata; its fields cannot be set."""
    decision = ApprovalDecision.require(code="big", metadata={"limit": 3}, expires_in=60, on_expiry="reject")

    assert (decision.outcome, decision.code, decision.metadata) == ("require", "big", {"limit": 3})
    assert decision.expires_in == timedelta(minutes=1)
    with pytest.raises(AttributeError):
        decision.code = "x"  # type: ignore[misc]


def test_what_a_record_was_given_is_copied() -> None:
    """Scenario Q 332: later changes of the caller's dict do not show in a decision, in options of a turn or of a model."""
    source: Any = {"tags": ["a"]}
    kept = [
        ApprovalDecision.require(metadata=source).metadata,
        ApprovalDecision(outcome="deny", metadata=source).metadata,
        TurnOptions(metadata=source).metadata,
        ModelOptions(extra=source).extra,
    ]
    source["tags"].append("b")

    assert kept == [{"tags": ["a"]}] * 4
    with pytest.raises(InvalidDefinition, match=r"ModelOptions\.extra cannot be copied"):
        ModelOptions(extra={"lock": threading.Lock()})  # type: ignore[dict-item]


def test_the_strictest_decision_wins() -> None:
    """Deny over require over allow; the first of equals."""
    allow, require, deny = ApprovalDecision.allow(), ApprovalDecision.require(code="a"), ApprovalDecision.deny()

    assert strictest(allow, require) is require
    assert strictest(deny, require) is deny
    assert strictest(require, ApprovalDecision.require(code="b")) is require


def test_a_command_copies_what_it_carries() -> None:
    """Scenarios Q 333 and Q 334: later changes of the source do not change the command."""
    metadata: Any = {"tags": ["a"]}
    data: Any = {"list": [1]}
    submit = ResumeCommand.submit_form("c1", data, metadata=MappingProxyType(metadata))
    approve = ResumeCommand.approve_tool("c1", arguments=data)
    metadata["tags"].append("b")
    data["list"].append(2)

    assert submit.metadata == {"tags": ["a"]}
    assert submit.value == {"list": [1]}
    assert approve.arguments == {"list": [1]}
    assert submit.wait == "c1"
    with pytest.raises(AttributeError):
        submit.value = None  # type: ignore[misc]


@pytest.mark.parametrize(
    "data",
    [
        reduce(lambda inner, _: [inner], range(10_000), 1),
        reduce(lambda inner, _: [inner, inner], range(31), 1),
        "x" * 1_000_000,
        {1, 2},
        2**64,
        float("nan"),
        {"\ud800": 1},
    ],
    ids=["levels", "shared", "1 MB", "set", "bignum", "nan", "surrogate"],
)
def test_a_command_carries_bounded_json(data: Any) -> None:
    """Anything else is refused where the command is made, at once."""
    with pytest.raises(InvalidDefinition, match="data"):
        ResumeCommand.submit_form("c1", data)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_iterations": 0},
        {"max_iterations": None},
        {"max_steps": 0},
        {"max_crashes": -1},
        {"tool_errors": None},
        {"tool_errors": "ignore"},
        {"retry_policy": None},
        {"budget": None},
    ],
)
def test_wrong_execution_policies(arguments: dict) -> None:
    """Scenario Q 338: limits of at least 1, a known strategy, a retry policy and a budget."""
    with pytest.raises(InvalidDefinition, match=f"ExecutionPolicy.{next(iter(arguments))}"):
        ExecutionPolicy(**arguments)
