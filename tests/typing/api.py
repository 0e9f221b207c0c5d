"""A typed program: checked by basedpyright, never run. Beside each expression stands the type it must have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, assert_type

import msgspec

from turnhold.actors.agent import Agent
from turnhold.actors.chat import AiMessage, ToolCall
from turnhold.actors.context import ToolContext
from turnhold.actors.forms import FormDefinition, user_input_tool
from turnhold.actors.loader import AgentLoader, InMemoryAgentLoader
from turnhold.actors.middleware import Middleware, StepEnd, TurnContext
from turnhold.actors.model import ChatModel, ModelRequest
from turnhold.actors.policies import ApprovalDecision, TurnOptions
from turnhold.actors.record import JsonValue
from turnhold.actors.tool_search import ToolSearch
from turnhold.actors.toolbox import ToolGroup
from turnhold.actors.tools import Tool, tool
from turnhold.actors.turn import Status
from turnhold.actors.view import Page, TurnView
from turnhold.actors.waits import ResumeCommand
from turnhold.runtime.ref import TurnRef
from turnhold.runtime.runtime import Runtime


class Item(msgspec.Struct):
    sku: str


@dataclass
class Stay:
    nights: int


class Address(TypedDict):
    street: str


class Services:
    rate: float = 1.5


class Model:
    async def complete(self, request: ModelRequest) -> AiMessage:
        return AiMessage(request.agent_id)


@tool
def plain(order_id: str, amount: int = 1) -> float:
    return amount * 1.5


@tool(approval=True, effect="once", timeout=3, sensitive=("card",))
async def with_options(card: str) -> list[int]:
    return [len(card)]


@tool(approval=lambda amount: amount > 3)
def asked(amount: int) -> None: ...


def decide(call: ToolCall) -> ApprovalDecision:
    return ApprovalDecision.deny(reason=call.name)


async def decide_later(amount: int) -> bool:
    return amount > 3


assert_type(plain("o"), float)
assert_type(plain(order_id="o", amount=3), float)
assert_type(tool(plain.function, approval=decide)("o"), float)
assert_type(tool(plain.function, approval=decide_later)("o"), float)

plain(3)  # pyright: ignore[reportArgumentType]
plain("o", price=3)  # pyright: ignore[reportCallIssue]
plain.name = "x"  # pyright: ignore[reportAttributeAccessIssue]
tool(plain.function, effect="twice")  # pyright: ignore[reportArgumentType]
tool(plain.function, approval="yes")  # pyright: ignore[reportArgumentType]


class Desk:
    async def book(self, seat: int) -> str:
        return str(seat)


async def calls() -> None:
    assert_type(await with_options("4111"), list[int])
    later: Coroutine[Any, Any, list[int]] = with_options("4111")
    assert_type(await later, list[int])
    assert_type(await tool(Desk().book)(seat=3), str)


by_schema = Tool.from_schema("x", "Takes a.", {"type": "object"}, plain.function)
assert_type(by_schema("o"), float)

item = FormDefinition("item", description="An item.", schema=Item)
stay = FormDefinition("stay", description="A stay.", schema=Stay, expires_in=60, on_expiry="default", default=Stay(1))
address = FormDefinition("address", description="An address.", schema=Address)
untyped = FormDefinition("any", description="Anything.", schema={"type": "object"})
assert_type(item, FormDefinition[Item])
assert_type(user_input_tool(item, stay, untyped).name, str)


@tool
async def in_context(ctx: ToolContext[Services], seat: int) -> float:
    assert_type(ctx.form(item), Item)
    assert_type(ctx.form(stay), Stay)
    assert_type(ctx.form(address), Address)
    assert_type(ctx.form(untyped), Any)
    assert_type(ctx.services, Services)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.cancel_requested, bool)
    assert_type(ToolContext.current(), ToolContext[Any])
    done = {"seats": [seat]}
    await ctx.progress("half", seat=seat, done=done)
    return ctx.services.rate


model: ChatModel = Model()
agent = Agent("shop", model=Model(), tools=[plain, with_options, Desk().book, user_input_tool(item)], attributes={"team": "a"})
assert_type(agent.tool("plain"), Tool[..., Any] | None)
assert_type(agent.replace(version="2"), Agent[str])
Agent("shop", "2", model=Model())  # pyright: ignore[reportCallIssue]
Agent("shop")  # pyright: ignore[reportCallIssue]
tags: dict[str, list[int]] = {"seats": [3]}
assert_type(ResumeCommand.submit_form("w", tags, metadata=tags), ResumeCommand)
assert_type(ResumeCommand.approve_tool(arguments=tags), ResumeCommand)
assert_type(ApprovalDecision.require(metadata=tags), ApprovalDecision)


async def starts(runtime: Runtime) -> None:
    await (await runtime.start("shop", "Hi", metadata=tags)).start_child("shop", "Hi", tags)


by_item = Agent("items", model=Model(), output_type=Item)
by_union = Agent[Item | Stay]("unions", model=Model(), output_type=Item | Stay)
assert_type(agent, Agent[str])
assert_type(by_item, Agent[Item])
assert_type(by_item.output_type, Any)
assert_type(by_item.replace(version="2"), Agent[Item])
assert_type(by_item.replace(output_type=Stay), Agent[Stay])
assert_type(Agent("stays", model=Model(), output_type=Stay), Agent[Stay])
assert_type(Agent("addresses", model=Model(), output_type=Address), Agent[Address])
assert_type(Agent("lists", model=Model(), output_type=list[Item]), Agent[list[Item]])
assert_type(Agent("words", model=Model(), output_type=Literal["a", "b"]), Agent[Any])
assert_type(by_union, Agent[Item | Stay])
annotated: Agent[Item | Stay] = Agent("unions", model=Model(), output_type=Item | Stay)


async def outputs(runtime: Runtime) -> None:
    turn = await runtime.start(by_item, "Hi")
    assert_type(turn, TurnRef[Item])
    assert_type(await turn.settle(), TurnView[Item])
    assert_type(await turn.view(), TurnView[Item])
    assert_type(await turn.cancel(), TurnView[Item])
    assert_type((await turn.resume(ResumeCommand.approve_tool())).final_output, Item | None)
    assert_type((await runtime.run(agent, "Hi")).final_output, str | None)
    assert_type((await runtime.run(by_union, "Hi")).raise_for_status(), TurnView[Item | Stay])
    assert_type((await runtime.run("items", "Hi")).final_output, JsonValue)
    assert_type(await turn.start_child(by_item, "Hi"), TurnRef[Item])
    assert_type(await turn.start_child("items", "Hi"), TurnRef[JsonValue])
    assert_type(await turn.children(), list[TurnRef[JsonValue]])
    assert_type(runtime.turn("t"), TurnRef[JsonValue])
    assert_type(runtime.turn("t", output_type=Stay), TurnRef[Stay])
    assert_type(await runtime.turn("t", output_type=list[Item]).settle(), TurnView[list[Item]])
    assert_type(await runtime.turns(), Page[TurnView[JsonValue]])
    any_turn: TurnRef = turn
    any_agents: list[Agent] = [agent, by_item]
    assert_type((await any_turn.view()).final_output, Any | None)
    Runtime(agents=any_agents)
    Runtime(agents=[by_item, agent])
    Runtime(types=[Item])
    Runtime(types=[Stay])  # pyright: ignore[reportArgumentType]
    carried = await runtime.run(
        agent, "Hi", metadata={"item": Item("s"), "n": [1]}, options=TurnOptions(metadata={"item": Item("s")})
    )
    assert_type(carried.metadata, dict[str, Any])
    item: Item = carried.metadata["item"]
    assert_type(ToolContext.current().metadata, dict[str, Any])
    assert_type(TurnContext.current().metadata, dict[str, Any])
    await turn.submit(ResumeCommand.submit_form(None, {"item": item}))
    wrong: TurnRef[Stay] = turn  # pyright: ignore[reportAssignmentType]
    await wrong.settle()


class Audit(Middleware):
    async def around_step(self, turn: TurnContext[Services], proceed: Callable[[], Awaitable[StepEnd]]) -> None:
        assert_type(turn.services, Services)
        assert_type((await proceed()).status, Status)

    async def around_model_call(self, request: ModelRequest, proceed: Callable[[ModelRequest], Awaitable[AiMessage]]) -> AiMessage:
        assert_type(TurnContext.current(), TurnContext[Any])
        return await proceed(request)

    async def around_tool_call(self, context: ToolContext[Services], proceed: Callable[[], Awaitable[Any]]) -> Any:
        assert_type(context.services, Services)
        return await proceed()

    def resolve(self, turn: TurnContext[Services], name: str) -> Tool[..., Any] | None:
        return plain if name in turn.active_tools else None


class Catalogue(Middleware):
    async def resolve(self, turn: TurnContext[Any], name: str) -> Tool[..., Any] | None:
        return None


async def at_night(turn: TurnContext[Services]) -> bool:
    return turn.services.rate > 1


groups = [ToolGroup("night", [plain], when=at_night), ToolGroup("day", [plain], when=lambda turn: turn.tenant == "acme")]
assert_type(Agent("grouped", model=Model(), tool_groups=groups).tool_groups, tuple[ToolGroup, ...])
assert_type(Agent("searching", model=Model(), middleware=[ToolSearch([plain, Desk().book]), Catalogue()]), Agent[str])
assert_type(Agent("audited", model=Model(), middleware=[Audit()]), Agent[str])
assert_type(Agent("audited", model=Model(), middleware=(Audit(), Middleware())).middleware, tuple[Middleware, ...])


loader: AgentLoader = InMemoryAgentLoader([agent])
