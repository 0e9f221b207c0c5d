"""The SDK, imported where it is first used, and what its errors mean to a call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, cast

from ...actors.errors import InvalidDefinition

if TYPE_CHECKING:
    import httpx2
    from mcp import MCPError

HINT: Final = "this needs the mcp package: pip install 'turnhold[mcp]'"
UNREACHED, BROKEN = "turnhold_unreached", "turnhold_broken"
"""Marks in the data of errors that we make ourselves of what happened to an HTTP request."""
_CLOSED, _INVALID_REQUEST, _HEADER, _INVALID_PARAMS, _URLS = -32000, -32600, -32020, -32602, -32042


@functools.cache
def warm_up() -> None:
    """Import the SDK, which takes a second, before a loop has to wait for it.

    :raises InvalidDefinition: if it is not installed, or is older than its second version.
    """
    try:
        import mcp

        _ = mcp.Client
    except (ImportError, AttributeError) as error:
        raise InvalidDefinition(f"{HINT} ({error})") from None


def _mark(error: MCPError) -> object:
    data: Any = error.data
    return cast("dict[str, object]", data).get("reason") if isinstance(data, dict) else None


def unreached(error: MCPError) -> bool:
    """Tell whether the server has certainly not seen the request, or has refused it before looking at it."""
    gone = error.code == _INVALID_REQUEST and error.message == "Session terminated"
    return gone or error.code == _HEADER or _mark(error) == UNREACHED


def broken(error: MCPError) -> bool:
    """Tell whether the connection was lost while the answer was awaited."""
    return error.code == _CLOSED and (_mark(error) == BROKEN or error.data is None)


def state_refused(error: MCPError) -> bool:
    """Tell whether the server does not take back the state that it gave."""
    return error.code == _INVALID_PARAMS and _mark(error) == "invalid_request_state"


def wants_urls(error: MCPError) -> bool:
    """Tell whether the server wants somebody to open a page first (2025-11-25)."""
    return error.code == _URLS


def http_client(headers: dict[str, str], auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    """Return an HTTP client in which a request that fails becomes that request's error, not the end of all others.

    The SDK lets one failed request end the whole transport, and with it requests whose outcome then nobody knows. So a failed
    POST is answered here, with an error that says whether the server can have seen it.
    """
    import httpx2

    class Guarded(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            try:
                return await super().handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
                if request.method != "POST":
                    raise
                return _failed(UNREACHED, error)
            except httpx2.TransportError as error:
                if request.method != "POST":
                    raise
                return _failed(BROKEN, error)

    def _failed(reason: str, error: Exception) -> httpx2.Response:
        told = f"{type(error).__name__}: {error}"[:500]
        body = {"jsonrpc": "2.0", "id": 0, "error": {"code": _CLOSED, "message": told, "data": {"reason": reason}}}
        return httpx2.Response(503, json=body)

    return httpx2.AsyncClient(headers=headers, auth=auth, timeout=httpx2.Timeout(30, read=None), transport=Guarded())
