"""Who looks where."""

from __future__ import annotations

from turnhold.runtime.homes import Homes, home_of
from turnhold.store import base

NODES = [f"node-{number}" for number in range(5)]
HOMES = [home_of(partition, NODES) for partition in range(256)]


def listed(*rows: tuple[str, int, tuple[str, ...]], now: int = 100_000) -> base.Nodes:
    return base.Nodes(tuple(base.NodeRow(*row) for row in rows), now)


def test_a_share_for_everybody() -> None:
    """The same list gives the same homes in any order and in every process, and nobody is left without a fair share."""
    assert [home_of(partition, reversed(NODES)) for partition in range(256)] == HOMES
    assert "".join(home[-1] for home in HOMES[:16] if home) == "1110141023013434"
    assert all(30 <= HOMES.count(node) <= 80 for node in NODES)


def test_who_leaves_moves_only_his_share() -> None:
    """A partition changes its home only where its home has gone."""
    left = [home_of(partition, NODES[1:]) for partition in range(256)]

    assert all(new == old for new, old in zip(left, HOMES, strict=True) if old != NODES[0])
    assert home_of(0, []) is None


def test_who_is_nobodys_home() -> None:
    """A node that announces no agent, and one that has not been heard of for the time that is allowed."""
    homes = Homes("a", ["shop@1"], 30_000, shared=True)
    assert len(homes.mine) == 256

    homes.learn(listed(("a", 100_000, ("shop@1",)), ("api", 100_000, ()), ("old", 70_000, ("shop@1",))))
    assert len(homes.mine) == 256

    homes.learn(listed(("a", 100_000, ("shop@1",)), ("b", 70_001, ("shop@1", "desk@1"))))
    assert 80 < len(homes.mine) < 176
    assert Homes("api", [], 30_000, shared=True).mine == ()
    assert Homes("a", ["shop@1"], 30_000, shared=False).mine == ()


def test_the_home_among_those_that_run_the_agent() -> None:
    """Of a partition the home for an agent is one of the nodes that announce it; exactly one takes it."""
    rows = listed(("a", 100_000, ("shop@1",)), ("b", 100_000, ("shop@1", "desk@1")), ("c", 100_000, ("desk@1",)))
    a, b, c = (
        Homes("a", ["shop@1"], 9, shared=True),
        Homes("b", ["shop@1", "desk@1"], 9, shared=True),
        Homes("c", ["desk@1"], 9, shared=True),
    )
    for homes in (a, b, c):
        homes.learn(rows)

    for partition in range(256):
        assert a.takes(partition, "shop@1") != b.takes(partition, "shop@1")
        assert c.takes(partition, "desk@1") != b.takes(partition, "desk@1")
        assert not a.takes(partition, "desk@1")
    assert a.announced("desk@1")
    assert not a.announced("desk@2")
