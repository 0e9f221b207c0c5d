"""The command line on a store: what it prints, what it stores, and its exit codes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from turnhold import MemoryMessage, Receipt, Status, Suspension, TurnView
from turnhold.console.cli import main
from turnhold.console.commands import loop_of
from turnhold.models import call

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop

ASKS_FORM = (call("ship"), "Shipped.")


def test_the_inbox_shows_what_waits_and_how_to_name_it(shop: Shop) -> None:
    """Each wait is shown with its turn, its call and its question; without waits it says so."""
    view = shop.start()
    code, out, err = shop.run("inbox")

    assert (code, err) == (0, "")
    assert f"{view.id}  shop\n" in out
    assert f"wait   {view.open_waits[0].id}" in out
    assert 'call   refund(order_id="O-1", amount=25)' in out
    assert out.endswith("1 open wait\n")
    assert shop.run("inbox", "--agent", "other")[1] == "Nothing waits for a person.\n"


def test_json_is_one_record_a_line(shop: Shop) -> None:
    """`--json` prints the records of the face."""
    view = shop.start()
    shop.start()

    waits = [Suspension.from_dict(json.loads(line)) for line in shop.run("inbox", "--json")[1].splitlines()]
    turns = [TurnView.from_dict(json.loads(line)) for line in shop.run("turns", "--json")[1].splitlines()]
    shown = [json.loads(line) for line in shop.run("show", view.id, "--json", "--history")[1].splitlines()]

    assert [wait.turn_id for wait in waits] == [turn.id for turn in turns]
    assert view.open_waits[0] in waits
    assert shown[0]["id"] == view.id
    assert [each["role"] for each in shown if "role" in each] == ["system", "user", "assistant"]
    assert [each["sequence"] for each in shown if "sequence" in each] == list(range(1, 8))


def test_a_conversation(shop: Shop) -> None:
    """`conversation` shows the open turn, the queued ones, and what is remembered, cards included, page by page."""
    first, second = shop.talk("c-1", "Please help", "And then?")
    code, out, err = shop.run("conversation", "c-1")

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [f"open    {first}", f"queued  {second}"]
    assert [line.split()[:2] for line in lines[2:]] == [
        ["user", "Please"],
        ["assistant", 'refund(order_id="O-1",'],
        ["card", "PENDING"],
    ]
    entries = [MemoryMessage.from_dict(json.loads(line)) for line in shop.run("conversation", "c-1", "--json")[1].splitlines()]
    assert [entry.shown for entry in entries] == [True, True, False]
    page = shop.run("conversation", "c-1", "--limit", "1")[1].splitlines()
    assert page[-1] == f"There may be more: --before {entries[2].id}"
    assert "Please help" in shop.run("conversation", "c-1", "--limit", "1", "--before", entries[1].id)[1]
    assert shop.run("conversation", "nobody")[1] == "Nothing is remembered.\n"


def test_listings_filter_and_page(shop: Shop) -> None:
    """`turns` takes a status, whatever its case, and a page says how to go on."""
    views = [shop.start(), shop.start("Hello."), shop.start()]
    waiting = shop.run("turns", "--status", "waiting_for_approval")[1].splitlines()
    first = shop.run("turns", "--limit", "2")[1].splitlines()
    cursor = first[-1].removeprefix("There are more: --after ")
    rest = shop.run("turns", "--after", cursor)[1].splitlines()

    assert {line.split()[0] for line in waiting} == {views[0].id, views[2].id}
    assert len({line.split()[0] for line in first[:2] + rest}) == 3
    assert "no status 'DONE'" in shop.run("turns", "--status", "done")[2]


def test_show_tells_the_whole_story(shop: Shop) -> None:
    """State, open waits, messages and events; a suspended turn is shown at once, as it is."""
    view = shop.start()
    code, out, _ = shop.run("show", view.id, "--history")

    assert code == 0
    for text in ("agent    shop@1", "status   WAITING_FOR_APPROVAL", "open wait", "May refund run?", "user       Please help"):
        assert text in out
    assert [line.split()[2] for line in out.partition("events\n")[2].splitlines()] == [
        *("TURN_STARTED", "STEP_STARTED", "MODEL_STARTED", "MODEL_COMPLETED", "TOOL_APPROVAL_REQUESTED", "STEP_COMPLETED"),
        "TURN_SUSPENDED",
    ]


def test_an_answer_is_stored_and_a_process_that_runs_the_agent_goes_on(shop: Shop) -> None:
    """The answer prints its receipt; the tool runs where the agent is."""
    view = shop.start()
    code, out, err = shop.run("answer", view.id, "approve", "--by", "ann", "--arguments", '{"order_id": "O-2", "amount": 5}')
    ended = shop.go_on(view.id)
    history = shop.run("show", view.id, "--history")[1]

    assert (code, err) == (0, "")
    assert out.startswith("APPROVED by ann at 2")
    assert "a process that runs shop@1 goes on with it" in out
    assert (ended.status, ended.final_output) == (Status.COMPLETED, "All done.")
    assert "refunded 5 of O-2" in history
    assert 'refund(order_id="O-2", amount=5) (edited by ann)' in history


def test_a_repeated_answer_gets_its_receipt_and_another_one_is_told_who_decided(shop: Shop) -> None:
    """The same command id: exit code 0. Another answer: 1, and whether it agrees."""
    view = shop.start()
    again = ("answer", view.id, "approve", "--by", "ann", "--command-id", "c-1")
    first = Receipt.from_dict(json.loads(shop.run(*again, "--json")[1]))
    second = shop.run(*again)
    agreeing = shop.run("answer", view.open_waits[0].id, "approve", "--by", "bob")
    differing = shop.run("answer", view.open_waits[0].id, "reject", "--by", "bob")

    assert (first.command_id, first.by, first.replayed) == ("c-1", "ann", False)
    assert second[0] == 0
    assert "accepted before" in second[1]
    for (code, out, err), end in ((agreeing, "your answer was the same\n"), (differing, "your answer differs and was not taken\n")):
        assert (code, out) == (1, "")
        assert "was APPROVED by ann at" in err
        assert err.startswith("turnhold: wait ")
        assert err.endswith(end)
        assert err.count("\n") == 1


def test_forms_and_questions(shop: Shop) -> None:
    """A form takes data that fits, and stays open where it does not."""
    view = shop.start(*ASKS_FORM)
    wrong = shop.run("answer", view.id, "submit", "--by", "ann", "--data", '{"town": 1}')
    also_wrong = shop.run("answer", view.id, "submit", "--by", "ann", "--data", "null")
    open_still = shop.view(view.id).open_waits
    code, out, _ = shop.run("answer", view.id, "submit", "--by", "ann", "--data", '{"town": "Ulm"}')
    ended = shop.go_on(view.id, *ASKS_FORM)

    assert wrong[0] == also_wrong[0] == 1
    assert "$.town" in wrong[2]
    assert "the wait stays open" in wrong[2]
    assert open_still == view.open_waits
    assert (code, out[:9]) == (0, "SUBMITTED")
    assert ended.final_output == "Shipped."


def test_declining_says_why(shop: Shop) -> None:
    """A declined form ends its call."""
    view = shop.start(*ASKS_FORM)
    code, out, _ = shop.run("answer", view.id, "decline", "--by", "ann", "--reason", "no address")
    ended = shop.go_on(view.id, *ASKS_FORM)

    assert (code, out[:8]) == (0, "DECLINED")
    assert ended.final_output == "Shipped."
    assert "no address" in shop.run("show", view.id, "--history")[1]


def test_of_several_waits_one_is_to_be_named(shop: Shop) -> None:
    """Where two waits are open, the error names both, and a wait's or a call's id picks one."""
    view = shop.start([call("refund", order_id="O-1", amount=1), call("refund", order_id="O-2", amount=2)], "Done.")
    names = [wait.id for wait in view.open_waits]
    code, _, err = shop.run("answer", view.id, "approve", "--by", "ann")
    by_wait = shop.run("answer", names[1], "approve", "--by", "ann")
    by_call = shop.run("answer", view.id, "reject", "--by", "ann", "--wait", "call_1_0")

    assert code == 1
    assert all(name in err for name in names)
    assert (by_wait[0], by_call[0]) == (0, 0)
    assert shop.view(view.id).open_waits == ()


def test_cancel_ends_a_waiting_turn(shop: Shop) -> None:
    """A node without agents can do that; a second time changes nothing."""
    view = shop.start()

    assert shop.run("cancel", view.id, "--reason", "not needed") == (0, f"turn {view.id} is CANCELLED\n", "")
    assert shop.run("cancel", view.id)[0] == 0
    assert shop.run("answer", view.id, "approve", "--by", "ann")[0] == 1


def test_a_wrong_kind_of_answer_is_one_line(shop: Shop) -> None:
    """`say` does not answer an approval."""
    view = shop.start()
    code, out, err = shop.run("answer", view.id, "say", "--by", "ann", "--text", "hello")

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "USER_INPUT does not answer TOOL_APPROVAL" in err
    assert shop.view(view.id).open_waits == view.open_waits


@pytest.mark.parametrize("words", [("show", "nobody"), ("cancel", "00-" + "a" * 26), ("answer", "x", "approve", "--by", "ann")])
def test_an_unknown_turn_is_one_line(shop: Shop, words: tuple[str, ...]) -> None:
    """Exit code 1, a line that names the turn, nothing else."""
    shop.start()
    code, out, err = shop.run(*words)

    assert (code, out) == (1, "")
    assert err == f"turnhold: no turn '{words[1]}' in this store\n"


def test_looking_makes_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped path is an error, not an empty store."""
    code = main(["inbox", f"sqlite:///{tmp_path}/typo.db"])

    assert code == 1
    assert capsys.readouterr().err == f"turnhold: there is no store at {tmp_path}/typo.db\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["redis://somewhere", "turns.db", "", "sqlite:///"])
def test_an_unknown_url_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no store's URL gets exit code 1."""
    assert main(["inbox", url]) == 1
    assert capsys.readouterr().err.startswith("turnhold: ")


def test_a_file_that_is_no_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text file is refused, and left as it is."""
    (tmp_path / "notes.db").write_text("dear diary, " * 100)

    assert main(["turns", f"sqlite:///{tmp_path}/notes.db"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "notes.db").read_text() == "dear diary, " * 100


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "usage: turnhold"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["inbox"], "required: URL"),
        (["answer", "memory://", "T", "approve"], "required: --by"),
        (["answer", "memory://", "T", "smile", "--by", "ann"], "invalid choice: 'smile'"),
        (["answer", "memory://", "T", "approve", "--by", "ann", "--arguments", "{"], "not JSON"),
        (["answer", "memory://", "T", "approve", "--by", "ann", "--arguments", "[1]"], "not a JSON object"),
        (["answer", "memory://", "T", "approve", "--by", "ann", "--data", "1"], "approve takes no --data"),
        (["answer", "memory://", "T", "approve", "--by", "ann", "--reason", "x"], "approve takes no --reason"),
        (["answer", "memory://", "T", "submit", "--by", "ann"], "submit needs --data"),
        (["answer", "memory://", "T", "say", "--by", "ann"], "say needs --text"),
        (["demo", "--waits", "many"], "invalid int value"),
        (["demo", "--waits", "-1"], "--waits"),
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The arguments are refused before anything is opened, on stderr."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, says in err) == ("", True)


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Both ways to ask for it."""
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("turnhold 0.")


def test_a_server_runs_on_uvloop_where_that_is_installed() -> None:
    """A server gains by it; what is over in a moment does not pay for its import."""
    made = loop_of("mcp")

    assert (made is not None) == (importlib.util.find_spec("uvloop") is not None)
    if made is not None:
        with contextlib.closing(made()) as loop:
            assert type(loop).__module__.startswith("uvloop")
    assert loop_of("turns") is None


@pytest.mark.process
def test_help_loads_no_command(tmp_path: Path) -> None:
    """What a command needs is imported when it runs, so that help is quick."""
    program = (
        "import sys; from turnhold.console.cli import main; main(['--help']); "
        "print([name for name in ('sqlite3', 'openai', 'turnhold.console.commands', 'importlib.metadata') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"
