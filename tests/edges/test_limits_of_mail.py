"""Full mailboxes: who is refused, who is not, and what is kept."""

from __future__ import annotations

import pytest

from turnhold import (
    AnswerPending,
    MailboxFull,
    ResumeCommand,
    Status,
)
from turnhold.store import base

from .place import Place, gated, waiting


async def test_a_full_mailbox(place: Place) -> None:
    """An owner that takes nothing in gets 256 messages and no more; what was stored is answered when somebody else takes over."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)
    stuck = base.ClaimBy(activation="stuck", node="elsewhere", lease_ms=10_000, schema=1)
    place.records[turn.id].wake = 0
    owned = place.memory.core.apply(base.Claim(turn=turn.id, by=stuck), place.memory.core.latest)
    assert isinstance(owned, base.Claimed)

    for number in range(256):
        with pytest.raises(AnswerPending):
            await turn.submit(ResumeCommand.approve_tool(wait, command_id=f"c{number}"), timeout=0)
    for work in (
        lambda: turn.submit(ResumeCommand.approve_tool(wait, command_id="c256"), timeout=0),
        lambda: turn.suspend("more?"),
        lambda: turn.start_child("shop", "x"),
    ):
        with pytest.raises(MailboxFull) as caught:
            await work()
        assert (caught.value.turn_id, caught.value.count) == (turn.id, 256)
    assert place.records[turn.id].unread == 256

    await place.clock.advance(40)

    assert (await turn.view()).status is Status.COMPLETED
    first = await turn.submit(ResumeCommand.approve_tool(wait, command_id="c0"))
    assert first.replayed
    assert place.records[turn.id].unread == 0


async def test_one_full_mailbox_is_no_ones_else(place: Place) -> None:
    """Other turns are answered meanwhile."""
    runtime = await place.runtime(gated())
    turn, _ = await waiting(runtime)
    other, wait = await waiting(runtime)
    place.records[turn.id].unread = 256

    with pytest.raises(MailboxFull):
        await turn.submit(ResumeCommand.approve_tool())

    assert (await other.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED
