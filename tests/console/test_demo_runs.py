"""`turnhold demo` as it is: real processes, a real file, and, where there is one, a person at a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
PROMPT = "approve, edit or reject? [a/e/r] "
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"OPENAI_API_KEY", "NO_COLOR", "COLUMNS"}}


def entries(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def command(store: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "turnhold.console.cli", "demo", "--store", str(store), *words]


def test_alone_it_approves_and_every_refund_runs_once(tmp_path: Path) -> None:
    """Exit code 0; one line for the story and one for each race, by other processes than the first; no colour in a pipe."""
    store = tmp_path / "turns.db"
    done = subprocess.run(
        command(store, "--yes", "--waits", "12"),
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    first, second, *_ = [int(pid) for pid in re.findall(r"[Pp]rocess (\d+) is gone", done.stdout)]
    (refund,) = entries(tmp_path / "turns.db.ledger")
    races = entries(tmp_path / "turns.db.races")

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert (refund["order_id"], refund["amount"], refund["pid"]) == ("O-1001", 25, second)
    assert first != second
    assert len({race["key"] for race in races}) == len(races) == 12
    for text in ("by itself (--yes)", "refund_order ran once", "TURN_COMPLETED", "AlreadyAnswered", "asleep for"):
        assert text in done.stdout
    for name, count in (("tool ran once", 12), ("tool ran twice", 0), ("tool never ran", 0), ("losers told who won", 12)):
        assert re.search(rf"{name} +{count}\b", done.stdout)
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if str(tmp_path) not in line) <= 80


def test_without_a_terminal_it_says_that_it_approves_by_itself(tmp_path: Path) -> None:
    """Nobody can be asked through a pipe."""
    done = subprocess.run(
        command(tmp_path / "turns.db", "--waits", "0"),
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        input="reject\n",
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "by itself (there is no terminal to ask at)" in done.stdout
    assert len(entries(tmp_path / "turns.db.ledger")) == 1


def test_a_store_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """Exit code 1, no traceback."""
    done = subprocess.run(
        command(tmp_path / "nowhere" / "turns.db", "--yes"), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("turnhold: ")


def test_a_reader_that_stops_reading_gets_no_traceback(tmp_path: Path) -> None:
    """As in `turnhold demo | head -1`."""
    process = subprocess.Popen(
        command(tmp_path / "turns.db", "--yes"),
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()

    assert (process.wait(), errors) == (1, "")


# ----------------------------------------------------------------------------------------------------------- at a terminal


@dataclass
class Person:
    """Somebody at a terminal."""

    process: subprocess.Popen[bytes]
    terminal: int
    seen: str = ""

    def until(self, text: str) -> str:
        """Read until a text is seen; the time limit of the test bounds it."""
        while text not in self.seen:
            try:
                piece = os.read(self.terminal, 4096)
            except OSError:  # the other side is closed
                piece = b""
            assert piece, f"{text!r} was never seen, but {self.seen}"
            self.seen += piece.decode()
        before, _, self.seen = self.seen.partition(text)
        return before

    def types(self, text: str) -> None:
        time.sleep(0.5)  # as people do: a Ctrl-C between the prompt and the read behind it is only noticed at the next key
        os.write(self.terminal, text.encode())

    def end(self) -> tuple[int, str]:
        """Read to the end; return the exit code and what was left to see."""
        while True:
            try:
                piece = os.read(self.terminal, 4096)
            except OSError:
                break
            if not piece:
                break
            self.seen += piece.decode()
        return self.process.wait(), self.seen


@pytest.fixture
def people() -> Iterator[list[Person]]:
    there: list[Person] = []
    yield there
    for person in there:
        if person.process.poll() is None:
            person.process.kill()
            person.process.wait()
        os.close(person.terminal)


def sit_down(people: list[Person], store: Path, *words: str) -> Person:
    """Start the demo at a terminal of its own, so that Ctrl-C reaches it and all its processes."""
    ours, theirs = pty.openpty()
    become = f"import fcntl, os, sys; fcntl.ioctl(0, {termios.TIOCSCTTY}, 0); os.execv(sys.executable, {command(store, *words)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", become],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=store.parent,
        env=ENVIRONMENT | {"TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    assert not fcntl.fcntl(ours, fcntl.F_GETFL) & os.O_NONBLOCK
    person = Person(process, ours)
    people.append(person)
    return person


def test_an_edited_call_runs_with_what_the_person_typed(people: list[Person], tmp_path: Path) -> None:
    """Arguments that do not fit are refused and asked for again; those that do run once."""
    person = sit_down(people, tmp_path / "turns.db", "--waits", "0")
    for line in ("e\n", "\n", "-5\n"):
        person.until(PROMPT if line == "e\n" else "] ")
        person.types(line)
    refused = person.until(PROMPT)
    person.types("e\n")
    person.until("] ")
    person.types("O-7\n")
    person.until("] ")
    person.types("20\n")
    code, rest = person.end()
    (refund,) = entries(tmp_path / "turns.db.ledger")

    assert "the wait stays open" in " ".join(refused.split())
    assert code == 0, rest
    assert (refund["order_id"], refund["amount"]) == ("O-7", 20)


def test_a_rejected_call_never_runs(people: list[Person], tmp_path: Path) -> None:
    """The model reads the reason; an empty ledger is what is right then."""
    person = sit_down(people, tmp_path / "turns.db", "--waits", "0")
    person.until(PROMPT)
    person.types("r\n")
    person.until("why? ")
    person.types("not our order\n")
    code, rest = person.end()

    assert code == 0, rest
    assert "I did not refund the order: not our order" in rest
    assert "0 lines: refund_order never ran" in rest
    assert entries(tmp_path / "turns.db.ledger") == []


def test_who_leaves_is_told_how_to_answer_and_the_demo_goes_on_from_there(people: list[Person], tmp_path: Path) -> None:
    """Ctrl-C at the prompt: no traceback, exit code 130; the command that is shown works; the next demo completes the turn."""
    store = tmp_path / "turns.db"
    person = sit_down(people, store)
    person.until(PROMPT)
    person.types("\x03")
    code, rest = person.end()
    shown = rest.replace("\\\r\n", " ")
    answer = next(line for line in shown.splitlines() if "turnhold answer" in line).split()[1:]
    answered = subprocess.run(
        [sys.executable, "-m", "turnhold.console.cli", *answer], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    before = entries(tmp_path / "turns.db.ledger")
    again = subprocess.run(command(store, "--waits", "0"), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    (refund,) = entries(tmp_path / "turns.db.ledger")

    assert code == 130
    assert "Traceback" not in rest
    assert (answered.returncode, answered.stdout[:15], before) == (0, "APPROVED by you", [])
    assert again.returncode == 0, again.stdout
    assert "this goes on with it" in " ".join(again.stdout.split())
    assert refund["key"].startswith(answer[2])
