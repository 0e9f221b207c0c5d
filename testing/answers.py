"""The answers that a race gives to waits, by the choice of a number."""

from __future__ import annotations

from ..actors.record import JsonObject, JsonValue
from ..actors.waits import ResumeCommand, Suspension, SuspensionType

_SAMPLES: dict[str, JsonValue] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}


def edited(arguments: JsonObject) -> JsonObject:
    """Return the arguments with one of them changed: the first number, else the first text."""
    for kind in (int, str):
        for name, value in arguments.items():
            if type(value) is kind:
                return {**arguments, name: value + 1 if isinstance(value, int) else f"{value}!"}
    return dict(arguments)


def sample(schema: JsonObject) -> JsonObject:
    """Return data for a form that most simple schemas take; what is wrong is refused, and changes nothing."""
    properties = schema.get("properties")
    data: JsonObject = {}
    for name, rule in properties.items() if isinstance(properties, dict) else ():
        known = rule if isinstance(rule, dict) else {}
        choices = known.get("enum")
        if isinstance(choices, list) and choices:
            data[name] = choices[0]
        else:
            data[name] = known.get("minimum", _SAMPLES.get(str(known.get("type")), "some text"))
    return data


def answer_to(wait: Suspension, choice: int, name: str, by: str, target: str) -> ResumeCommand:
    """Return an answer to a wait; the choice is taken among those that its kind has."""
    options: list[ResumeCommand]
    match wait.type:
        case SuspensionType.TOOL_APPROVAL:
            given = {} if wait.call is None else wait.call.arguments
            options = [
                ResumeCommand.approve_tool(target, command_id=name, by=by),
                ResumeCommand.reject_tool(target, "no", command_id=name, by=by),
                ResumeCommand.approve_tool(target, arguments=edited(given), command_id=name, by=by),
            ]
        case SuspensionType.IN_DOUBT:
            options = [
                ResumeCommand.rerun(target, command_id=name, by=by),
                ResumeCommand.give_result(target, "known", command_id=name, by=by),
                ResumeCommand.fail_call(target, command_id=name, by=by),
            ]
        case SuspensionType.RETRY:
            options = [ResumeCommand.retry(target, force=bool(choice % 2), command_id=name, by=by)]
        case _ if wait.form_key is not None:
            options = [
                ResumeCommand.submit_form(target, sample(wait.schema or {}), command_id=name, by=by),
                ResumeCommand.decline(target, command_id=name, by=by),
            ]
        case _:
            options = [ResumeCommand.user_input("go on", command_id=name, by=by)]
    return options[choice % len(options)]
