"""Typed output: how a model is told what its final reply must be, and how the reply becomes a value of a type."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, cast, final

import msgspec

from .checks import check_json
from .errors import ArgumentsInvalid, InvalidDefinition, OutputInvalid
from .record import JsonObject, JsonValue
from .schema import check_schema
from .signature import MAX_DEPTH, Binder
from .tables import tables_of
from .typeschema import schema_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Out = TypeVar("Out", default=Any, covariant=True)  # noqa: PLC0105 - a word of the face
    Said = TypeVar("Said", default=JsonValue)
else:  # only a type checker knows defaults before Python 3.13
    from typing import TypeVar

    Out = TypeVar("Out", covariant=True)  # noqa: PLC0105
    Said = TypeVar("Said")

MAX_OUTPUT = 262_144
VALUE = "value"
_FENCE = "```"


@final
class Output(Generic[Out]):
    """The type of a final output, ready for use; made by `output_of`.

    `schema` is what a model is told: a JSON Schema of an object, `None` for text. A type whose JSON is no object stands in it under
    the key ``value``, since providers take schemas of objects only.
    """

    __slots__ = ("_binder", "schema", "type", "wrapped")

    def __init__(self, name: str, type_: Any) -> None:
        self.type: Final = type_
        self.wrapped = False
        self.schema: JsonObject | None = None
        self._binder: Binder | None = None
        if type_ is str:
            return
        bare = schema_of(name, type_)
        try:
            holder = msgspec.defstruct("output", [(VALUE, type_)], forbid_unknown_fields=True, kw_only=True)
            decoder = msgspec.json.Decoder[Any](holder)
        except (TypeError, ValueError, NameError) as error:
            raise InvalidDefinition(f"{name} is not a type that JSON can hold: {error}") from None
        whole = check_schema(name, schema_of(name, holder))
        self.wrapped = bare.get("type") != "object"
        self.schema = whole if self.wrapped else check_schema(name, bare)
        self._binder = Binder(whole, decoder, (), tables=tables_of(holder))

    def read(self, text: str) -> JsonValue:
        """Return what a final reply says, as JSON-like as it was written: text as it is, everything else from its JSON.

        The JSON may stand in a fenced block. Where the type takes text, a reply that is no JSON is that text.

        :raises OutputInvalid: if the reply is over 256 KiB, is not JSON or does not fit the type.
        """
        if self._binder is None:
            return text
        if (size := len(text.encode(errors="surrogatepass"))) > MAX_OUTPUT:
            raise OutputInvalid("the reply", [("$", f"has {size} bytes, the limit is {MAX_OUTPUT}")])
        first: OutputInvalid | None = None
        for value in self._readings(text):
            if isinstance(value, OutputInvalid):
                first = first or value
                continue
            try:
                self._bound("the reply", value)
            except OutputInvalid as error:
                first = first or error
            else:
                return value
        assert first is not None
        raise first

    def convert(self, value: JsonValue) -> Out:
        """Return what is stored of an output as a value of the type; nothing is shared with what was given.

        :raises OutputInvalid: if it does not fit the type: it is the output of an agent with another one.
        """
        if self._binder is not None:
            return self._bound("the output", value)
        if not isinstance(value, str):
            raise OutputInvalid("the output", [("$", "must be text")])
        return cast("Out", value)

    def _readings(self, text: str) -> Iterator[JsonValue | OutputInvalid]:
        """Yield what a reply may mean, the likeliest first."""
        try:
            value = _parsed(text)
            check_json("$", value, MAX_OUTPUT, MAX_DEPTH)
        except InvalidDefinition as error:
            place, _, message = str(error).partition(" ")
            yield OutputInvalid("the reply", [(place, message)])
        except (ValueError, RecursionError) as error:
            yield OutputInvalid("the reply", [("$", f"is not JSON: {error}"[:200])])
        else:
            if self.wrapped and isinstance(value, dict) and value.keys() == {VALUE}:
                yield value[VALUE]
            yield value
        yield text.strip()

    def _bound(self, what: str, value: JsonValue) -> Out:
        assert self._binder is not None
        try:
            return self._binder.bind(what, {VALUE: value})[VALUE]
        except ArgumentsInvalid as error:
            raise OutputInvalid(what, [(_own(path), message) for path, message in error.faults]) from None


def output_of(name: str, type_: object) -> Output[Any]:
    """Return the output of a type: text, a Struct, a dataclass, a TypedDict, or what else msgspec has a JSON form for.

    :param name: what the type belongs to; messages begin with it.
    :raises InvalidDefinition: if the type has no JSON form, or its schema is over the limits of one.
    """
    try:
        return _known(name, type_)
    except TypeError:  # a type that cannot be hashed, or something that is none
        return Output(name, type_)


@lru_cache(maxsize=256, typed=True)
def _known(name: str, type_: Any) -> Output[Any]:
    return Output(name, type_)


def _parsed(text: str) -> JsonValue:
    """Return the JSON that a text is, or that a fenced block in it is.

    :raises ValueError: if there is none (or `RecursionError`, if it is nested too deep).
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        _, fence, rest = text.partition(_FENCE)
        word, line, body = rest.partition("\n")
        if not fence or not line or word.strip().lower() not in ("", "json"):
            raise
        for end in (body.rfind(_FENCE), body.find(_FENCE)):  # text in the JSON may have fences of its own
            try:
                return msgspec.json.decode(body[:end] if end >= 0 else body)
            except msgspec.DecodeError:
                pass
        raise


def _own(path: str) -> str:
    """Return a place in an output, given as one in what holds it."""
    return "$" + path.removeprefix(f"$.{VALUE}") if path.startswith(f"$.{VALUE}") else path
