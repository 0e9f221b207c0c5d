"""Wrong fields of policies, options, decisions and commands: each is named, with what is wrong and the limit."""

# pyright: reportArgumentType=false

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from turnhold import (
    ApprovalDecision,
    Budget,
    CommandType,
    ExecutionPolicy,
    FormDefinition,
    InvalidDefinition,
    ModelOptions,
    ResumeCommand,
    RetryPolicy,
    TurnOptions,
    tool,
)

from .hostile import BAD_DURATIONS, BAD_NAMES, BAD_NUMBERS, BAD_OBJECTS, DEEP, MEGABYTES, Rude, Word, cases, cyclic


def refused(build: Any, words: str) -> str:
    """Check that it is refused with a short message, and return that."""
    with pytest.raises(InvalidDefinition, match=words) as caught:
        build()
    text = str(caught.value)
    assert len(text) < 500
    text.encode()
    return text


# ------------------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *((Budget, f"max_{name}") for name in ("input_tokens", "output_tokens", "total_tokens", "tool_calls")),
        (RetryPolicy, "max_retries"),
        *((ExecutionPolicy, name) for name in ("max_iterations", "max_steps", "max_crashes")),
        (ModelOptions, "max_output_tokens"),
    ],
)
@pytest.mark.parametrize("value", [*BAD_NUMBERS.values(), -1, 2**70], ids=[*BAD_NUMBERS, "negative", "2**70"])
def test_whole_numbers(kind: Any, field: str, value: Any) -> None:
    """A count is a whole number within 64 bits."""
    refused(lambda: kind(**{field: value}), f"{kind.__name__}.{field} must be")


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *((Budget, name) for name in ("max_duration", "max_wall_time")),
        *((RetryPolicy, name) for name in ("initial_delay", "max_delay")),
        (ModelOptions, "timeout"),
    ],
)
@pytest.mark.parametrize(("value", "words"), **cases(BAD_DURATIONS))
def test_durations(kind: Any, field: str, value: Any, words: str) -> None:
    """A duration is neither negative nor longer than the calendar can bear."""
    assert f"{kind.__name__}.{field}" in refused(lambda: kind(**{field: value}), words)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: RetryPolicy(max_retries=None), "RetryPolicy.max_retries must be a whole number"),
        (lambda: RetryPolicy(initial_delay=None), "RetryPolicy.initial_delay must be a timedelta"),
        (lambda: RetryPolicy(multiplier="2"), "RetryPolicy.multiplier must be a number"),
        (lambda: RetryPolicy(multiplier=True), "RetryPolicy.multiplier must be a number"),
        (lambda: RetryPolicy(multiplier=1e300), "RetryPolicy.multiplier must be from 1 to 100"),
        (lambda: RetryPolicy(multiplier=float("inf")), "RetryPolicy.multiplier must be from 1 to 100"),
        (lambda: RetryPolicy(jitter=None), "RetryPolicy.jitter must be a number"),
        (lambda: RetryPolicy(jitter=float("nan")), "RetryPolicy.jitter must be from 0 to 1"),
        (lambda: ExecutionPolicy(tool_errors=["fail"]), "ExecutionPolicy.tool_errors must be 'fail'"),
        (lambda: ExecutionPolicy(retry_policy=Rude()), "ExecutionPolicy.retry_policy must be a RetryPolicy"),
        (lambda: ExecutionPolicy(budget={}), "ExecutionPolicy.budget must be a Budget"),
        (lambda: ExecutionPolicy(cancellation_reason=None), "ExecutionPolicy.cancellation_reason must be text"),
        (lambda: ExecutionPolicy(interrupted_turn_message_template="\ud800"), "turn_message_template is not valid Unicode"),
        (lambda: ExecutionPolicy(interrupted_tool_message_template="x" * 4097), "4097 bytes, the limit is 4096"),
        (lambda: ModelOptions(temperature="hot"), "ModelOptions.temperature must be None or a number"),
        (lambda: ModelOptions(top_p=float("nan")), "ModelOptions.top_p must be None or a number"),
        (lambda: ModelOptions(stop="END"), "ModelOptions.stop must be a list of texts"),
        (lambda: ModelOptions(stop=("",)), "ModelOptions.stop must not be blank"),
        (lambda: ModelOptions(tool_choice=5), "ModelOptions.tool_choice must be text"),
        (lambda: ModelOptions(timeout=0), "ModelOptions.timeout must be more than 0"),
        (lambda: ModelOptions(extra=[1]), "ModelOptions.extra must be a dict"),
        (lambda: TurnOptions(execution_policy={}), "TurnOptions.execution_policy must be an ExecutionPolicy"),
        (lambda: TurnOptions(streaming=1), "TurnOptions.streaming must be True or False"),
        (lambda: tool(_nothing, timeout=200 * 366 * 86_400), "timeout must be at most 36525 days"),
        (lambda: _form(expires_in=timedelta.max), "expires_in must be at most 36525 days"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_fields(build: Any, words: str) -> None:
    """Each field says what it takes."""
    refused(build, words)


def _nothing() -> None:
    """Do nothing."""


def _form(**options: Any) -> Any:
    return FormDefinition("f", description="d", schema={"type": "object"}, **options)


def test_the_greatest_multiplier_overflows_nothing() -> None:
    """A retry of any number has a delay."""
    policy = RetryPolicy(max_retries=10**6, initial_delay=36_525 * 86_400, max_delay=36_525 * 86_400, multiplier=100, jitter=1)

    assert policy.delay_ms(10**6, 1.0) == 2 * 36_525 * 86_400_000


@pytest.mark.parametrize("kind", [TurnOptions, ApprovalDecision.require, ApprovalDecision.deny])
@pytest.mark.parametrize(("value", "words"), **cases(BAD_OBJECTS))
def test_metadata(kind: Any, value: Any, words: str) -> None:
    """Metadata is a small JSON-like dict."""
    assert "metadata" in refused(lambda: kind(metadata=value), words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"code": 5}, "ApprovalDecision.code must be text"),
        ({"code": "x" * 129}, "ApprovalDecision.code has 129 bytes, the limit is 128"),
        ({"message": "\ud800"}, "ApprovalDecision.message is not valid Unicode"),
        ({"reason": MEGABYTES}, "ApprovalDecision.reason has 10000000 bytes, the limit is 4096"),
        ({"assignee": b"ann"}, "ApprovalDecision.assignee must be text"),
        ({"expires_in": -1}, "ApprovalDecision.expires_in must not be negative"),
        ({"expires_in": timedelta.max}, "ApprovalDecision.expires_in must be at most 36525 days"),
        ({"on_expiry": "default"}, "ApprovalDecision.on_expiry must be"),
        ({"on_expiry": ["reject"]}, "ApprovalDecision.on_expiry must be"),
        ({"outcome": "maybe"}, "ApprovalDecision.outcome must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_decisions(fields: dict, words: str) -> None:
    """A decision becomes part of a stored wait, so it is checked where it is made."""
    refused(lambda: ApprovalDecision(**{"outcome": "require", **fields}), words)


def test_records_copy_their_metadata() -> None:
    """What changes later in the caller's dict is not in the record."""
    given = {"a": [1]}
    made = TurnOptions(metadata=given), ApprovalDecision.require(metadata=given), ResumeCommand.retry(metadata=given)
    given["a"].append(2)

    assert [record.metadata for record in made] == [{"a": [1]}] * 3


# ------------------------------------------------------------------------------------------------------------- commands

MAKERS: dict[str, Any] = {
    "approve_tool": ResumeCommand.approve_tool,
    "reject_tool": ResumeCommand.reject_tool,
    "user_input": lambda wait=None, **more: ResumeCommand.user_input("x", wait=wait, **more),
    "submit_form": lambda wait=None, **more: ResumeCommand.submit_form(wait, {}, **more),
    "decline": ResumeCommand.decline,
    "retry": ResumeCommand.retry,
    "rerun": ResumeCommand.rerun,
    "give_result": lambda wait=None, **more: ResumeCommand.give_result(wait, 1, **more),
    "fail_call": ResumeCommand.fail_call,
    "the class itself": lambda **more: ResumeCommand(type=CommandType.RETRY, **more),
}


@pytest.mark.parametrize("maker", **cases(MAKERS))
@pytest.mark.parametrize("field", ["wait", "command_id"])
@pytest.mark.parametrize(("value", "words"), **cases(BAD_NAMES))
def test_names_in_commands(maker: Any, field: str, value: Any, words: str) -> None:
    """A wait or a command id is a short text."""
    assert refused(lambda: maker(**{field: value}), words).startswith(field)


@pytest.mark.parametrize("maker", **cases(MAKERS))
@pytest.mark.parametrize(("value", "words"), **cases(BAD_OBJECTS))
def test_metadata_of_commands(maker: Any, value: Any, words: str) -> None:
    """A command's metadata goes into its receipt."""
    assert refused(lambda: maker(metadata=value), words).startswith("metadata")


@pytest.mark.parametrize(("value", "words"), **cases(BAD_OBJECTS))
def test_arguments(value: Any, words: str) -> None:
    """Edited arguments are a JSON-like dict."""
    assert refused(lambda: ResumeCommand.approve_tool(arguments=value), words).startswith("arguments")


@pytest.mark.parametrize("maker", [ResumeCommand.submit_form, ResumeCommand.give_result])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1}, "data is a set"),
        (b"x", "data is a bytes"),
        (Rude(), "data is a Rude"),
        (float("inf"), "data is inf"),
        (2**70, "data is a whole number outside 64 bits"),
        ("\ud800", "data is not valid Unicode"),
        (DEEP, "nested too deep"),
        (cyclic(), "nested too deep"),
        (MEGABYTES, "data has 10000002 bytes as JSON, the limit is 65536"),
        (Word("x"), "data is not JSON-like"),
    ],
    ids=["set", "bytes", "object", "infinity", "2**70", "surrogate", "deep", "cyclic", "10 MB", "own class"],
)
def test_data(maker: Any, value: Any, words: str) -> None:
    """Form data and given results are any JSON value within bounds."""
    refused(lambda: maker("w", value), words)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ResumeCommand.user_input(None), "text must be text"),
        (lambda: ResumeCommand.user_input(b"yes"), "text must be text"),
        (lambda: ResumeCommand.user_input("\ud800"), "text is not valid Unicode"),
        (lambda: ResumeCommand.user_input(MEGABYTES), "text has 10000000 bytes, the limit is 65536"),
        (lambda: ResumeCommand.reject_tool(reason=5), "text must be text"),
        (lambda: ResumeCommand.decline(reason="x" * 65_537), "text has 65537 bytes, the limit is 65536"),
        (lambda: ResumeCommand.fail_call(reason="\udc00"), "text is not valid Unicode"),
        (lambda: ResumeCommand.retry(force="yes"), "force must be True or False"),
        (lambda: ResumeCommand.retry(force=1), "force must be True or False"),
        (lambda: ResumeCommand.retry(by="x" * 129), "by has 129 bytes, the limit is 128"),
        (lambda: ResumeCommand.retry(by=7), "by must be text"),
        (lambda: ResumeCommand.retry("w" * 257), "wait has 257 bytes, the limit is 256"),
        (lambda: ResumeCommand.retry(command_id="ä" * 65), "command_id has 130 bytes, the limit is 128"),
        (lambda: ResumeCommand(type="RETRY"), "type must be a CommandType"),
        (lambda: ResumeCommand(type=Rude()), "type must be a CommandType"),
        (lambda: ResumeCommand(type=CommandType.RETRY, turn_id=4), "turn_id must be text"),
        (lambda: ResumeCommand(type=CommandType.RETRY, metadata=None), "metadata must be a dict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_commands(build: Any, words: str) -> None:
    """Each field says what it takes, also where a command is not made by its constructors."""
    refused(build, words)


def test_a_command_from_outside_is_checked_like_any_other() -> None:
    """What comes as JSON has the same bounds."""
    good = ResumeCommand.approve_tool("w", arguments={"a": 1}, by="ann").to_dict()

    assert ResumeCommand.from_dict(good) == ResumeCommand.approve_tool("w", arguments={"a": 1}, by="ann")
    for field, value in {"by": "x" * 129, "wait": "", "metadata": [1], "type": "NO", "force": "maybe", "text": "\ud800"}.items():
        with pytest.raises(InvalidDefinition, match=r"ResumeCommand: .*"):
            ResumeCommand.from_dict({**good, field: value})


def test_a_command_with_wrong_fields_cannot_be_read_from_bytes() -> None:
    """Stored mail is held to the same bounds."""
    body = msgspec.msgpack.encode({"type": "RETRY", "by": "x" * 129})

    with pytest.raises(msgspec.ValidationError, match="by has 129 bytes"):
        msgspec.msgpack.decode(body, type=ResumeCommand)
