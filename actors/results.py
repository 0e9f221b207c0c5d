"""The text of a tool's result, as the model reads it."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import ToolResultInvalid


def result_text(value: object) -> str:
    """Return a tool's result as text: text as it is, everything else as JSON (`None` is ``null``).

    Structs, dataclasses, enums, times, sets and Pydantic models have a JSON form; NaN and infinity become ``null``.

    :raises ToolResultInvalid: if there is no JSON form, or the text has lone surrogates.
    """
    try:
        if isinstance(value, str) and type(value) is str:
            value.encode()
            return value
        return msgspec.json.encode(value, enc_hook=_foreign).decode()
    except UnicodeEncodeError as error:
        raise ToolResultInvalid(f"the result is not valid Unicode: {error.reason}") from None
    except Exception as error:
        raise ToolResultInvalid(f"a result of type {type(value).__name__} has no JSON form: {error}") from error


def _foreign(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    raise NotImplementedError(f"objects of type {type(value).__name__} are not supported")
