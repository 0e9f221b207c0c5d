"""What a client of the Model Context Protocol may do with turns: the tools, without the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, cast

from ...actors.checks import MAX_ID, check_text
from ...actors.errors import AgentNotFound, InvalidDefinition, TurnholdError, TurnNotFound
from ...actors.ids import root_of
from ...actors.record import JsonObject, JsonValue, Record
from ...actors.tools import Tool, tool
from ...actors.view import TurnView
from ...actors.waits import ResumeCommand, Suspension, SuspensionType
from ...runtime.ref import TurnRef
from ...runtime.runtime import Runtime
from .content import short

LONGEST: Final = 60.0
MAX_PAGES: Final = 50

Verb = Literal["approve", "reject", "say", "submit", "decline", "retry", "rerun", "result", "fail"]
Kind = Literal["USER_INPUT", "TOOL_APPROVAL", "RETRY", "IN_DOUBT"]


class Desk:
    """Tools on a runtime, for one person, or for nobody who answers.

    :param by: under whose name answers are stored; without it the tool `answer` does not exist.
    :param agents: the agents that may be started, and whose turns are seen, with all below them; by default all.
    :param tenant: the only tenant whose turns are seen; what is started belongs to it, and so do conversations and keys.
    :raises InvalidDefinition: if an argument is wrong.
    """

    def __init__(
        self, runtime: Runtime, *, by: str | None = None, agents: Iterable[str] | None = None, tenant: str | None = None
    ) -> None:
        check_text("by", by, MAX_ID, optional=True, empty=False)
        check_text("tenant", tenant, MAX_ID, optional=True, empty=False)
        if isinstance(agents, str):
            raise InvalidDefinition("agents is a list of ids")
        self._runtime, self._by, self._tenant = runtime, by, tenant
        self._agents = None if agents is None else frozenset(agents)
        functions: list[Callable[..., Any]] = [self.start_turn, self.turn, self.inbox, self.cancel]
        tools = [tool(each) for each in (functions if by is None else [*functions, self.answer])]
        self.tools: dict[str, Tool[..., Any]] = {each.name: each for each in tools}

    async def call(self, name: str, arguments: JsonObject) -> tuple[JsonObject, bool]:
        """Call a tool; return what it gives, and whether that is an error: its class, its text and its attributes."""
        found = self.tools.get(name)
        try:
            if found is None:
                raise InvalidDefinition(f"there is no tool {name[:100]!r}")
            return await found(**found.bind(arguments)), False
        except (TurnholdError, TimeoutError) as error:
            data = {key: _plain(value) for key, value in vars(error).items() if not key.startswith("_")}
            return {"error": type(error).__name__, "message": short(str(error)), **data}, True

    async def start_turn(
        self,
        agent: str,
        input: str,
        conversation: str | None = None,
        idempotency_key: str | None = None,
        wait_seconds: float = 0,
    ) -> JsonObject:
        """Start a turn of an agent and return it. With an idempotency_key a repeated start finds the first one's turn. With wait_seconds (at most 60) this waits for the turn to end, or to need somebody."""  # noqa: E501
        if not self._allows(agent):
            raise AgentNotFound(agent)
        turn = await self._runtime.start(
            agent,
            input,
            conversation=self._own(conversation),
            tenant=self._tenant,
            idempotency_key=self._own(idempotency_key),
        )
        return (await self._settled(turn, wait_seconds)).to_dict()

    async def turn(self, turn_id: str, wait_seconds: float = 0) -> JsonObject:
        """Return a turn: its status, its open waits, its final output. With wait_seconds (at most 60) this waits for the turn to end, or to need somebody."""  # noqa: E501
        return (await self._settled(await self._known(turn_id), wait_seconds)).to_dict()

    async def inbox(
        self,
        assignee: str | None = None,
        agent: str | None = None,
        kind: Kind | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> JsonObject:
        """List the open waits that people answer, oldest first; next, if any, is the cursor for after."""
        shown: list[Suspension] = []
        for _ in range(MAX_PAGES):
            page = await self._runtime.inbox(
                assignee=assignee,
                tenant=self._tenant,
                agent=agent,
                type=None if kind is None else SuspensionType(kind),
                limit=limit,
                after=after,
            )
            shown = [wait for wait in page.items if await self._sees(wait)]
            after = page.next
            if shown or after is None:
                break
        return {"items": [wait.to_dict() for wait in shown], "next": after}

    async def answer(
        self,
        turn_id: str,
        verb: Verb,
        wait: str | None = None,
        arguments: dict[str, Any] | None = None,
        data: Any = None,
        text: str = "",
        force: bool = False,  # noqa: FBT001, FBT002
        command_id: str | None = None,
    ) -> JsonObject:
        """Answer an open wait of a turn and return the receipt. approve (arguments replace the model's) or reject (text: why) a call; say text to a plain question; submit data to a form, or decline it; retry what waits for a retry; of a call in doubt: rerun it, give its result as data, or fail it. With a command_id a repeated answer gets the receipt of the first."""  # noqa: E501
        turn = await self._known(turn_id)
        more: dict[str, Any] = {"by": self._by, "command_id": command_id}
        match verb:
            case "approve":
                command = ResumeCommand.approve_tool(wait, arguments=arguments, **more)
            case "reject":
                command = ResumeCommand.reject_tool(wait, text, **more)
            case "say":
                command = ResumeCommand.user_input(text, wait=wait, **more)
            case "submit":
                command = ResumeCommand.submit_form(wait, data, **more)
            case "decline":
                command = ResumeCommand.decline(wait, text, **more)
            case "retry":
                command = ResumeCommand.retry(wait, force=force, **more)
            case "rerun":
                command = ResumeCommand.rerun(wait, **more)
            case "result":
                command = ResumeCommand.give_result(wait, data, **more)
            case "fail":
                command = ResumeCommand.fail_call(wait, text, **more)
        return (await turn.submit(command)).to_dict()

    async def cancel(self, turn_id: str, reason: str | None = None) -> JsonObject:
        """Cancel a turn and its children, and return it; a turn that has ended stays as it is."""
        turn = await self._known(turn_id)
        try:
            view = await turn.cancel(reason, LONGEST)
        except TimeoutError:
            view = await turn.view()  # the cancel stands, a tool has still to end
        return view.to_dict()

    async def _known(self, turn_id: str) -> TurnRef[Any]:
        """Return a turn that this desk may see: what its root is decides. :raises TurnNotFound: if there is none."""
        if self._tenant is not None or self._agents is not None:
            try:
                root = await self._runtime.turn(root_of(turn_id)).view()
            except TurnNotFound:
                raise TurnNotFound(turn_id) from None
            if self._tenant not in (None, root.tenant) or not self._allows(root.agent_id):
                raise TurnNotFound(turn_id)
        return self._runtime.turn(turn_id)

    async def _sees(self, wait: Suspension) -> bool:
        """Tell whether a wait is of a turn that this desk may see."""
        if self._agents is None or (wait.turn_id == wait.root_turn_id and wait.agent_id in self._agents):
            return True
        try:
            await self._known(wait.turn_id)
        except TurnNotFound:
            return False
        return True

    def _allows(self, agent: str) -> bool:
        return self._agents is None or agent in self._agents

    def _own(self, name: str | None) -> str | None:
        """Return a conversation, or a key, as one of the desk's tenant; without that anybody's could be named.

        No other tenant gives the same: what its name has before the first "/" is another text.
        """
        if not name or self._tenant is None:
            return name
        prefix = self._tenant.replace("%", "%25").replace("/", "%2F") + "/"
        return name if name.startswith(prefix) else prefix + name

    async def _settled(self, turn: TurnRef[Any], seconds: float) -> TurnView[Any]:
        if not 0 <= seconds <= LONGEST:
            raise InvalidDefinition(f"wait_seconds must be from 0 to {LONGEST:g}")
        if seconds:
            try:
                return await turn.settle(seconds)
            except TimeoutError:
                pass
        return await turn.view()


def _plain(value: object) -> JsonValue:
    """Return an attribute of an error as JSON has it."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("Iterable[object]", value)]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
