"""What must hold of every step of the machine, and of every world (DESIGN 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from turnhold import AiMessage, Effect, ResumeCommand, Status, SuspensionType, ToolMessage
from turnhold.actors.chat import CallEdited
from turnhold.actors.events import TERMINAL_EVENTS
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.draft import Accepted, AskPolicy, CallModel, Draft, Noted, Park, Refusal, RunTool, StopModel, StopTool
from turnhold.actors.turn import CallStatus, TurnState
from turnhold.actors.waits import CommandType, Receipt
from turnhold.runtime import persist
from turnhold.store import base

from .explorer import LOST, Move, Story, World, answers, mail

PERMITS = {Effect.RERUN, Effect.SUBMITTED}
REFUSED = {Effect.REJECTED, Effect.DECLINED}
RESULTS = (m.ModelReplied, m.ModelFailed, m.ToolReturned, m.ToolFailed, m.FormAsked)


class Judge:
    """Follows a draft as its owner would, and objects to what must never happen."""

    def __init__(self, story: Story) -> None:
        self.story = story

    # ------------------------------------------------------------------------------------------------------- one step

    def step(self, move: Move, draft: Draft) -> World:
        """Return the world behind a move."""
        before = move.before
        if before.state.status.terminal and move.batch:
            assert not draft.changed, "an ended turn has changed"
            assert not draft.actions, "an ended turn has asked for something"
        inner = [message.message for message in move.batch if isinstance(message, m.Received)]
        ended = {each.child_id for each in inner if isinstance(each, m.ChildEnded)}
        world = replace(before, state=draft.state, ended=before.ended | ended)
        world = self.ended_waits(world, move, draft)
        world = self.told(world, draft)
        self.answered(move, draft)
        assert draft.took_cancel == any(isinstance(message, m.CancelRequested) for message in move.batch), "the flag stays up"
        recorded = any(isinstance(message, RESULTS) for message in move.batch)
        assert draft.progress == recorded or ended, "a result of an effect is progress, and nothing else is"
        world = self.acted(world, move, draft)
        self.at_the_end(world, draft)
        mode, _ = persist.release_of(draft)
        busy = world.model or world.asking or world.running
        if mode is base.Mode.KEEP:
            assert busy, "kept, and nothing runs"
            return replace(world, owned=True, wakes=False)
        left = any(isinstance(message, m.HandOff) for message in move.batch)
        assert not busy or mode is base.Mode.END, f"let go with something in flight: {busy}"
        assert mode is not base.Mode.HAND_OFF or move.api or left, "handed off by an executor"
        gone: dict[str, Any] = {"model": None, "asking": frozenset(), "running": frozenset()}
        return replace(world, owned=False, wakes=mode is base.Mode.HAND_OFF, owner=world.owner + left, **gone)

    def ended_waits(self, world: World, move: Move, draft: Draft) -> World:
        """A wait ends once, and leaves one receipt."""
        receipts = dict(world.receipts)
        for receipt in draft.receipts:
            assert receipt.suspension_id not in receipts, "a wait has ended twice"
            receipts[receipt.suspension_id] = receipt
        now_open = {wait.id for wait in draft.state.waits}
        was_open = {wait.id for wait in move.before.state.waits}
        assert len(now_open) == len(draft.state.waits), "two waits of one id"
        assert not now_open & receipts.keys(), "a wait is open and has ended"
        assert was_open - now_open <= receipts.keys(), "a wait is gone without a receipt"
        assert {wait.id for wait in draft.opened} == now_open - was_open, "the index of waits does not follow the state"
        assert set(draft.closed) == was_open - now_open, "the index of waits does not follow the state"
        commands = dict(world.commands)
        for message in move.batch:
            if isinstance(message, m.Received) and isinstance(message.message, m.Resume):
                command = message.message.command
                if any(receipt.command_id == command.command_id for receipt in draft.receipts):
                    commands[str(command.command_id)] = command
        return replace(world, receipts=receipts, commands=commands)

    def told(self, world: World, draft: Draft) -> World:
        """Calls of a reply get their results in its order, directly behind it, each one."""
        left = list(world.open)
        for entry in draft.messages:
            if isinstance(entry, ToolMessage):
                assert left[:1] == [entry.call_id], f"a result of {entry.call_id} where {left[:1]} is next"
                del left[0]
            elif not isinstance(entry, CallEdited):
                assert not left, "something stands between a reply and its results"
                if isinstance(entry, AiMessage):
                    left = [call.id for call in entry.tool_calls]
        assert left == [call.id for call in draft.state.calls[draft.state.flushed :]], "calls and history have parted"
        return replace(world, open=tuple(left))

    def acted(self, world: World, move: Move, draft: Draft) -> World:
        """Do what the draft asks for, if it may be asked for."""
        model, asking, running = world.model, set(world.asking), set(world.running)
        started = dict(world.started)
        for action in draft.actions:
            assert not isinstance(action, RunTool | CallModel | AskPolicy) or not (move.api or not move.execute), "not here"
            match action:
                case CallModel():
                    assert model is None, "two requests at once"
                    assert world.open == (), "a request with an open call"
                    assert not world.state.waits, "a request while somebody is waited for"
                    assert world.state.request is not None
                    assert world.state.request.activation == draft.context.activation, "a request that is not in its state"
                    model = (action.iteration, action.failures)
                case StopModel():
                    assert model is not None
                    model = None
                case RunTool():
                    self.may_run(world, draft, action, started)
                    running.add((action.call_id, action.attempt))
                    started[action.call_id] = action.attempt
                case AskPolicy():
                    assert action.call_id not in asking, "a policy is asked twice"
                    asking.add(action.call_id)
                case StopTool():
                    assert any(name == action.call_id for name, _ in running)
                case Park():
                    raise AssertionError("parked")
                case _:
                    pass
        if draft.state.ending is not None or draft.state.status.terminal:
            assert not any(isinstance(action, RunTool | CallModel | AskPolicy) for action in draft.actions), "started at the end"
            asking.clear()
        new = {child.state.turn_id for child in draft.children}
        assert not new & world.children, "a child is created twice"
        world = replace(world, model=model, asking=frozenset(asking), running=frozenset(running), started=started)
        flagged = world.flagged | {turn for turn, _ in draft.cancels}
        return replace(world, children=world.children | new, flagged=flagged)

    def may_run(self, world: World, draft: Draft, action: RunTool, started: dict[str, int]) -> None:
        """Judge the start of an attempt: its intent is in the state, it is new, and those who had to agree have agreed."""
        call = draft.state.call(action.call_id)
        assert call is not None, "an attempt of no call"
        intent = (call.status, call.attempt, call.activation)
        assert intent == (CallStatus.RUNNING, action.attempt, draft.context.activation), "a start whose intent is not in the state"
        assert action.attempt == started.get(call.id, 0) + 1, "one attempt started twice, or one left out"
        place = draft.state.calls.index(call)
        for other in draft.state.calls[:place]:
            assert other.finished or not (call.sequential or other.sequential), "started out of its turn"
        assert not call.sequential or not world.running - {(call.id, action.attempt)}, "not alone"
        mine = [receipt for wait, receipt in world.receipts.items() if wait.split("/")[1] == call.id]
        effects = [receipt.effect for receipt in mine]
        assert not REFUSED & set(effects), "a rejected call has started"
        if call.effect == "once":
            permits = sum(effect in PERMITS for effect in effects) + world.unbegun.get(call.id, 0)
            assert action.attempt <= 1 + permits, "a `once` call has started again without a person"
        tool = self.story.agent.tool(call.name)
        assert tool is not None
        approvals = [receipt for receipt in mine if receipt.type is CommandType.APPROVE_TOOL]
        assert tool.approval is False or callable(tool.approval) or approvals, "a call has started that nobody approved"
        if approvals:
            edited = world.commands[str(approvals[-1].command_id)].arguments
            assert call.effective == (call.arguments if edited is None else edited), "another call was approved"

    def answered(self, move: Move, draft: Draft) -> None:
        """Of all that answers one wait the first is accepted; each message has one outcome."""
        received = [message for message in move.batch if isinstance(message, m.Received)]
        assert [name for name, _ in draft.answers] == [message.message_id for message in received], "not one answer a message"
        outcomes = [outcome for _, outcome in draft.answers]
        if move.kind in ("command", "read late, just before"):
            assert isinstance(outcomes[0], Accepted), f"an answer in time was refused: {outcomes[0]}"
        elif move.kind == "read late, just after":
            (outcome,) = outcomes
            assert isinstance(outcome, Refusal)
            assert outcome.error in ("AlreadyAnswered", "TurnClosed"), f"an answer came too late: {outcome}"
        elif move.kind == "race":
            first, *others, again = outcomes
            assert isinstance(first, Accepted)
            assert again == Accepted(msgspec.structs.replace(first.receipt, replayed=True)), "a repeated command has another answer"
            for other in others:
                assert isinstance(other, Refusal)
                assert (other.error, other.receipt) == ("AlreadyAnswered", first.receipt), f"two answers of one wait: {other}"

    def at_the_end(self, world: World, draft: Draft) -> None:
        """Nothing is left open behind a turn that has ended, and one terminal event says so, last."""
        state = draft.state
        last = [kind for kind, *_ in draft.events if kind in TERMINAL_EVENTS]
        ends_now = state.status.terminal and not draft.original.status.terminal
        assert len(last) == ends_now, "a terminal event for each end, and only then"
        if ends_now:
            assert draft.events[-1][0] in TERMINAL_EVENTS
            assert (state.waits, state.calls, state.request, state.children) == ((), (), None, ())
            assert world.open == (), "an ended turn with an open call"
            assert world.children - world.ended <= world.flagged, "a child outlives its turn, and nobody has told it"
        elif state.ending is not None:
            assert state.status is Status.RUNNING
            assert not state.waits
        elif state.status.blocked:
            assert state.waits
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=TurnState) == state

    # ------------------------------------------------------------------------------------------------------ one world

    def look(self, world: World) -> None:
        """A turn at rest stays at rest, and whatever is refused, repeated, late or foreign changes nothing."""
        probes = list(self.probes(world))
        batch = tuple(message for message, _ in probes)
        agent = self.story.agent
        quiet, loud = world.after((), agent), world.after(batch, agent)
        if not world.wakes:
            assert not quiet.changed, "a turn at rest has changed by itself"
            assert not quiet.actions, "a turn at rest has asked for something"
        for part in ("state", "messages", "events", "receipts", "opened", "closed", "actions", "cancels", "progress"):
            assert getattr(loud, part) == getattr(quiet, part), f"what was refused has changed the {part}"
        expected = [(message.message_id, want) for message, want in probes if isinstance(message, m.Received)]
        for (name, outcome), (wanted_name, want) in zip(loud.answers, expected, strict=True):
            assert name == wanted_name
            assert said(outcome) == want, f"{name} was answered {said(outcome)}, not {want}"

    def probes(self, world: World) -> Iterator[tuple[m.Message, str]]:
        """Messages that change nothing, each with the answer it gets."""
        state, now = world.state, world.now
        for wait, receipt in world.receipts.items():
            if receipt.command_id is not None:
                command = world.commands[receipt.command_id]
                yield mail(command, now, receipt), "replayed"
                other = ResumeCommand.decline(wait, "else", command_id=receipt.command_id)
                yield mail(other, now, receipt), "CommandIdReused"
                again = msgspec.structs.replace(command, command_id=f"again {wait}")
                yield mail(again, now, receipt, "wait"), "AlreadyAnswered, agrees"
            other = ResumeCommand.user_input("something else", wait=wait, command_id=f"other {wait}")
            yield mail(other, now, receipt, "wait"), "AlreadyAnswered"
        nowhere = ResumeCommand.approve_tool(f"{state.turn_id}/nobody/1", command_id="nowhere")
        status = "TurnClosed" if state.status.terminal else "SuspensionMismatch" if state.waits else "NotSuspended"
        yield mail(nowhere, now), status
        for wait in state.waits:
            right = {command.type for command in answers(wait)}
            wrong = ResumeCommand.fail_call if CommandType.FAIL_CALL not in right else ResumeCommand.decline
            yield mail(wrong(wait.id, command_id=f"wrong {wait.id}"), now), "WrongCommand"
            if wait.type is SuspensionType.TOOL_APPROVAL:
                bad = ResumeCommand.approve_tool(wait.id, arguments={"amount": "?"}, command_id=f"bad {wait.id}")
                yield mail(bad, now), "InvalidFormData"
            elif wait.form_key is not None:
                yield mail(ResumeCommand.submit_form(wait.id, 5, command_id=f"bad {wait.id}"), now), "InvalidFormData"
        yield from strays(world)


def strays(world: World) -> Iterator[tuple[m.Message, str]]:
    """Results that come too late, or of nothing that is known."""
    state = world.state
    for name, attempt in [*world.started.items(), ("nobody", 1)]:
        if (name, attempt) not in world.running:
            yield m.ToolReturned(name, attempt, "late"), ""
            yield m.ToolFailed(name, attempt, "timeout", LOST, "late"), ""
        yield m.ToolReturned(name, attempt - 1, "stale"), ""
    request = state.request
    iteration = state.iteration_count + 1
    yield m.ModelReplied(iteration, 9, AiMessage("stray")), ""
    if request is None:
        yield m.ModelReplied(iteration, 0, AiMessage("stray")), ""
        yield m.ModelFailed(iteration, 0, LOST), ""
    for call in state.calls:
        if call.status is not CallStatus.UNDECIDED:
            yield m.PolicyFailed(call.id, LOST), ""
    if state.status.terminal or state.ending is Status.CANCELLED:
        yield m.CancelRequested("again"), ""
    if state.status.terminal:
        yield m.DeadlinePassed(), ""
    for child in world.children - set(state.children):
        yield m.Received(f"{child}/end", m.ChildEnded(child, state.agent_id, Status.FAILED), world.now), "noted"


def said(outcome: Any) -> str:
    """An answer in short."""
    match outcome:
        case Accepted(receipt=Receipt(replayed=True)):
            return "replayed"
        case Noted():
            return "noted"
        case Refusal(error="AlreadyAnswered", agrees=agrees):
            return "AlreadyAnswered, agrees" if agrees else "AlreadyAnswered"
        case Refusal():
            return outcome.error
        case _:
            return f"{outcome}"
