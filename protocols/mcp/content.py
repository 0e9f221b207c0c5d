"""Results of a server's tools as JSON-like values that a model reads, within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ...actors.record import JsonObject, JsonValue

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock

MAX_SHOWN: Final = 4096


def value_of(result: CallToolResult, limit: int) -> JsonValue:
    """Return what a tool has returned: its structured content if it has any, else its texts, beside them what is no text.

    Images, sound and binary resources are named with their type and size: their bytes are nothing for a history of text. What has
    more than `limit` bytes is cut, and says so.
    """
    texts = [block.text for block in result.content if block.type == "text"]
    others: list[JsonValue] = [_other(block) for block in result.content if block.type != "text"]
    structured = cast("JsonValue", result.structured_content)
    value: JsonValue
    if "structured_content" in result.model_fields_set and structured is not None:
        value = {"structured": structured, "content": others} if others else structured
    elif others:
        value = {"content": [*({"type": "text", "text": text} for text in texts), *others]}
    else:
        value = "\n".join(texts)
    return bounded(value, limit)


def bounded(value: JsonValue, limit: int) -> JsonValue:
    """Return a value; one of too many bytes as its beginning, with a note."""
    body = value.encode(errors="replace") if isinstance(value, str) else msgspec.json.encode(value)
    if len(body) <= limit:
        return value
    return {"truncated": True, "bytes": len(body), "beginning": body[:limit].decode(errors="ignore")}


def text_of(result: CallToolResult) -> str:
    """Return the texts of a result that is an error, as far as they fit a message."""
    texts = [block.text for block in result.content if block.type == "text"]
    return short("\n".join(texts) or "the tool has failed")


def short(text: str, limit: int = MAX_SHOWN) -> str:
    """Return the beginning of a foreign text, in characters that can be stored."""
    return text[:limit].encode(errors="replace").decode()


def _other(block: ContentBlock) -> JsonValue:
    data: dict[str, Any] = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    shown: JsonObject = {"type": block.type}
    within = cast("dict[str, Any]", data.get("resource") or {})
    for key in ("name", "title", "description", "uri", "mimeType", "size", "text"):
        value = within.get(key, data.get(key))
        if value is not None:
            shown[key] = value
    encoded = within.get("blob", data.get("data"))
    if isinstance(encoded, str):
        shown["bytes"] = len(encoded) * 3 // 4
    return shown
