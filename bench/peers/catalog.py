"""The peers: what each is called, on which stores it is tried, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from . import restate_server


@dataclass(frozen=True)
class About:
    """A peer. `module` is its script and its requirements file; stores are tried in their order."""

    module: str
    title: str
    stores: tuple[str, ...]  # of the approve cycles
    raced: tuple[str, ...]  # of the double approvals
    settings: str
    keeps: str  # what it guarantees
    leaves: str  # what it leaves to others


PEERS = (
    About(
        "turnhold",
        "turnhold",
        ("memory", "sqlite", "redis"),
        ("sqlite", "redis"),
        "SQLite synchronous=FULL; Redis without persistence",
        "every step is saved before the next begins; one answer a wait; a start is saved before the tool starts",
        "effects in other systems are at most once plus a person, or at least once with a key",
    ),
    About(
        "langgraph",
        "LangGraph",
        ("memory", "sqlite", "sqlite exit", "redis with modules", "redis plain", "postgres"),
        ("sqlite", "postgres"),
        'durability="sync" ("exit": one write where a run ends); SQLite in WAL, synchronous=FULL; '
        "Redis without persistence, with modules by its own saver, plain by the third-party langgraph-checkpoint-plainredis; "
        "Postgres as it comes (fsync on), a pool of 10 connections",
        "a step's result is stored before the next begins; a run goes on from the last one",
        "nothing claims a thread: whoever resumes it runs the node; the node with the interrupt runs again from its top",
    ),
    About(
        "openai_agents",
        "OpenAI Agents",
        ("memory", "sqlite", "redis"),
        ("sqlite",),
        "RunState as JSON, once where it waits and once where it ends, in a plain table (SQLite FULL) or key (Redis) of ours",
        "a paused run can be written down and read in another process",
        "storing it, and keeping two from resuming it, is the user's; nothing is saved between the tool and the answer",
    ),
    About(
        "pydantic_ai",
        "Pydantic AI",
        ("memory", "sqlite", "redis"),
        ("sqlite",),
        "messages as JSON, once where it waits and once where it ends, in a plain table (SQLite FULL) or key (Redis) of ours",
        "a run that waits ends, and a later run takes its messages and the decisions",
        "storing them, and keeping two from deciding, is the user's (or that of an engine: it has bridges to DBOS, Temporal, "
        "Prefect, Restate); nothing is saved between the tool and the answer",
    ),
    About(
        "dbos",
        "DBOS",
        ("postgres",),
        ("postgres",),
        "Postgres as it comes (fsync on), DBOS's own pool; model and tool are steps, the approval is a message",
        "a step's result is stored before the next begins; the first message wins, others stay unread; workflows are recovered",
        "a step that was cut off runs again, at least once; a waiting workflow is a task in the process that runs it",
    ),
    About(
        "restate",
        "Restate",
        ("restate server",),
        ("restate server",),
        f"its server {restate_server.VERSION} as it comes, one node; model and tool are steps, the approval is an awakeable",
        "a step's result is stored before the next begins; the first answer wins; invocations are retried until they end",
        "a step that was cut off runs again, at least once; it needs its server beside the application",
    ),
    About(
        "agent_framework",
        "Microsoft Agent Framework",
        (),
        ("files",),
        "a workflow with `request_info`, its own file checkpoints; each answer builds its workflow from the checkpoint",
        "a checkpoint a step; a run goes on from any of them",
        "nothing claims a checkpoint or a request",
    ),
    About(
        "google_adk",
        "Google ADK",
        (),
        ("sqlite",),
        "its database sessions on SQLite, resumability on",
        "events are appended under a version of the session; a stale append is refused",
        "the refusal comes after the tool has run",
    ),
)


def about(module: str) -> About:
    return next(peer for peer in PEERS if peer.module == module)
