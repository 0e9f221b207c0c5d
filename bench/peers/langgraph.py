"""LangGraph: a graph of a model node and a tool node that calls `interrupt` (`python -m bench.peers.langgraph`)."""
# pyright: reportMissingImports=false

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from .worker import ANSWER, Place, Refunds, asked_for, main, order_in


async def model(state: dict[str, Any]) -> dict[str, Any]:
    """Ask for the tool once, then answer."""
    messages = state["messages"]
    if isinstance(messages[-1], ToolMessage):
        return {"messages": [AIMessage(ANSWER)]}
    call = {"name": "refund_order", "args": {"order_id": order_in(messages[-1].content)}, "id": "call_1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def follows(state: dict[str, Any]) -> str:
    return "tools" if state["messages"][-1].tool_calls else END


async def saver(stack: AsyncExitStack, place: Place) -> Any:
    """Open the checkpointer as its documentation does."""
    if place.store.startswith("sqlite"):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        opened = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(place.url))
        await opened.conn.execute("PRAGMA synchronous=FULL")  # SQLite's own default, but not that of every build
        return opened
    if place.store == "postgres":
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool = await stack.enter_async_context(AsyncConnectionPool(place.url, max_size=10, kwargs=options, open=False))
        return AsyncPostgresSaver(pool)
    if place.store == "redis with modules":
        from langgraph.checkpoint.redis.aio import AsyncRedisSaver

        return await stack.enter_async_context(AsyncRedisSaver.from_conn_string(place.url))
    if place.store == "redis plain":
        from langgraph_checkpoint_plainredis import AsyncRedisSaver as PlainRedisSaver
        from redis.asyncio import BlockingConnectionPool, Redis

        return PlainRedisSaver(Redis(connection_pool=BlockingConnectionPool.from_url(place.url, max_connections=64, timeout=60)))
    from langgraph.checkpoint.memory import InMemorySaver

    return InMemorySaver()


class LangGraph:
    """A compiled graph over a checkpointer; a thread is a turn."""

    package = "langgraph"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        async def tools(state: dict[str, Any]) -> dict[str, Any]:
            call = state["messages"][-1].tool_calls[0]
            if interrupt({"call": call["id"], "tool": call["name"], "arguments": call["args"]}) != "approve":
                return {"messages": [ToolMessage("rejected", tool_call_id=call["id"])]}
            return {"messages": [ToolMessage(await refunds.run(call["args"]["order_id"]), tool_call_id=call["id"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("tools", tools)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", follows, ["tools", END])
        graph.add_edge("tools", "model")
        self._place, self._plan = place, graph
        self._durability = "exit" if place.store.endswith("exit") else "sync"
        self._stack = AsyncExitStack()
        self._graph: Any = None

    async def open(self) -> None:
        checkpointer = await saver(self._stack, self._place)
        if hasattr(checkpointer, "setup"):
            await checkpointer.setup()
        self._graph = self._plan.compile(checkpointer=checkpointer)

    async def start(self, order: str) -> str:
        state = await self._run(order, {"messages": [HumanMessage(asked_for(order))]})
        assert state["__interrupt__"], "it waits"
        return order

    async def approve(self, handle: str, by: str) -> str:
        state = await self._run(handle, Command(resume="approve"))
        return state["messages"][-1].content

    async def close(self) -> None:
        await self._stack.aclose()

    async def _run(self, thread: str, given: Any) -> dict[str, Any]:
        return await self._graph.ainvoke(given, {"configurable": {"thread_id": thread}}, durability=self._durability)


if __name__ == "__main__":
    main(LangGraph)
