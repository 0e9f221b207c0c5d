"""What a definition is, in eight bytes: by them a turn notices that its agent has changed under the same version."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from .agent import Agent
    from .forms import FormDefinition
    from .tools import Tool

LENGTH = 8


def definition_digest(agent: Agent[Any]) -> bytes:
    """Return the digest of what of an agent can be compared.

    That is all that is data: texts, schemas, options, rules, the names of tools, of the models' classes and of the functions that
    decide. Code is not looked into: a tool that does something else under the same name and schema is the same.
    """
    parts: tuple[object, ...] = (
        agent.instructions,
        [_tool(tool) for tool in sorted(agent.tools, key=lambda each: each.name)],
        _named(agent.approval),
        agent.policy,
        agent.planning,
        agent.options,
        agent.window,
        _named(agent.compressor),
        agent.output.schema,
        [part for model in (agent.model, agent.multimodal_model) if model is not None for part in _model(model)],
    )
    if agent.middleware or agent.tool_groups:
        groups = [[each.name, _named(each.when), [_tool(tool) for tool in each.tools]] for each in agent.tool_groups]
        known = {tool.name for tools in (agent.tools, *(each.tools for each in agent.tool_groups)) for tool in tools}
        brought = [_tool(tool) for tool in sorted(agent.executable, key=lambda each: each.name) if tool.name not in known]
        parts += ([_named(each) for each in agent.middleware], groups, *([brought] if brought else []))
    return hashlib.sha256(msgspec.json.encode(parts, enc_hook=_other, order="deterministic")).digest()[:LENGTH]


def _model(model: object) -> list[str | None]:
    return [type(model).__qualname__, _text(getattr(model, "name", None))]


def _tool(tool: Tool[..., Any]) -> list[object]:
    asks = tool.approval if isinstance(tool.approval, bool | msgspec.Struct) else _named(tool.approval)
    return [
        *(tool.name, tool.description, tool.parameters, asks, tool.effect, tool.timeout, tool.sequential, tool.cancellable),
        *(tool.sensitive, tool.assignee, [_form(form) for form in tool.forms]),
        None if tool.agent is None else tool.agent.key,
    ]


def _form(form: FormDefinition[Any]) -> list[object]:
    told: list[object] = [form.form_key, form.description, form.json_schema]
    more = [form.assignee, form.expires_in, form.on_expiry, form.default, form.tell_decline]
    return [*told, *more] if any(more) else told


def _named(value: object) -> object:
    """Return the name of a function, or of the class of an object; never a text that hangs on an address."""
    return None if value is None else getattr(value, "__qualname__", type(value).__qualname__)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _other(value: object) -> object:
    return type(value).__qualname__
