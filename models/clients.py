"""What the model classes on official packages share: the life of the client, and failures that no package names."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import anyio.to_thread

from ..actors.errors import InvalidDefinition, ModelError, ModelOverloaded, ModelRefused, ModelTimeout
from ..actors.record import Seconds, duration

C = TypeVar("C")

CONNECT = 15.0
"""Seconds that a connection may take, unless the request's own limit is shorter."""

_TRANSPORT = {"anyio", "h11", "h2", "httpcore", "httpcore2", "httpx", "httpx2", "ssl"}


class ClientModel(ABC, Generic[C]):
    """A model that is asked through a package's client: the user's, or one of its own.

    One of its own is opened by the first request and closed by `close`; the next request opens another.

    :raises InvalidDefinition: if an argument is wrong, or `client` comes with `base_url` or `api_key`.
    """

    def __init__(self, name: str, base_url: str | None, api_key: str | None, client: C | None) -> None:
        if not name or not isinstance(name, str):
            raise InvalidDefinition(f"a model's name is text, not {name!r}")
        if base_url is not None and not base_url.startswith(("http://", "https://")):
            raise InvalidDefinition(f"a base_url starts with http:// or https://, not {base_url!r}")
        if client is not None and (base_url is not None or api_key is not None):
            raise InvalidDefinition("a client has its own base_url and api_key: give one or the other")
        self.name = name
        self._base_url = base_url
        self._api_key = api_key
        given: Any = client
        self._given: C | None = None if given is None else given.with_options(max_retries=0)
        self._opened: C | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def close(self) -> None:
        """Close the client that this model opened, never one it was given."""
        client, self._opened = self._opened, None
        await _close(client)

    async def _client(self) -> C:
        """Return the client; one of our own is opened in a thread, since it reads the certificates of the machine from disk."""
        if self._given is not None:
            return self._given
        if self._opened is None:
            opened = await anyio.to_thread.run_sync(self._open)
            if self._opened is None:
                self._opened = opened
            else:  # another first request was quicker
                await _close(opened)
        return self._opened

    @abstractmethod
    def _open(self) -> C:
        """Open a client, with the package's own retries off."""


async def _close(client: Any) -> None:
    if client is not None:
        await client.close()


def package(name: str, user: str) -> Any:
    """Return a package of an extra. :raises ImportError: naming the extra, if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(f"{user} needs the {name} package: pip install 'turnhold[{name}]'") from error


def limits(timeout: Seconds) -> tuple[float, float]:
    """Return how long a connection may be silent, and how long it may take to come about, in seconds."""
    seconds = duration(timeout).total_seconds()
    return seconds, min(seconds, CONNECT)


def plain(body: Any) -> object:
    """Return what a package made of a body as JSON-like values."""
    return body.to_dict(mode="python", warnings=False) if hasattr(body, "to_dict") else body


def no_reply(text: str) -> ModelError:
    """Return what is wrong with a text that came in place of JSON."""
    if not text.strip():
        return ModelOverloaded("the provider sent an empty answer")
    return ModelError(f"the endpoint's answer is not JSON: is the base_url right? It begins {text[:80]!r}")


async def body_instead_of_stream(chunks: Any) -> tuple[object] | None:
    """Return the body of an answer that is no stream, or None if it is one: some endpoints answer whole whatever one asks for."""
    response = getattr(chunks, "response", None)
    kind = "" if response is None else response.headers.get("content-type", "")
    if response is None or not ("json" in kind or "html" in kind):
        return None
    text = (await response.aread()).decode()
    return (json.loads(text) if "json" in kind else text,)


def foreign_error(error: Exception) -> ModelError:
    """Return what an exception means that a package let out and does not call its own."""
    match error:
        case UnicodeEncodeError():
            return ModelRefused(f"the request is no Unicode text: {error.reason}")
        case ValueError() | RecursionError():
            return ModelOverloaded(f"the provider's answer was cut or garbled: {error}")
        case _ if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _TRANSPORT:
            ours = ModelTimeout if "Timeout" in type(error).__name__ else ModelOverloaded
            return ours(f"the provider broke off: {type(error).__name__} {error}")
        case _:
            return ModelError(f"the provider's answer could not be read: {type(error).__name__} {error}")
