"""Searches for bytes that are read with another error than ours, led by the branches they reach; needs the package `atheris`.

    python tests/edges/cover.py [-runs=100000] [-max_total_time=60] [further options of libFuzzer]

The first byte says what the others are taken for: something stored, a message of a provider, a call's arguments, a schema and its
data, a URL, a record. A find is written to the folder of the call, and the process ends with an error.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris
import msgspec

with atheris.instrument_imports(include=["turnhold"]):
    import turnhold
    from turnhold.actors.history import readable
    from turnhold.actors.schema import check_schema, faults
    from turnhold.actors.stream import Accumulator, parse_arguments
    from turnhold.actors.turn import SCHEMA
    from turnhold.actors.view import view_of
    from turnhold.models import anthropic, anthropic_wire, openai, openai_wire
    from turnhold.store import codec
    from turnhold.store.records import MemoryEntry
    from turnhold.store.urls import open_store

CORPUS = Path(__file__).parent / "corpus"
SOURCE = codec.EventSource("t", None, "a", "1")
OURS = (turnhold.TurnholdError,)


def snapshot(data: bytes) -> None:
    """A snapshot; its name is in it, so that it is never refused for that alone."""
    try:
        name = msgspec.msgpack.decode(data)[0]
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        name = "t"
    view_of(codec.decode_state(str(name), SCHEMA, data), version=1).to_json()


def events(data: bytes) -> None:
    """A batch of events."""
    for event in codec.decode_events(SOURCE, 1, 1, data):
        event.to_json()


def remembered(data: bytes) -> None:
    """An entry of a memory."""
    codec.decode_remembered(MemoryEntry("m", data, shown=True, place=1, version=0, change=1, at=0)).to_json()


def streamed(border: Any, reader: Any) -> Callable[[bytes], None]:
    """The lines of a stream."""

    def read(data: bytes) -> None:
        with border():
            whole, wire = Accumulator(), reader()
            for line in data.split(b"\n"):
                whole.add(wire.read(json.loads(line)))
            whole.add(wire.end())
            whole.message()

    return read


def whole(border: Any, read: Callable[[Any], Any]) -> Callable[[bytes], None]:
    """A reply in one piece."""

    def reply(data: bytes) -> None:
        with border():
            read(json.loads(data))

    return reply


def arguments(data: bytes) -> None:
    """A call's arguments: whatever they are, what comes out can be stored."""
    found, _ = parse_arguments(data.decode(errors="surrogatepass") if data.isascii() else data.decode(errors="replace"))
    msgspec.msgpack.encode(found)


def schema(data: bytes) -> None:
    """A schema, and data for it, in two lines."""
    first, _, second = data.partition(b"\n")
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(first)
        with contextlib.suppress(turnhold.InvalidDefinition):
            given = check_schema("s", given)
        if isinstance(given, dict):
            faults(given, json.loads(second))


def record(data: bytes) -> None:
    """A record from outside."""
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(data)
        for kind in (turnhold.ResumeCommand, turnhold.Receipt, turnhold.Suspension, turnhold.Event, turnhold.TurnView):
            with contextlib.suppress(turnhold.InvalidDefinition):
                kind.from_dict(given)


TARGETS: tuple[Callable[[bytes], Any], ...] = (
    snapshot,
    lambda data: readable(codec.decode_entries("t", [data])),
    events,
    lambda data: codec.decode_mail("t", data),
    lambda data: codec.decode_outcome("t", data),
    lambda data: codec.decode_receipt("t", data),
    lambda data: codec.decode_suspension("t", data),
    remembered,
    whole(openai._border, openai_wire.whole_reply),
    streamed(openai._border, openai_wire.Reader),
    whole(anthropic._border, lambda body: anthropic_wire.whole_reply(body, "m")),
    streamed(anthropic._border, lambda: anthropic_wire.Reader("m")),
    arguments,
    schema,
    record,
    lambda data: open_store(data.decode(errors="replace")),
)


def one(data: bytes) -> None:
    """Try one input."""
    if data:
        with contextlib.suppress(*OURS):
            TARGETS[data[0] % len(TARGETS)](data[1:])


def seeds(folder: Path) -> None:
    """Write what is well formed, as a beginning."""
    texts = {8: '{"choices":[{"message":{"content":"x","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}'}
    texts[9] = '{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}'
    texts[10] = '{"type":"message","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1}}],"stop_reason":"max_tokens"}'
    texts[11] = '{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f"}}'
    texts |= {12: '{"a": [1, {"b": null}]}', 13: '{"type":"object","properties":{"a":{"pattern":"^(a|b){2}$"}}}\n{"a":"ab"}'}
    texts |= {14: '{"type":"APPROVE_TOOL","wait":"w","command_id":"c"}', 15: "redis+cluster://user:pass@[::1]:6379/0?namespace=x"}
    for at, text in texts.items():
        (folder / f"text-{at}").write_bytes(bytes([at]) + text.encode())
    for path in CORPUS.glob("*.turn"):
        rows = msgspec.msgpack.decode(path.read_bytes())
        parts = {0: [rows["snapshot"]], 1: rows["history"], 2: [each[3] for each in rows["events"]], 5: rows["receipts"]}
        for at, bodies in {**parts, 6: rows["waits"]}.items():
            for number, body in enumerate(bodies[:2]):
                (folder / f"{path.stem}-{at}-{number}").write_bytes(bytes([at]) + body)
    for at, name in ((3, "mail"), (4, "outcomes"), (7, "memory")):
        for number, body in enumerate(msgspec.msgpack.decode((CORPUS / f"{name}.list").read_bytes())):
            (folder / f"{name}-{number}").write_bytes(bytes([at]) + body)


def main() -> None:
    """Search."""
    with tempfile.TemporaryDirectory(prefix="turnhold-cover-") as name:
        seeds(Path(name))
        options = ["-max_len=4096", "-timeout=20", "-rss_limit_mb=1500", *sys.argv[1:]]
        atheris.Setup([sys.argv[0], *options, name], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
