"""The command line. What a command needs is imported when it runs, so that help is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

VERBS: Final = {
    "approve": "let a call run (--arguments replace the model's)",
    "reject": "refuse a call (--reason is read by the model)",
    "say": "answer a plain question (--text)",
    "submit": "submit a form (--data)",
    "decline": "do not answer a form (--reason)",
    "retry": "try now what waits for a retry (--force: before it is due)",
    "rerun": "start a call in doubt once more, under its key",
    "result": "say what a call in doubt has returned (--data)",
    "fail": "say that a call in doubt has failed (--reason)",
}
TAKES: Final = {
    "approve": ("arguments",),
    "reject": ("reason",),
    "say": ("text",),
    "submit": ("data",),
    "decline": ("reason",),
    "retry": ("force",),
    "result": ("data",),
    "fail": ("reason",),
}
NEEDS: Final = {"say": "text", "submit": "data", "result": "data"}
URL_HELP: Final = "a store, as in sqlite:///turns.db or redis://host:6379/0"
LEFT: Final = 130
MOST_WAITS: Final = 10_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 where it failed (one line on stderr), 2 where it was called wrongly.

    :param argv: the arguments; without them this is the process's own command line, and logging is set up for a terminal.
    """
    if argv is None:
        own_process()
    try:
        options = parse(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    try:
        return _run(options)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return LEFT
    except BrokenPipeError:
        return unread()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments. :raises SystemExit: if they are wrong, or ask for help."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command == "answer":
        _check_answer(parser, options)
    if options.command == "demo" and not 0 <= options.waits <= MOST_WAITS:
        parser.error(f"--waits is a number from 0 to {MOST_WAITS}")
    if options.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    return options


def _run(options: argparse.Namespace) -> int:
    if options.command == "version":
        from importlib.metadata import version as installed_version

        print(f"turnhold {installed_version('turnhold')}")
        return 0
    if options.command == "demo":
        from .demo import demo

        return demo(options)
    from .commands import run

    return run(options)


def unread() -> int:
    """Return the exit code where nobody reads the output any more; the end of the process must not write to it either."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - it lives as long as the process
    return 1


def own_process() -> None:
    """Log warnings to stderr, and never fail for a character that the terminal cannot show."""
    import logging

    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="turnhold: %(levelname)s %(message)s")


# ---------------------------------------------------------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="turnhold",
        description="Agent turns that can wait. Look at turns in a store, answer what they wait for, or see the demo.",
        epilog="These commands run no agents: an answer is stored, and a process that runs the agent goes on with the turn.",
    )
    parser.add_argument("--version", dest="command", action="store_const", const="version", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _demo(commands.add_parser("demo", help="see a turn wait for you, over two processes", description=_DEMO))
    inbox = commands.add_parser("inbox", help="list what waits for people")
    _listing(inbox)
    inbox.add_argument("--assignee", metavar="NAME", help="only waits that are assigned to NAME")
    turns = commands.add_parser("turns", help="list turns")
    _listing(turns)
    turns.add_argument("--status", metavar="STATUS", type=str.upper, help="only turns in this status, as in COMPLETED")
    turns.add_argument("--conversation", metavar="ID", help="only turns of this conversation")
    turns.add_argument("--quarantined", action="store_true", help="only turns that are parked after crashes")
    show = commands.add_parser("show", help="show one turn: its state, its open waits, its events")
    _address(show)
    show.add_argument("--history", action="store_true", help="show the messages too")
    conversation = commands.add_parser("conversation", help="show a conversation: its turns and what it remembers")
    _store(conversation)
    conversation.add_argument("id", metavar="ID", help="the name of a conversation")
    conversation.add_argument("--limit", metavar="N", type=int, default=50, help="the newest N messages (50)")
    conversation.add_argument("--before", metavar="MESSAGE", help="the messages before this one")
    _answer(commands)
    cancel = commands.add_parser("cancel", help="cancel a turn and its children")
    _address(cancel)
    cancel.add_argument("--reason", metavar="TEXT", help="why; the turn keeps it")
    cancel.add_argument("--timeout", metavar="SECONDS", type=float, default=30.0, help="how long to wait for the end (30)")
    _mcp(commands.add_parser("mcp", help="serve a store to MCP clients: start, look, cancel, answer", description=_MCP))
    commands.add_parser("version", help="print the version")
    return parser


def _store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help=URL_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON, one record a line")


def _listing(parser: argparse.ArgumentParser) -> None:
    _store(parser)
    parser.add_argument("--agent", metavar="ID", help="only of this agent")
    parser.add_argument("--tenant", metavar="ID", help="only of this tenant")
    parser.add_argument("--limit", metavar="N", type=int, default=50, help="at most N (50)")
    parser.add_argument("--after", metavar="CURSOR", help="go on behind an earlier listing")


def _address(parser: argparse.ArgumentParser) -> None:
    _store(parser)
    parser.add_argument("turn", metavar="TURN", help="the id of a turn (or of one of its waits)")


def _answer(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    verbs = "\n".join(f"  {verb:<9}{text}" for verb, text in VERBS.items())
    parser = commands.add_parser(
        "answer",
        help="answer a wait: approve, reject, submit a form …",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Answer a wait of a turn.\n\nverbs:\n{verbs}",
    )
    _address(parser)
    parser.add_argument("verb", metavar="VERB", choices=VERBS, help="see above")
    parser.add_argument("--by", metavar="NAME", required=True, help="who answers; it is stored with the receipt")
    parser.add_argument("--wait", metavar="ID", help="the wait, or its call, where several are open")
    parser.add_argument("--command-id", metavar="ID", help="makes a repeated answer safe: it gets the same receipt")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=30.0, help="how long to wait for the receipt (30)")
    parser.add_argument("--reason", metavar="TEXT", help="why")
    parser.add_argument("--text", metavar="TEXT", help="what you say")
    parser.add_argument("--arguments", metavar="JSON", type=_json_object, help="a JSON object; replaces all arguments of the call")
    parser.add_argument("--data", metavar="JSON", type=_json, help="any JSON value")
    parser.add_argument("--force", action="store_true", default=None, help="retry before it is due")


_MCP = """Serve the turns of a store as tools to a client of the Model Context Protocol, over stdin and stdout, or over HTTP at
/mcp. It runs no agents: processes that do go on with what is started and answered here. Needs pip install 'turnhold[mcp]'."""


def _mcp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help=URL_HELP)
    parser.add_argument(
        "--answer-as", dest="by", metavar="NAME", help="let the client answer waits, under this name; off by default"
    )
    parser.add_argument(
        "--agent", dest="agents", metavar="ID", action="append", help="let it start and see only this agent (repeatable)"
    )
    parser.add_argument("--tenant", metavar="ID", help="show it only turns of this tenant")
    parser.add_argument("--port", metavar="N", type=int, help="serve HTTP on this port instead of stdin and stdout")
    parser.add_argument("--host", metavar="HOST", default="127.0.0.1", help="with --port: where to listen (127.0.0.1)")


_DEMO = """A refund agent stops for your approval and its process exits; another process shows you what waits, takes your answer and
completes; then two processes approve the same waits at the same instant. Needs no key and no server. With a real model it needs the
openai package: pip install 'turnhold[openai]'."""


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="approve without asking (as without a terminal)")
    parser.add_argument("--store", metavar="FILE", help="the SQLite file to use; a new one in a temporary folder by default")
    parser.add_argument("--waits", metavar="N", type=int, default=50, help="how many waits both processes approve (50)")
    model = parser.add_argument_group("a real model")
    model.add_argument("--model", metavar="NAME", nargs="?", const="", help="a model by name; without a name gpt-4.1-mini")
    model.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible endpoint; OpenAI by default")
    model.add_argument("--api-key", metavar="KEY", help="its key; the variable OPENAI_API_KEY by default")
    model.add_argument("--scripted", action="store_true", help="no real model, even if OPENAI_API_KEY is set")


# ------------------------------------------------------------------------------------------------------------------- checks


def _check_answer(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options that the verb does not take, and the lack of one that it needs."""
    takes = TAKES.get(options.verb, ())
    for name in ("arguments", "reason", "text", "data", "force"):
        if getattr(options, name) is not None and name not in takes:
            parser.error(f"{options.verb} takes no --{name}")
    needed = NEEDS.get(options.verb)
    if needed is not None and getattr(options, needed) is None:
        parser.error(f"{options.verb} needs --{needed}")


class Given:
    """A value that was given, so that JSON's null differs from nothing."""

    def __init__(self, value: object) -> None:
        self.value = value


def _json(text: str) -> Given:
    import json

    try:
        return Given(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None


def _json_object(text: str) -> Given:
    given = _json(text)
    if not isinstance(given.value, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return given


if __name__ == "__main__":
    sys.exit(main())
