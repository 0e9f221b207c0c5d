"""The parts of the demo: which model, what is asked, what a model may do wrong, how the ledger is judged."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
from typing import TYPE_CHECKING

import pytest

from turnhold import AiMessage, Runtime, Suspension, TurnholdError, TurnView
from turnhold.console import demo_worker
from turnhold.console.cli import parse
from turnhold.console.demo import MISSING, make_story, program
from turnhold.console.demo_prompt import Left, ask
from turnhold.console.demo_races import Outcome, Tally
from turnhold.console.demo_story import STORY, Entry, Story, runs_of, story_agent
from turnhold.console.terminal import Terminal
from turnhold.models import ScriptedModel, call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnhold.models.scripted import Reply

REFUND = call("refund_order", order_id="O-1001", amount=25)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(store=str(tmp_path / "turns.db"), yes=True, why="--yes")


class Machine:
    """Has the openai package or not, and a key or not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def with_(self, *, openai: bool, key: bool) -> None:
        real = importlib.util.find_spec
        self._patch.setattr(
            importlib.util, "find_spec", lambda name: (object() if openai else None) if name == "openai" else real(name)
        )
        self._patch.delenv("OPENAI_API_KEY", raising=False)
        if key:
            self._patch.setenv("OPENAI_API_KEY", "sk-here")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def story_of(tmp_path: Path, *words: str) -> tuple[Story, str]:
    return make_story(parse(["demo", "--store", str(tmp_path / "a b.db"), *words]))


@pytest.mark.parametrize(
    ("words", "openai", "key", "model"),
    [
        ((), True, False, None),
        ((), True, True, "gpt-4.1-mini"),
        ((), False, True, None),
        (("--scripted",), True, True, None),
        (("--model",), True, False, "gpt-4.1-mini"),
        (("--model", "m"), True, False, "m"),
        (("--base-url", "http://localhost/v1"), True, False, "gpt-4.1-mini"),
        (("--base-url", "http://localhost/v1", "--model", "m"), True, True, "m"),
        (("--model", "m", "--scripted"), True, True, None),
    ],
)
def test_which_model(words: tuple[str, ...], openai: bool, key: bool, model: str | None, machine: Machine, tmp_path: Path) -> None:
    """A real one where it is asked for, or where a key and the package are there; and the hint says which."""
    machine.with_(openai=openai, key=key)
    found, hint = story_of(tmp_path, *words)

    assert found.model == model
    assert hint.startswith("scripted" if model is None else f"{model} at ")
    assert ("turnhold[openai]" in hint) == (key and not openai)
    assert found.url.endswith("/a%20b.db")


def test_a_key_is_in_no_argument_of_a_process(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The story goes to other processes as an argument, which others on the machine can read; the key goes by the environment."""
    machine.with_(openai=True, key=False)
    monkeypatch.setenv("OPENAI_API_KEY", "")
    found, hint = story_of(tmp_path, "--api-key", "sk-secret")

    assert found.model == "gpt-4.1-mini"
    assert "sk-secret" not in repr(found) + hint
    assert os.environ["OPENAI_API_KEY"] == "sk-secret"


@pytest.mark.parametrize("words", [("--model", "m"), ("--base-url", "http://localhost/v1"), ("--api-key", "k")])
def test_a_missing_package_is_named_with_its_extra(words: tuple[str, ...], machine: Machine, tmp_path: Path) -> None:
    """Where a real model is asked for and `openai` is not installed."""
    machine.with_(openai=False, key=False)
    with pytest.raises(TurnholdError, match=r"pip install 'turnhold\[openai\]'"):
        story_of(tmp_path, *words)
    assert "turnhold[openai]" in MISSING


# ------------------------------------------------------------------------------------------------------------------- models


def begun(story: Story, *replies: Reply, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Play the first process with a model that answers like this."""
    agent = story_agent(story).replace(model=ScriptedModel(*replies))
    monkeypatch.setattr(demo_worker, "story_agent", lambda _: agent)
    out = io.StringIO()
    return asyncio.run(demo_worker.begin(story, Terminal(out, width=80))), out.getvalue()


def answered(story: Story) -> tuple[int, str]:
    """Play the second process, which approves by itself."""

    async def newest() -> TurnView:
        async with Runtime(story.url, execute=False) as runtime:
            return (await runtime.turns(agent=STORY)).items[-1]

    out = io.StringIO()
    return demo_worker.answer(story, Terminal(out, width=80), asyncio.run(newest()).id), out.getvalue()


@pytest.mark.parametrize(
    ("replies", "says"),
    [
        (["I will not."], "without a proper call of refund_order"),
        ([call("refund_order", order_id="", amount=-5), "Sorry."], "do not fit the tool's parameters"),
        ([call("refund_everything"), "Sorry."], "There is no tool 'refund_everything'"),
        ([AiMessage(), "never"], "without a proper call"),
        ([call("nothing")] * 9, "MAX_ITERATIONS_REACHED"),
        ([ValueError("broken")], "FAILED: ValueError: broken"),
    ],
)
def test_a_model_that_comes_to_no_approval(replies: list[Reply], says: str, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened is said, nothing is refunded, and the exit code is 1."""
    code, out = begun(story, *replies, monkeypatch=monkeypatch)

    assert code == 1
    assert says in " ".join(out.split())
    assert "Nothing was refunded." in " ".join(out.split())
    assert runs_of(story.ledger, "") == []


@pytest.mark.parametrize("replies", [[[REFUND, REFUND], "Done."], [REFUND, REFUND, "Done."]], ids=["at once", "in turn"])
def test_alone_it_approves_one_refund_only(replies: list[Reply], story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that asks for two refunds gets one."""
    assert begun(story, *replies, monkeypatch=monkeypatch)[0] == 0
    code, out = answered(story)

    assert code == 0, out
    assert "it approves one refund only" in out
    assert len(story.ledger.read_text().splitlines()) == 1


def test_a_model_that_fails_at_the_end(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refund has run once, the turn is not completed: exit code 1, and both are shown."""
    assert begun(story, REFUND, RuntimeError("gone away"), monkeypatch=monkeypatch)[0] == 0
    code, out = answered(story)

    assert code == 1
    assert "1 line: refund_order ran once" in out
    assert "the turn is FAILED: gone away" in out


def test_a_ledger_that_is_wrong_is_seen(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second line with the key of the first is a refund that ran twice: exit code 1."""
    assert begun(story, REFUND, lambda _: doubled(story), monkeypatch=monkeypatch)[0] == 0
    code, out = answered(story)

    assert code == 1
    assert "a call ran twice" in out


def doubled(story: Story) -> str:
    story.ledger.write_bytes(story.ledger.read_bytes() * 2)
    return "Done."


# ------------------------------------------------------------------------------------------------------------------- asking


@pytest.fixture
def wait(story: Story, monkeypatch: pytest.MonkeyPatch) -> Suspension:
    begun(story, REFUND, "Done.", monkeypatch=monkeypatch)

    async def first() -> Suspension:
        async with Runtime(story.url, execute=False) as runtime:
            return (await runtime.inbox()).items[0]

    return asyncio.run(first())


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    left: Iterator[str | BaseException] = iter(lines)

    def read(_: str) -> str:
        line = next(left)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)


@pytest.mark.parametrize(
    ("lines", "kind", "arguments", "text"),
    [
        (["a"], "APPROVE_TOOL", None, ""),
        (["what?", "", " Approve "], "APPROVE_TOOL", None, ""),
        (["r", "no such order"], "REJECT_TOOL", None, "no such order"),
        (["e", "", ""], "APPROVE_TOOL", {"order_id": "O-1001", "amount": 25}, ""),
        (["edit", "7", "20"], "APPROVE_TOOL", {"order_id": "7", "amount": 20}, ""),
        (["e", "", "much"], "APPROVE_TOOL", {"order_id": "O-1001", "amount": "much"}, ""),
    ],
)
def test_what_is_typed_becomes_a_command(
    lines: list[str], kind: str, arguments: dict | None, text: str, wait: Suspension, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text stays text where text was before; other values are read as JSON, and checked by the turn."""
    typed(monkeypatch, *lines)
    command = ask(Terminal(io.StringIO()), wait)

    assert (command.type.value, command.arguments, command.text, command.wait) == (kind, arguments, text, wait.id)
    assert command.by


@pytest.mark.parametrize("lines", [[KeyboardInterrupt()], [EOFError()], ["r", KeyboardInterrupt()], ["e", "x", EOFError()]])
def test_leaving_the_prompt(lines: list[str | BaseException], wait: Suspension, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C and Ctrl-D leave, wherever one is."""
    typed(monkeypatch, *lines)
    with pytest.raises(Left):
        ask(Terminal(io.StringIO()), wait)


# -------------------------------------------------------------------------------------------------------------------- tally


@pytest.mark.parametrize(
    ("ann", "bob", "lines", "right"),
    [
        (Outcome(accepted=True), Outcome(decided_by="ann"), 1, True),
        (Outcome(decided_by="bob"), Outcome(accepted=True), 1, True),
        (Outcome(accepted=True), Outcome(accepted=True), 1, False),
        (Outcome(accepted=True), Outcome(decided_by="ann"), 2, False),
        (Outcome(accepted=True), Outcome(decided_by="ann"), 0, False),
        (Outcome(decided_by="bob"), Outcome(decided_by="ann"), 1, False),
        (Outcome(accepted=True), Outcome(fault="StoreUnavailable: slow"), 1, False),
    ],
)
def test_the_tally_is_right_only_if_every_tool_ran_once_and_both_know_it(
    ann: Outcome, bob: Outcome, lines: int, right: bool, tmp_path: Path
) -> None:
    """One accepted answer, one refusal that names the winner, one line in the ledger."""
    story = Story(store=str(tmp_path / "turns.db"), waits=1)
    entry = {"key": "T:call_1_0", "order_id": "O", "amount": 1, "pid": 1}
    story.races.write_text((json.dumps(entry) + "\n") * lines)
    tally = Tally()
    tally.add("T/call_1_0/1", {"ann": ann, "bob": bob})

    assert tally.right(story) == right
    assert len(runs_of(story.races, "T")) == lines
    assert Entry(**entry).key == "T:call_1_0"


def test_commands_to_copy_name_the_program_as_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name where that is on PATH, else as the demo was called; a test or a module has only the name."""
    script = tmp_path / "a venv" / "turnhold"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", ["a venv/turnhold", "demo"])

    assert program() == "'a venv/turnhold'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "turnhold"
    monkeypatch.setattr("sys.argv", ["/usr/bin/pytest"])
    assert program() == "turnhold"
