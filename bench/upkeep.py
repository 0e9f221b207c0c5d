"""What nodes on Redis cost while nothing happens: leases that are renewed, and nodes that have nothing to do."""

from __future__ import annotations

import random
import time

from . import servers
from .harness import Bar, Options, Row
from .nodes import Node, crew
from .servers import Busy, Server

LIVE = "live actors, each in a tool that runs"
IDLE = "a node with nothing to do, lease 30 s"
LEASE = 15  # seconds; a renewal is due after a third of it
SEEN = 300  # turns that are looked at again


def measure(options: Options) -> list[Row]:
    """Measure both; nothing where there is no server."""
    if servers.absent():
        return []
    with servers.served() as server:
        return idle(server, options) + renewals(server, options)


def spent(server: Server, node: Node | None, seconds: float) -> tuple[float, Busy, float]:
    """Return the CPU seconds of the process, what the server did, and the wall seconds of a while."""
    before, at = server.busy(), time.perf_counter()
    first = node("used")["cpu"] if node else 0.0
    time.sleep(seconds)
    last = node("used")["cpu"] if node else 0.0
    return last - first, server.busy().since(before), time.perf_counter() - at


def idle(server: Server, options: Options) -> list[Row]:
    seconds = options.pick(12, 1)
    rows: list[Row] = []
    _, alone, wall = spent(server, None, min(seconds, 4))
    empty = alone.cpu / 1e4 / wall
    with crew(2) as nodes:
        for name, node, execute in (("executor", nodes[0], True), ("API-only", nodes[1], False)):
            node("open", url=server.fresh(), execute=execute)
            time.sleep(options.pick(2, 0))
            client, busy, wall = spent(server, node, seconds)
            node("close")
            note = f"{busy.commands / wall:,.0f} commands/s"
            rows += [
                Row(IDLE, f"{name}: its CPU", client * 100 / wall, "% of a core", note=note),
                Row(IDLE, f"{name}: the server's CPU", busy.cpu / 1e4 / wall, "% of a core", floor=empty),
            ]
    rows.append(Row(IDLE, "floor: a server without nodes", empty, "% of a core"))
    return rows


def renewals(server: Server, options: Options) -> list[Row]:
    """Compare a while with many live actors to the same while with none."""
    count, lease = options.pick(10_000, 100), options.pick(LEASE, 3)
    with crew(1) as (node,):
        node("open", url=server.fresh(), lease=lease, max_active=2 * count)
        quiet, before, quiet_wall = spent(server, node, lease / 3)
        memory = node("used")["memory"]
        turns = node("hold", count=count, width=200)
        time.sleep(lease / 3)
        loaded, after, wall = spent(server, node, lease)
        used, state = node("used"), node("weigh", count=count)
        assert used["live"] == count, "all of them live"
        node("release")
        while node("used")["live"]:
            time.sleep(0.1)
        node("settle", turns=random.sample(turns, min(count, SEEN)), width=50)
        starts = node("starts")
        node("close")
    assert {(turn, attempt) for turn, attempt, _ in starts} == {(turn, 1) for turn in turns}, "every tool ran once"
    assert len(starts) == count, "and none twice"
    part = wall / quiet_wall
    calls = after.scripts - before.scripts * part
    rounds = calls / len({turn[:2] for turn in turns})  # a script renews the turns of one partition
    client, cpu = (loaded - quiet * part) / rounds, (after.cpu - before.cpu * part) / rounds
    script = (after.script_time - before.script_time * part) / rounds / count
    what, each = f"{count:,} renewed once", (used["memory"] - memory) / count
    return [
        Row(LIVE, f"{what}: the process's CPU", client * 1000, "ms", note=f"{client * 10:.2f} % of a core at lease 30 s"),
        Row(LIVE, f"{what}: the server's CPU", cpu / 1000, "ms", note=f"{cpu / 1e5:.2f} % of a core at lease 30 s"),
        Row(LIVE, "the server's time in the script", script, "us/lease", note=f"{rounds:.1f} renewals of all were seen"),
        Row(LIVE, "memory of the process", each / 1000, "KB/actor", floor=state / 1000, note="its state and history alone"),
        Row(LIVE, "memory beyond its state", (each - state) / 1000, "KB/actor", bar=Bar(most=10)),
    ]
