"""Small turns that are walked through as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from turnhold import (
    Agent,
    AiMessage,
    ApprovalDecision,
    ExecutionPolicy,
    FormDefinition,
    PlanningPolicy,
    RetryPolicy,
    Status,
    ToolCall,
    tool,
)

from .explorer import Story

FORM = FormDefinition("f", description="a form", schema={"type": "object"}, expires_in=20)
REQUIRE, ALLOW, DENY = ApprovalDecision.require(), ApprovalDecision.allow(), ApprovalDecision.deny()


class Nobody:
    async def complete(self, request):
        raise AssertionError


@tool(approval=ApprovalDecision.require(expires_in=15))
async def refund(amount: int = 0) -> str:
    """Refund; once, if a person agrees."""
    raise AssertionError


@tool(approval=lambda: True, effect="repeatable")
async def ship(amount: int = 0) -> str:
    """Ship; the policy is asked."""
    raise AssertionError


@tool(approval=True, effect="repeatable")
async def send(amount: int = 0) -> str:
    """Send, if a person agrees; it asks for a form."""
    raise AssertionError


@tool(effect="once")
async def charge(amount: int = 0) -> str:
    """Charge; once, and nobody is asked."""
    raise AssertionError


@tool(effect="once", sequential=True)
async def pay(amount: int = 0) -> str:
    """Pay; once, and nothing else meanwhile."""
    raise AssertionError


@tool(cancellable=True, sequential=True)
async def tidy(amount: int = 0) -> str:
    """Tidy up; alone, but it may be interrupted."""
    raise AssertionError


@tool(cancellable=True)
async def look_up(amount: int = 0) -> str:
    """Look something up."""
    raise AssertionError


def shop(*tools, **options) -> Agent:
    return Agent("shop", model=Nobody(), tools=tools, **options)


def calls(*names: str) -> AiMessage:
    return AiMessage("", tuple(ToolCall(f"c{at}", name) for at, name in enumerate(names, 1)))


DONE = AiMessage("done")


def approvals(**more) -> Story:
    """Two calls with two approvals, one of which asks for a form."""
    return replace(Story(shop(refund, send), (calls("refund", "send"), DONE), forms={"send": FORM}), **more)


def decisions(**more) -> Story:
    """A call that the policy decides, again when a person has edited it, behind a free one and before one that runs alone."""
    return replace(
        Story(shop(ship, tidy, look_up), (calls("look_up", "ship", "tidy"), DONE), (ALLOW, REQUIRE, DENY), api=True), **more
    )


def failures(**more) -> Story:
    """A `once` call and a `repeatable` one, each of which may fail, be lost, or never begin."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=5, jitter=0), tool_errors="return_to_model")
    kinds = ("error", "timeout", "unbegun")
    story = Story(shop(charge, look_up, policy=policy), (calls("charge", "look_up"), DONE), failures=kinds, faults=1)
    return replace(story, **more)


def in_turn(**more) -> Story:
    """A call that runs alone and fails the turn where it fails, one behind it; the application asks a question."""
    story = Story(shop(pay, send), (calls("pay", "send"), DONE), failures=("error", "timeout"), faults=1)
    return replace(story, **{"questions": 1, "api": True, **more})


def plan(**more) -> Story:
    """A plan of two tasks at once and one behind them, beside a call."""
    tasks: Any = [{"id": name, "title": name, "description": name, "dependsOn": after} for name, after in PARTS.items()]
    reply = AiMessage("", (ToolCall("p", "create_task_plan", {"goal": "g", "tasks": tasks}), ToolCall("c", "charge")))
    agent = shop(charge, planning=PlanningPolicy(max_parallel=2))
    return replace(Story(agent, (reply, DONE), ends=(Status.COMPLETED, Status.FAILED), api=True, handoffs=1), **more)


PARTS = {"a": [], "b": [], "c": ["a", "b"]}
