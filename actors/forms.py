"""Forms: structured questions to a person, asked by a tool or picked by the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast, final, get_origin, overload

import msgspec

from .carried import carried, holds_struct
from .checks import check_flag
from .errors import ArgumentsInvalid, FormLoop, FormRequired, InvalidDefinition
from .policies import OnExpiry
from .record import JsonObject, JsonValue, Seconds
from .schema import check_schema, faults
from .tools import USER_INPUT_TOOL, Tool, control_tool, positive
from .typeschema import schema_of
from .waits import MAX_ID, MAX_TEXT, check_text

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False, repr=False, init=False, slots=True, weakref_slot=True)
class FormDefinition(Generic[T]):
    """A form: its key and description, which models see, and a JSON Schema (2020-12) of its data, which they do not.

    The schema may also be a Struct, dataclass or TypedDict; the data then comes converted. A form that `expires_in` some time ends
    by `on_expiry`: "reject" (the default) declines the call, "cancel" and "fail" end the turn, "default" submits `default`.

    Declined, a call ends with a structured result. With `tell_decline` a tool that asked is started again instead, and
    `ToolContext.form` raises `FormDeclined` in it.

    :raises InvalidDefinition: if the key or the description is blank, the schema is empty, wrong or too large, `on_expiry` or
        `default` is given for nothing, or the default does not fit the schema.
    """

    form_key: str
    description: str
    assignee: str | None
    expires_in: timedelta | None
    on_expiry: OnExpiry | None
    default: JsonValue
    tell_decline: bool
    type: type[T] | None
    _schema: bytes

    @overload
    def __init__(
        self,
        form_key: str,
        *,
        description: str,
        schema: type[T],
        assignee: str | None = None,
        expires_in: Seconds | None = None,
        on_expiry: OnExpiry | None = None,
        default: object = None,
        tell_decline: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: FormDefinition[Any],
        form_key: str,
        *,
        description: str,
        schema: Mapping[str, Any],
        assignee: str | None = None,
        expires_in: Seconds | None = None,
        on_expiry: OnExpiry | None = None,
        default: object = None,
        tell_decline: bool = False,
    ) -> None: ...
    def __init__(
        self,
        form_key: str,
        *,
        description: str,
        schema: Any,
        assignee: str | None = None,
        expires_in: Seconds | None = None,
        on_expiry: OnExpiry | None = None,
        default: object = None,
        tell_decline: bool = False,
    ) -> None:
        check_text("form_key", form_key, MAX_ID, empty=False)
        name = f"form {form_key}"
        check_text(f"{name}: description", description, MAX_TEXT, empty=False)
        check_text(f"{name}: assignee", assignee, MAX_ID, optional=True, empty=False)
        typed = isinstance(schema, type) or get_origin(schema) is not None
        checked = check_schema(f"{name}: schema", schema_of(f"{name}: schema", schema) if typed else schema)
        span = positive(f"{name}: expires_in", expires_in)
        check_flag(f"{name}: tell_decline", tell_decline)
        values = {
            "form_key": form_key,
            "description": description,
            "assignee": assignee,
            "expires_in": span,
            "on_expiry": _on_expiry(name, span, on_expiry),
            "default": _default(name, checked, on_expiry, default),
            "tell_decline": tell_decline,
            "type": schema if typed else None,
            "_schema": msgspec.json.encode(checked),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        if on_expiry == "default":
            self._check_default(name)

    def _check_default(self, name: str) -> None:
        try:
            self.convert(self.default)
        except ArgumentsInvalid as error:
            raise InvalidDefinition(f"{name}: default does not fit its type: {error.faults[0][1]}") from None

    @property
    def json_schema(self) -> JsonObject:
        """The schema as JSON; a new copy every time."""
        return msgspec.json.decode(self._schema)

    def convert(self, data: object) -> T:
        """Return submitted data as the form's type; without one, a copy as it is.

        :raises ArgumentsInvalid: if the data does not fit the type (which may have changed since it was submitted).
        """
        if self.type is None and holds_struct(data):
            return cast("T", carried("data", data))
        raw = msgspec.json.encode(data)
        try:
            return cast("T", msgspec.json.decode(raw) if self.type is None else msgspec.json.decode(raw, type=self.type))
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `")
            raise ArgumentsInvalid(f"form {self.form_key}", [(path.rstrip("`") or "$", message)]) from None

    def __repr__(self) -> str:
        return f"<FormDefinition {self.form_key}>"


def _on_expiry(name: str, expires_in: timedelta | None, on_expiry: object) -> OnExpiry | None:
    if on_expiry not in (None, "reject", "cancel", "fail", "default"):
        raise InvalidDefinition(f"{name}: on_expiry must be 'reject', 'cancel', 'fail' or 'default', not {on_expiry!r}")
    if on_expiry is not None and expires_in is None:
        raise InvalidDefinition(f"{name}: on_expiry needs expires_in")
    return on_expiry


def _default(name: str, schema: JsonObject, on_expiry: object, default: object) -> JsonValue:
    if on_expiry != "default":
        if default is not None:
            raise InvalidDefinition(f"{name}: default is only used with on_expiry='default'")
        return None
    try:
        data = msgspec.json.decode(msgspec.json.encode(default))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDefinition(f"{name}: default is not JSON-like: {error}") from None
    for path, message in faults(schema, data):
        raise InvalidDefinition(f"{name}: default{path[1:]} {message}")
    return data


def user_input_tool(*forms: FormDefinition[Any]) -> Tool[..., Any]:
    """Return the control tool `request_user_input`, by which the model picks one of these forms for the user to fill in.

    The model sees keys and descriptions only. The call's result is what the user submitted.

    :raises InvalidDefinition: if there is no form, or two have one key.
    """
    if not forms:
        raise InvalidDefinition("user_input_tool needs at least one form")
    for form in forms:
        if not isinstance(form, FormDefinition):
            raise InvalidDefinition(f"user_input_tool takes FormDefinitions, not {type(form).__name__}")
    keys = [form.form_key for form in forms]
    for key in keys:
        if keys.count(key) > 1:
            raise InvalidDefinition(f"user_input_tool: two forms have the key {key!r}")
    lines = "".join(f"\n- {form.form_key}: {form.description}" for form in forms)
    description = f"Ask the user to fill in one of these forms; the result is what they submitted. Forms:{lines}"
    parameters: JsonObject = {
        "type": "object",
        "properties": {"form_key": {"type": "string", "enum": list(keys), "description": "The key of the form."}},
        "required": ["form_key"],
        "additionalProperties": False,
    }
    return control_tool(USER_INPUT_TOOL, description, parameters, forms)


def find_form_required(error: BaseException) -> FormRequired | None:
    """Return the `FormRequired` that an exception is or, at any depth, groups; `None` if there is none."""
    left = [error]
    while left:
        current = left.pop()
        if isinstance(current, FormRequired):
            return current
        if isinstance(current, BaseExceptionGroup):
            left.extend(reversed(cast("BaseExceptionGroup[BaseException]", current).exceptions))
    return None


def form_loop(
    required: FormRequired, forms: Mapping[str, JsonValue] | None, declined: Mapping[str, object] | None = None
) -> FormLoop | None:
    """Return the error of a tool that asked for a form its call already has; `None` if it asked for a new one."""
    key = cast("FormDefinition[Any]", required.form).form_key
    if key in (declined or {}):
        return FormLoop(f"the tool asked again for the form {key!r}, which was declined")
    return FormLoop(f"the tool asked again for the form {key!r}, which was submitted") if key in (forms or {}) else None
