"""What a running tool knows of its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

import msgspec

from .chat import ToolCall
from .current import Entered
from .errors import FormDeclined, FormRequired, TurnholdError
from .ids import call_key
from .record import JsonObject, JsonValue, Metadata
from .turn import Decline
from .waits import MAX_ID, MAX_TEXT, check_json, check_text

if TYPE_CHECKING:
    from .forms import FormDefinition
    from .tools import Tool
else:  # a cycle; to whoever reads the hints at run time (`help`, `inspect.signature`) a tool is something to call
    Tool = Callable

S = TypeVar("S")
T = TypeVar("T")

_current: ContextVar[ToolContext[Any]] = ContextVar("turnhold_tool_context")


class NoToolContext(TurnholdError, LookupError):
    """No tool is running here. `ToolContext.current()` works in a tool and in what it calls; in tests use `tool_context`."""


def _nobody(message: str, data: JsonObject) -> None:
    """Drop progress: nobody listens."""


def _never() -> bool:
    return False


def _forget(names: tuple[str, ...]) -> None:
    """Drop names: no turn is there to remember them."""


@final
class ToolContext(msgspec.Struct, Generic[S], frozen=True, kw_only=True, eq=False):
    """The turn, the call and the attempt that a tool runs for, and what it may ask the runtime.

    `attempt` counts starts of this call's function. `forms` holds submitted data by form key, `form_data` the last of it (`None`
    until a form was answered), `declined` what was said to forms with ``tell_decline``. `kept` is what an earlier attempt kept when
    it asked for a form (`None`: nothing). `metadata` is the turn's, `services` what the Runtime was given. `epoch` is a fencing
    token: it grows with every activation of the turn.
    """

    turn_id: str
    root_turn_id: str
    parent_turn_id: str | None = None
    conversation_id: str | None = None
    tenant: str | None = None
    agent_id: str
    agent_version: str
    tool: Tool[..., Any]
    call: ToolCall
    attempt: int = 1
    epoch: int = 0
    form_data: Any = None
    forms: Mapping[str, Any] = {}
    declined: Mapping[str, Decline] = {}
    kept: JsonValue = None
    metadata: Metadata = {}
    services: S = cast("S", None)
    report: Callable[[str, JsonObject], None] = _nobody
    cancelled: Callable[[], bool] = _never
    activator: Callable[[tuple[str, ...]], None] = _forget

    @staticmethod
    def current() -> ToolContext[Any]:
        """Return the context of the tool that runs here.

        :raises NoToolContext: if no tool does.
        """
        try:
            return _current.get()
        except LookupError:
            raise NoToolContext("no tool is running here") from None

    @property
    def call_id(self) -> str:
        """The id of the call, unique in the turn."""
        return self.call.id

    @property
    def idempotency_key(self) -> str:
        """The name of this call for outside systems, ``<turn id>:<call id>``; the same for every attempt."""
        return call_key(self.turn_id, self.call.id)

    @property
    def cancel_requested(self) -> bool:
        """Whether the turn is to be cancelled; a long tool looks now and then."""
        return self.cancelled()

    async def progress(self, message: str, **data: object) -> None:
        """Show watchers how far the tool is; not stored. A plain function uses `progress_nowait`.

        :raises InvalidDefinition: if the message is not text or the data is not JSON-like.
        """
        self.progress_nowait(message, **data)

    def progress_nowait(self, message: str, **data: object) -> None:
        """Show watchers how far the tool is, from any thread.

        :raises InvalidDefinition: if the message is not text or the data is not JSON-like.
        """
        check_text("message", message, MAX_TEXT)
        check_json("data", data)
        self.report(message, cast("JsonObject", data))

    def activate(self, *names: str) -> None:
        """Remember names of tools for the rest of the turn, saved with this call's result; see `TurnContext.active_tools`.

        :raises InvalidDefinition: if a name is not text.
        """
        for name in names:
            check_text("name", name, MAX_ID, empty=False)
        self.activator(names)

    def form(self, form: FormDefinition[T], *, keep: JsonValue = None) -> T:
        """Return what was submitted for a form; ask for it before any side effect.

        :param keep: a JSON-like value of at most 64 KiB for the next attempt, which finds it as `kept`.
        :raises FormRequired: if it was not submitted yet; let it pass, the call is started again with the data.
        :raises FormDeclined: if it has ``tell_decline`` and was declined, or nobody answered it in time.
        :raises InvalidDefinition: if `keep` is not JSON-like or too large.
        """
        said = self.declined.get(form.form_key)
        if said is not None:
            raise FormDeclined(form.form_key, said.reason, expired=said.expired)
        if form.form_key not in self.forms:
            raise FormRequired(form, keep=keep)
        return form.convert(self.forms[form.form_key])

    def __repr__(self) -> str:
        return f"<ToolContext {self.idempotency_key} attempt {self.attempt}>"


def current_context(context: ToolContext[Any]) -> Entered[ToolContext[Any]]:
    """Make a context the current one, for a block."""
    return Entered(_current, context)
