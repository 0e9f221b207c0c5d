"""The parameters of a tool's function: their schema, and arguments made ready for a call."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, Union, cast

import msgspec

from .context import ToolContext
from .errors import ArgumentsInvalid, InvalidDefinition
from .record import JsonObject, JsonValue
from .schema import MAX_FAULTS, Fault, check_schema, faults, render
from .tables import Tables, tables_of
from .typeschema import schema_of

MAX_ARGUMENTS = 1 << 20
MAX_DEPTH = 64
_PARAM = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


class Binder:
    """Turns a call's arguments into keyword arguments.

    :param parameters: the schema that the model sees.
    :param decoder: validates and converts; `None` where the schema alone decides.
    :param contexts: names of parameters that get the `ToolContext`.
    :param whole: the one parameter that gets all arguments as a dict, if the function wants them so.
    :param names: the only names that the function takes, where the schema does not say so.
    :param optional: whether the decoder leaves parameters unset that were not given.
    :param tables: what the decoder puts in sets or makes keys of dicts.
    """

    __slots__ = ("_checked", "_optional", "_tables", "contexts", "decoder", "names", "parameters", "whole")

    def __init__(
        self,
        parameters: JsonObject,
        decoder: msgspec.json.Decoder[Any] | None,
        contexts: tuple[str, ...],
        whole: str | None = None,
        names: frozenset[str] | None = None,
        *,
        optional: bool = False,
        tables: Tables | None = None,
    ) -> None:
        self.parameters: Final = parameters
        self.decoder: Final = decoder
        self.contexts: Final = contexts
        self.whole: Final = whole
        self.names: Final = names
        # Patterns are matched here first, under a time limit. msgspec then matches them once more, by `re` and without one: a text
        # that `regex` accepts at once, as it does "aaaa…" for "(a+)+b|a", may take `re` for ever.
        self._optional = optional
        self._tables = tables
        self._checked = decoder is None or b'"pattern"' in msgspec.json.encode(parameters)

    def bind(self, tool: str, arguments: Any) -> dict[str, Any]:
        """Return validated and converted keyword arguments; they share nothing with what was given.

        :raises ArgumentsInvalid: if the arguments do not fit.
        """
        if not isinstance(arguments, dict):
            raise ArgumentsInvalid(tool, [("$", "must be an object")])
        arguments = cast("dict[str, Any]", arguments)
        if self.names is not None and (extra := [key for key in arguments if key not in self.names]):
            raise ArgumentsInvalid(tool, [(render((key,)), "is not allowed") for key in extra[:MAX_FAULTS]])
        if self._checked and (found := self._faults(arguments)):
            raise ArgumentsInvalid(tool, found)
        try:
            raw = msgspec.json.encode(arguments)
            if self.decoder is None:
                return msgspec.json.decode(raw)
            if self._tables is not None and (crowded := self._tables.fault(arguments, len(raw))):
                raise ArgumentsInvalid(tool, [crowded])
            bound = self._decode(self.decoder, raw)
        except ArgumentsInvalid:
            raise
        except msgspec.ValidationError as error:
            raise ArgumentsInvalid(tool, self._faults(arguments) or [self._fault(error)]) from None
        except Exception as error:  # not JSON-like, or a type's own __post_init__ does not like it
            raise ArgumentsInvalid(tool, self._faults(arguments) or [("$", f"cannot be used: {error!r:.200}")]) from error
        given = msgspec.structs.asdict(bound)
        return {name: value for name, value in given.items() if value is not msgspec.UNSET} if self._optional else given

    @staticmethod
    def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> msgspec.Struct:
        """Decode arguments; a whole number written with a point (5.0) will do where the first look failed."""
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError:
            return decoder.decode(msgspec.json.encode(_with_whole_numbers(msgspec.json.decode(raw))))

    def _faults(self, arguments: Any) -> list[Fault]:
        return faults(self.parameters, arguments, limit=MAX_ARGUMENTS, levels=MAX_DEPTH)

    @staticmethod
    def _fault(error: msgspec.ValidationError) -> Fault:
        message, _, path = str(error).partition(" - at `")
        return (path.rstrip("`") or "$", message)


def binder_of(name: str, function: Callable[..., Any]) -> Binder:
    """Read the signature of a function.

    :raises InvalidDefinition: if a parameter cannot be given by name, has no JSON form, or has an annotation that nobody knows.
    """
    contexts: list[str] = []
    fields: list[tuple[str, Any, Any]] = []
    defaults: JsonObject = {}
    for parameter, hint in hinted(name, function):
        if is_context(hint):
            contexts.append(parameter.name)
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint, msgspec.NODEFAULT))
        else:
            fields.append((parameter.name, Union[hint, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007 - of values
            _note_default(defaults, parameter)
    try:
        struct = msgspec.defstruct(f"{name} arguments", fields, forbid_unknown_fields=True, kw_only=True)
        schema = schema_of(f"tool {name}", struct)
        decoder = msgspec.json.Decoder(struct)
    except InvalidDefinition:
        _blame(name, fields)
        raise
    except (TypeError, ValueError) as error:
        raise InvalidDefinition(f"tool {name}: {error}") from None
    described = _described(schema, defaults, inspect.getdoc(_documented(function)))
    optional = any(default is msgspec.UNSET for _, _, default in fields)
    parameters = check_schema(f"tool {name}: parameters", described)
    return Binder(parameters, decoder, tuple(contexts), optional=optional, tables=tables_of(struct))


def binder_of_schema(name: str, parameters: object, function: Callable[..., Any]) -> Binder:
    """Use a given schema of parameters.

    :raises InvalidDefinition: if the schema is not one of objects, or the function cannot take its properties by name.
    """
    schema = check_schema(f"tool {name}: parameters", parameters, kind="object")
    names = set(cast("dict[str, JsonValue]", schema.get("properties", {})))
    contexts: list[str] = []
    plain: list[inspect.Parameter] = []
    open_ended = False
    for parameter, hint in hinted(name, function, open_ended=True):
        open_ended = open_ended or parameter.kind is parameter.VAR_KEYWORD
        if is_context(hint):
            contexts.append(parameter.name)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            plain.append(parameter)
    if len(plain) == 1 and plain[0].name == "arguments" and "arguments" not in names and not open_ended:
        return Binder(schema, None, tuple(contexts), whole="arguments")
    taken = {parameter.name for parameter in plain}
    if not open_ended and (missing := sorted(names - taken)):
        raise InvalidDefinition(f"tool {name}: the function does not take {', '.join(missing)}")
    if clash := names & set(contexts):
        raise InvalidDefinition(f"tool {name}: {', '.join(sorted(clash))} is both an argument and the context")
    required = set(cast("list[str]", schema.get("required", [])))
    if missing := [p.name for p in plain if p.default is p.empty and p.name not in required]:
        raise InvalidDefinition(f"tool {name}: the function needs {', '.join(missing)}, which the schema does not require")
    return Binder(schema, None, tuple(contexts), names=None if open_ended else frozenset(names))


def hinted(name: str, function: Callable[..., Any], *, open_ended: bool = False) -> list[tuple[inspect.Parameter, Any]]:
    """Return the parameters that a model may give, with their annotations resolved.

    :param open_ended: allow ``**kwargs``.
    :raises InvalidDefinition: if a parameter cannot be given by name or an annotation cannot be resolved.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        raise InvalidDefinition(f"tool {name}: its signature cannot be read: {error}") from None
    plain = unwrapped(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise InvalidDefinition(f"tool {name}: a generator has no result; return a list")
    fixed = _fixed(function)
    return [(p, _hint(name, function, p)) for p in parameters if p.name not in fixed and _allowed(name, p, open_ended=open_ended)]


def is_context(hint: Any) -> bool:
    """Tell whether an annotation asks for the `ToolContext`."""
    if hint is ToolContext or typing.get_origin(hint) is ToolContext:
        return True
    return typing.get_origin(hint) is not typing.Annotated and any(is_context(part) for part in _union(hint))


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling a function gives a coroutine: an async function, method, partial or object."""
    plain = unwrapped(function)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(type(plain).__call__)


def describe(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring as one line."""
    text = inspect.getdoc(_documented(function)) or ""
    return " ".join(text.split("\n\n", 1)[0].split())


def _allowed(name: str, parameter: inspect.Parameter, *, open_ended: bool) -> bool:
    if parameter.kind is parameter.VAR_KEYWORD and open_ended:
        return True
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise InvalidDefinition(f"tool {name}: a model cannot fill {stars}{parameter.name}; name the parameters")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidDefinition(f"tool {name}: {parameter.name} is positional-only; a model gives arguments by name")
    if parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
        raise InvalidDefinition(f"tool {name}: {parameter.name} is not bound; make a tool of the bound method instead")
    return True


def _hint(name: str, function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(unwrapped(function)), "__globals__", None) or _globals_of_call(function)
    try:
        hint = typing.get_type_hints(holder, names, include_extras=True)[parameter.name]
    except Exception as error:
        raise InvalidDefinition(
            f"tool {name}: the annotation of {parameter.name} cannot be resolved ({error}); define its names at module level"
        ) from None
    return Any if hint is object else hint


def _globals_of_call(function: Callable[..., Any]) -> dict[str, Any]:
    return getattr(type(unwrapped(function)).__call__, "__globals__", {})


def _union(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if type(None) in typing.get_args(hint) else ()


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a partial or a static method is made of."""
    while isinstance(function, functools.partial | staticmethod):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function


def _documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what carries the docstring: the function, or the `__call__` of an object."""
    plain = unwrapped(function)
    if inspect.isroutine(plain) or inspect.isclass(plain):
        return plain
    call = type(plain).__call__
    return call if inspect.isfunction(call) and call.__doc__ else plain


def _fixed(function: Callable[..., Any]) -> set[str]:
    """Return the names that partials have filled by keyword; no model may change them."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names |= set(function.keywords)
        function = function.func
    return names


def _note_default(defaults: JsonObject, parameter: inspect.Parameter) -> None:
    try:
        value = msgspec.json.decode(msgspec.json.encode(parameter.default))
    except (TypeError, ValueError, RecursionError):
        return
    defaults[parameter.name] = value


def _described(schema: JsonObject, defaults: JsonObject, doc: str | None) -> JsonObject:
    """Finish the schema of a signature: defaults, and descriptions from ``:param x:`` lines."""
    schema.pop("title", None)
    properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
    for key, value in defaults.items():
        properties[key]["default"] = value
    for key, text in _param_lines(doc or "").items():
        if key in properties:
            properties[key].setdefault("description", text)
    return schema


def _param_lines(doc: str) -> dict[str, str]:
    found: dict[str, str] = {}
    current = None
    for line in doc.splitlines():
        if match := _PARAM.match(line):
            current = match[1]
            found[current] = match[2].strip()
        elif current and line.startswith((" ", "\t")) and line.strip() and not line.strip().startswith(":"):
            found[current] = f"{found[current]} {line.strip()}".strip()
        else:
            current = None
    return found


def _blame(name: str, fields: list[tuple[str, Any, Any]]) -> None:
    """Name the parameter whose type has no JSON form."""
    for field, hint, _ in fields:
        schema_of(f"tool {name}: parameter {field}", hint)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def parameter_names(parameters: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return the names of a schema's properties."""
    return tuple(cast("dict[str, JsonValue]", parameters.get("properties", {})))
