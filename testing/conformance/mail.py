"""Deliver, Cancel, ReadMail, replies and receipts: what reaches a turn, exactly once."""

from __future__ import annotations

from ...store import base as b
from . import make
from .check import check
from .expect import equal, is_a
from .ops import Ops, timeless


@check
async def mail_wakes_a_sleeping_turn(ops: Ops) -> None:
    """Delivered: stored with the store's time, and the turn is due."""
    turn, sent = await ops.suspended(), make.mail(command_id="c", wait_id="w")

    delivered = is_a(await ops(b.Deliver(turn=turn, mail=sent)), b.Delivered)
    equal(delivered, b.Delivered(ops.now))
    equal(await ops.due(), (turn,))
    stored = b.Mail(sent.message_id, sent.body, "c", "w", delivered.now)
    equal(await ops(b.ReadMail(turn=turn)), b.MailBatch(ops.now, (stored,)))
    claimed, _ = await ops.claim(turn)
    equal(claimed.mail, (stored,))


@check
async def mail_to_an_owned_turn_names_the_owner(ops: Ops) -> None:
    """Delivered with the owner's node; the turn stays with its owner."""
    turn, token = await ops.start()

    equal(await ops(b.Deliver(turn=turn, mail=make.mail())), b.Delivered(ops.now, "n1"))
    equal(await ops.due(), ())
    equal(await ops(b.Renew(leases=((turn, token),), lease_ms=1)), b.Renewed(ops.now, (2,)))


@check
async def mail_comes_once(ops: Ops) -> None:
    """The same message id again, unread or consumed: Delivered, and nothing is stored; also after the end."""
    turn, token = await ops.start()
    sent = make.mail()
    deliver = b.Deliver(turn=turn, mail=sent)
    await ops(deliver)

    equal(await ops(deliver), b.Delivered(ops.now, "n1", fresh=False))
    saved = await ops(make.save(turn, token, 0, consumed=(sent.message_id,)))
    equal(saved.mail, ())
    equal(await ops(deliver), b.Delivered(ops.now, "n1", fresh=False))
    equal((await ops(b.ReadMail(turn=turn))).mail, ())
    await ops(make.save(turn, token, 1, b.Mode.END))
    equal(await ops(deliver), b.Delivered(ops.now, None, fresh=False))
    equal(await ops(b.Deliver(turn=turn, mail=make.mail())), b.Closed("COMPLETED"))


@check
async def mail_is_consumed_by_id(ops: Ops) -> None:
    """A save takes exactly the ids it names, in whatever order; the rest stays, in order of arrival."""
    turn, token = await ops.start()
    sent = [make.mail() for _ in range(5)]
    for one in sent:
        await ops(b.Deliver(turn=turn, mail=one))

    saved = await ops(make.save(turn, token, 0, consumed=(sent[3].message_id, sent[1].message_id, "never seen"), batch=2))
    equal([mail.message_id for mail in saved.mail], [sent[0].message_id, sent[2].message_id])
    left = (await ops(b.ReadMail(turn=turn))).mail
    equal([mail.message_id for mail in left], [sent[0].message_id, sent[2].message_id, sent[4].message_id])
    late = b.Deliver(turn=turn, mail=make.mail("never seen"))
    equal(await ops(late), b.Delivered(ops.now, "n1", fresh=False))


@check
async def a_mailbox_has_a_bound(ops: Ops) -> None:
    """Full, with the count; the runtime's own mail is let in."""
    turn = await ops.suspended()
    for _ in range(2):
        await ops(b.Deliver(turn=turn, mail=make.mail(), cap=2))

    equal(await ops(b.Deliver(turn=turn, mail=make.mail(), cap=2)), b.Full(2))
    equal(await ops(b.Deliver(turn=turn, mail=make.mail(command_id="c"), cap=2, runtime=True)), b.Full(2))
    equal(await ops(b.Deliver(turn=turn, mail=make.mail(), cap=2, runtime=True)), b.Delivered(ops.now))


@check
async def mail_for_nobody(ops: Ops) -> None:
    """No such turn: Gone."""
    equal(await ops(b.Deliver(turn=make.root(), mail=make.mail())), b.Gone())
    equal(await ops(b.ReadMail(turn=make.root())), b.MailBatch(ops.now))


@check
async def deliver_and_claim(ops: Ops) -> None:
    """One operation: the mail is stored and the sleeping turn is ours; repeated by the same activation: Claimed again."""
    turn = await ops.suspended(messages=b.Messages(1, (b"second",)))
    deliver = b.Deliver(turn=turn, mail=make.mail(), claim=make.by("me", tail=1))
    claimed = is_a(await ops(deliver), b.Claimed)

    equal([mail.message_id for mail in claimed.mail], [deliver.mail.message_id])
    equal((claimed.tail, claimed.message_count, claimed.version), ((b"second",), 2, 1))
    equal(timeless(is_a(await ops(deliver), b.Claimed)), timeless(claimed))
    other = b.Deliver(turn=turn, mail=make.mail(), claim=make.by())
    equal(await ops(other), b.Delivered(ops.now, "n1"))


@check
async def deliver_and_claim_that_does_not_fit(ops: Ops) -> None:
    """The mail is stored all the same, and the turn is due for those who know it."""
    turn = await ops.suspended()
    by = make.by(agents=frozenset({"beta@1"}))

    equal(await ops(b.Deliver(turn=turn, mail=make.mail(), claim=by)), b.Delivered(ops.now))
    equal(await ops.due(), (turn,))


@check
async def a_known_command_is_answered_by_its_receipt(ops: Ops) -> None:
    """Known by command before anything else, known by wait for another command; also after the end."""
    turn, token = await ops.start()
    row = make.wait(turn)
    await ops(make.save(turn, token, 0, opened=(row,)))
    receipt = b.ReceiptRow(row.id, b"receipt", "cmd1", f"{turn}:c1")
    await ops(make.save(turn, token, 1, closed=(row.id,), receipts=(receipt,)))

    for _ in range(2):
        same = b.Deliver(turn=turn, mail=make.mail(command_id="cmd1", wait_id=row.id))
        equal(await ops(same), b.Known("command", b"receipt"))
        other = b.Deliver(turn=turn, mail=make.mail(command_id="cmd2", wait_id=row.id))
        equal(await ops(other), b.Known("wait", b"receipt"))
        elsewhere = b.Deliver(turn=turn[:29] + "b" * 16, mail=make.mail(command_id="cmd1"))
        equal(await ops(elsewhere), b.Known("command", b"receipt"))
        await ops(make.save(turn, token, 2, b.Mode.END))


@check
async def an_open_wait_takes_an_answer(ops: Ops) -> None:
    """A wait without a receipt is no reason to refuse mail."""
    turn = await ops.suspended()

    is_a(await ops(b.Deliver(turn=turn, mail=make.mail(command_id="c", wait_id=f"{turn}/c1/1"))), b.Delivered)


@check
async def receipts_are_found_by_each_key(ops: Ops) -> None:
    """By command, by wait, by call (the newest of a call); in the whole tree; None where there is none."""
    turn, token = await ops.start()
    first, second = f"{turn}/c1/1", f"{turn}/c1/2"
    receipts = (b.ReceiptRow(first, b"one", "cmd1", f"{turn}:c1"), b.ReceiptRow(second, b"two", None, f"{turn}:c1"))
    await ops(make.save(turn, token, 0, receipts=receipts))

    find = b.Find(root=turn, commands=("cmd1", "cmd2"), waits=(second, first, "x"), calls=(f"{turn}:c1", "x"))
    equal(await ops(find), b.Found((b"one", None, b"two", b"one", None, b"two", None)))
    equal(await ops(b.Find(root=make.root(), waits=(first,))), b.Found((None,)))


@check
async def a_reply_answers_its_message(ops: Ops) -> None:
    """The owner's answer is found under the message id, and a repeated delivery gets it."""
    turn, token = await ops.start()
    sent = make.mail()
    await ops(b.Deliver(turn=turn, mail=sent))
    reply = b.ReplyRow(sent.message_id, b"refused")
    await ops(make.save(turn, token, 0, consumed=(sent.message_id,), replies=(reply,)))

    equal(await ops(b.ReadReplies(turn=turn, message_ids=("x", sent.message_id))), b.Found((None, b"refused")))
    equal(await ops(b.Deliver(turn=turn, mail=sent)), b.Replied(b"refused"))


@check
async def the_end_answers_unread_mail(ops: Ops) -> None:
    """Mail that END leaves unread gets `closing`; no mail is left."""
    turn, token = await ops.start()
    sent = make.mail()
    await ops(b.Deliver(turn=turn, mail=sent))
    saved = await ops(make.save(turn, token, 0, b.Mode.END, closing=b"closed"))

    equal((saved.owned, saved.mail), (False, ()))
    equal(await ops(b.Deliver(turn=turn, mail=sent)), b.Replied(b"closed"))
    equal((await ops(b.ReadMail(turn=turn))).mail, ())


@check
async def cancel_wakes(ops: Ops) -> None:
    """Delivered, fresh once; the first cause wins; the turn is due and its claim carries the cause."""
    turn = await ops.suspended()

    equal(await ops(b.Cancel(turn=turn, cause="first")), b.Delivered(ops.now))
    equal(await ops(b.Cancel(turn=turn, cause="second")), b.Delivered(ops.now, fresh=False))
    equal(await ops.due(), (turn,))
    claimed, _ = await ops.claim(turn)
    equal(claimed.cancel, "first")


@check
async def cancel_and_claim(ops: Ops) -> None:
    """One operation, repeatable; an owned turn is told by Renew instead."""
    turn = await ops.suspended()
    cancel = b.Cancel(turn=turn, cause="stop", claim=make.by())
    claimed = is_a(await ops(cancel), b.Claimed)

    equal(claimed.cancel, "stop")
    equal(timeless(is_a(await ops(cancel), b.Claimed)), timeless(claimed))
    equal(await ops(b.Cancel(turn=turn, cause="stop", claim=make.by())), b.Delivered(ops.now, "n1", fresh=False))


@check
async def cancel_of_what_is_not_there(ops: Ops) -> None:
    """Gone and Closed."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, b.Mode.END))

    equal(await ops(b.Cancel(turn=turn, cause="stop")), b.Closed("COMPLETED"))
    equal(await ops(b.Cancel(turn=make.root(), cause="stop")), b.Gone())


@check
async def an_acknowledged_cancel_lets_a_turn_sleep(ops: Ops) -> None:
    """An open flag keeps a turn awake; taken into the state, it does not, and a further cancel changes nothing."""
    turn, token = await ops.start()
    await ops(b.Cancel(turn=turn, cause="stop"))

    kept = await ops(make.save(turn, token, 0, b.Mode.SUSPEND))
    equal((kept.owned, kept.cancel), (True, "stop"))
    slept = await ops(make.save(turn, token, 1, b.Mode.SUSPEND, ack_cancel=True))
    equal((slept.owned, slept.cancel), (False, None))
    equal(await ops(b.Cancel(turn=turn, cause="again")), b.Delivered(ops.now, fresh=False))
    equal(await ops.due(), ())
