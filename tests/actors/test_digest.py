"""The digest of a definition: what changes it, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import (
    Agent,
    ApprovalDecision,
    ContextWindow,
    ExecutionPolicy,
    FormDefinition,
    Middleware,
    ModelOptions,
    PlanningPolicy,
    tool,
    user_input_tool,
)
from turnhold.testing import ScriptedModel


class Named:
    """A model with a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, request: Any) -> Any:
        raise NotImplementedError


def look(order: str) -> str:
    """Look up an order."""
    return order


def looked(name: str = "look", description: str = "Look.", **options: Any) -> Any:
    return tool(name=name, description=description, **options)(look)


def shop(**changes: Any) -> Agent[Any]:
    return Agent("shop", **{"model": ScriptedModel("x"), "instructions": "Help.", "tools": [looked()], **changes})


def form(**options: Any) -> Any:
    return user_input_tool(FormDefinition("f", description="d", schema={"type": "object"}, **options))


class Brings(Middleware):
    """Middleware that brings a tool along."""

    def __init__(self, **options: Any) -> None:
        self.tools = (looked("brought", **options),)


def allow(turn: object, call: object, tool: object) -> bool:
    """An approval policy."""
    return False


def test_the_same_definition_has_the_same_digest() -> None:
    """Built twice, in another order of its tools, with other scripts, under another version: the same eight bytes."""
    one = shop(tools=[looked(), looked("find")], approval=allow)
    two = shop(tools=[looked("find"), looked()], approval=allow, model=ScriptedModel("y"), version="2", description="other")

    assert one.digest == two.digest
    assert len(one.digest) == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"instructions": "Help!"},
        {"instructions": None},
        {"planning": PlanningPolicy()},
        {"tools": []},
        {"tools": [looked(description="Look up.")]},
        {"tools": [looked(approval=True)]},
        {"tools": [looked(approval=ApprovalDecision.require(code="x"))]},
        {"tools": [looked(effect="once")]},
        {"tools": [looked(timeout=5)]},
        {"tools": [looked(sensitive=["order"])]},
        {"tools": [user_input_tool(FormDefinition("f", description="d", schema={"type": "object"}))]},
        {"tools": [user_input_tool(FormDefinition("f", description="d", schema={"type": "string"}))]},
        {"approval": allow},
        {"policy": ExecutionPolicy(max_iterations=3)},
        {"options": ModelOptions(temperature=0.5)},
        {"window": ContextWindow(max_turns=3)},
        {"output_type": int},
        {"model": Named("a")},
        {"model": Named("b")},
        {"multimodal_model": Named("a")},
    ],
    ids="_".join,
)
def test_what_changes_it(changes: dict[str, Any]) -> None:
    """Texts, schemas, options, rules, the class and the name of the model; no two of these are the same."""
    digests = [shop(**each).digest for each in ({}, changes)]

    assert len(set(digests)) == 2


def test_forms_and_tools_of_middleware_count() -> None:
    """So do the rules of a form, and the tools that middleware brings along: who may run one without asking is a change."""
    several = [
        {},
        *({"tools": [form(**each)]} for each in ({}, {"assignee": "ann"}, {"expires_in": 5}, {"tell_decline": True})),
        {"tools": [form(expires_in=5, on_expiry="cancel")]},
        {"tools": [form(expires_in=5, on_expiry="default", default={})]},
        *({"middleware": [Brings(**each)]} for each in ({}, {"approval": True}, {"effect": "once"})),
    ]

    assert len({shop(**each).digest for each in several}) == len(several)
    assert shop(middleware=[Brings()]).digest == shop(middleware=[Brings()]).digest


def test_what_cannot_be_compared_has_a_name_without_an_address() -> None:
    """Objects that decide count by the name of their class or function, which is the same in every process."""

    class Approver:
        def __call__(self, turn: object, call: object, tool: object) -> bool:
            return False

    def digest() -> bytes:
        options = ModelOptions(extra={"a": object()})  # pyright: ignore[reportArgumentType] - the subject
        return shop(approval=Approver(), compressor=lambda messages, context: messages, options=options).digest

    assert digest() == digest()
