"""Hostile schemas, checked with little memory; run as a program it prints what came of each. A crash of C code would end it."""

from __future__ import annotations

import json
import resource
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from turnhold import FormDefinition, Tool, TurnholdError
from turnhold.actors.output import Output
from turnhold.actors.schema import check_schema, faults

MEMORY = 1 << 30
LONG = "a" * 60_000


def nested(levels: int, word: str) -> dict[str, Any]:
    """A schema in a schema."""
    return reduce(lambda inner, _: {word: [inner, inner] if word.endswith("Of") else inner}, range(levels), {"type": "string"})


def deep(levels: int) -> Any:
    """A list in a list."""
    return reduce(lambda inner, _: [inner], range(levels), [])


def lists(entries: int, length: int) -> list[list[int]]:
    """Lists of which Python thinks that they all have the same hash."""
    return [[-1 if entry >> bit & 1 else -2 for bit in range(length)] for entry in range(entries)]


AGAIN = {"$ref": "#/$defs/n"}
NODE = {**AGAIN, "$defs": {"n": {"oneOf": [{"items": AGAIN}, {"prefixItems": [AGAIN]}]}}}
BOMBS: dict[str, tuple[Any, Any]] = {
    "repeats of repeats": ({"pattern": "(((((a{1000}){1000}){1000}){1000}){1000})"}, LONG),
    "four billion": ({"pattern": "(a){4000000000}"}, LONG),
    "four billion, with blanks": ({"pattern": "(?x)(a) {4000000000}"}, LONG),
    "four billion behind a class": ({"pattern": "[[:alpha:][](a){4000000000}"}, LONG),
    "many repeats": ({"patternProperties": {f"(a){{2000}}{at}": True for at in range(900)}}, {LONG: 1}),
    "optional repeats": ({"pattern": "(?:a{0,1000}){0,1000}$"}, LONG + "b"),
    "a pattern in itself": ({"pattern": "(?:(?R)){2}a"}, "a"),
    "a pattern deep in itself": ({"pattern": "a(?R)"}, LONG),
    "catastrophic": ({"pattern": "^(\\w+\\s?)*$"}, "a " * 30_000 + "!"),
    "back references": ({"pattern": "(a+)(a+)(a+)(a+)\\4\\3\\2\\1b"}, LONG),
    "fuzzy": ({"pattern": "(?b)(?:abcdefghijklmnopqrstuvwxyz){e<=20}"}, "abcdefghijklmnopqrstuvwxy" * 2000),
    "groups": ({"pattern": "(" * 200 + "a" + ")*" * 200}, LONG),
    "more groups": ({"pattern": "(?:" * 5000 + "a" + ")*" * 5000}, LONG),
    "10,000 levels of schema": (nested(10_000, "not"), 1),
    "10,000 levels of data": ({"items": True}, deep(10_000)),
    "allOf": (nested(9, "allOf"), 1),
    "oneOf": (nested(9, "oneOf"), 1),
    "a loop": ({"$ref": "#"}, 1),
    "a loop over two": ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, 1),
    "recursive alternatives": (NODE, reduce(lambda inner, _: [inner, inner], range(12), None)),
    "remote": ({"$ref": "http://127.0.0.1:9/x"}, 1),
    "dynamic": ({"$dynamicRef": "#a", "$dynamicAnchor": "a"}, 1),
    "a reference of 60 KB": ({"$ref": "#" + "/a" * 30_000}, 1),
    "a reference that is no UTF-8": ({"$ref": "#/%ED%A0%80"}, 1),
    "a huge enum": ({"items": {"enum": list(range(9000))}}, [-1] * 20_000),
    "huge constants": ({"items": {"const": {"a": list(range(5000))}}}, [{"a": list(range(5000))}] * 2),
    "multiples": ({"items": {"multipleOf": 5e-324}}, [1.7976931348623157e308] * 2500),
    "equal hashes": ({"uniqueItems": True}, lists(1500, 12)),
    "keys that are no text": ({"properties": {1: True}}, {1: 1}),
    "bounds": ({"minLength": 1e300, "maximum": 1e308, "maxItems": 1e308}, "x"),
    "decimals": ({"format": "decimal"}, "9" * 60_000),
    "durations": ({"format": "duration"}, "P" + "9" * 50_000 + "D"),
    "half a character": ({"const": "\ud800"}, "\udfff"),
}


async def sink(**values: Any) -> str:
    """Take what comes."""
    return str(values)


def outcome(make: Any) -> str:
    """What a step came to: nothing, our refusal, or an error that is none of ours."""
    try:
        made = make()
    except TurnholdError:
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:200]
    return f"{made}"[:80] if isinstance(made, list) else "taken"


def peak() -> int:
    """The most memory this program has had, in megabytes; what the process was before, in whoever started it, does not count."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return next(int(line.split()[1]) // 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def main() -> int:
    """Try each bomb as a schema, as a tool's, as a form's and as a check."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    found: dict[str, list[str]] = {}
    for name, (schema, data) in BOMBS.items():
        whole = {"type": "object", "properties": {"x": schema}}
        found[name] = [
            outcome(lambda schema=schema: check_schema("s", schema)),
            outcome(lambda whole=whole: Tool.from_schema("t", "T.", whole, sink)),
            outcome(lambda whole=whole: FormDefinition("f", description="F", schema=whole)),
            outcome(lambda schema=schema, data=data: faults(schema, data)),
        ]
    data = [[each] for each in lists(20_000, 15)]
    found["equal hashes, 1 MB"] = [outcome(lambda: faults({"uniqueItems": True}, data, limit=1 << 20, levels=64))]
    texts = ("[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, '{"a": ' + "9" * 5000 + "}", '{"a": NaN}', "\ud800", "{" * 100_000)
    output = Output("o", dict[str, int])
    found["outputs"] = [outcome(lambda text=text: output.convert(output.read(text))) for text in texts]
    json.dump({"peak": peak(), "found": found}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
