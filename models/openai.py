"""Chat models behind OpenAI's chat completions, at OpenAI or at any endpoint that speaks the same."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ..actors.errors import InvalidDefinition, ModelError, ModelOverloaded, ModelRefused, ModelTimeout
from ..actors.model import Delta, ModelRequest
from ..actors.record import duration
from .openai_errors import body_error, status_error
from .openai_wire import Reader, request_body, whole_reply
from .scripted import pieces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from openai import APIError, AsyncOpenAI

    from ..actors.chat import AiMessage

_CONNECT = 15.0
_OWN_HOSTS = ("openai.com", "openai.azure.com")


class OpenAIChatModel:
    """A model called `name`, through the official `openai` package (the extra ``turnhold[openai]``).

    `base_url` and `api_key` default to OpenAI and to the variables that the package reads; an endpoint of your own
    needs no key. With `client` (an `openai.AsyncOpenAI`) its settings and life are yours; otherwise a client is opened
    by the first request and closed by `close`, after which a request opens a new one. The package's own retries are off
    either way: ours are stored with the turn.

    `ModelOptions.timeout` is the longest silence of the connection, `ModelOptions.extra` is merged into the request.

    :raises InvalidDefinition: if an argument is wrong, or `client` comes with `base_url` or `api_key`.
    :raises ImportError: if the `openai` package is missing.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: AsyncOpenAI | None = None,
    ) -> None:
        if not name or not isinstance(name, str):
            raise InvalidDefinition(f"a model's name is text, not {name!r}")
        if base_url is not None and not base_url.startswith(("http://", "https://")):
            raise InvalidDefinition(f"a base_url starts with http:// or https://, not {base_url!r}")
        if client is not None and (base_url is not None or api_key is not None):
            raise InvalidDefinition("a client has its own base_url and api_key: give one or the other")
        self.name = name
        self._base_url = base_url
        self._api_key = api_key
        _warm_up()
        self._given = None if client is None else client.with_options(max_retries=0)
        self._opened: AsyncOpenAI | None = None

    def __repr__(self) -> str:
        return f"OpenAIChatModel({self.name!r})"

    async def complete(self, request: ModelRequest) -> AiMessage:
        """Answer a request.

        :raises ModelError: if the provider refused, failed or timed out; the class says whether a retry makes sense.
        """
        with _border():
            return _whole(await self._create(request))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer a request piece by piece; the usage comes last, where the provider counts.

        :raises ModelError: if the provider refused, failed or timed out, or if the stream ended before the reply did.
        """
        reader = Reader()
        with _border():
            options = {"stream": True, "stream_options": {"include_usage": True}}
            async with await self._create(request, **options) as chunks:
                body = await _body_instead_of_stream(chunks)
                if body is not None:
                    for delta in pieces(_whole(body)):
                        yield delta
                    return
                async for chunk in chunks:
                    delta = reader.read(_plain(chunk))
                    if delta != _NOTHING:
                        yield delta
            if reader.finish_reason is None:
                raise ModelOverloaded("the stream ended before the reply did")
            if (delta := reader.end()) != _NOTHING:
                yield delta

    async def close(self) -> None:
        """Close the client that this model opened, never one it was given."""
        client, self._opened = self._opened, None
        if client is not None:
            await client.close()

    async def _client(self) -> AsyncOpenAI:
        """Return the client; one of our own is opened in a thread, since it reads the certificates of the machine from disk."""
        if self._given is not None:
            return self._given
        if self._opened is None:
            opened = await anyio.to_thread.run_sync(self._open)
            if self._opened is None:
                self._opened = opened
            else:  # another first request was quicker
                await opened.close()
        return self._opened

    def _open(self) -> AsyncOpenAI:
        """Open a client; an endpoint of the user's own may need no key, but the package always wants one."""
        import openai

        try:
            return openai.AsyncOpenAI(base_url=self._base_url, api_key=self._api_key, max_retries=0)
        except openai.OpenAIError:
            if self._base_url is None or self._api_key is not None:
                raise
            return openai.AsyncOpenAI(base_url=self._base_url, api_key="none", max_retries=0)

    async def _create(self, request: ModelRequest, **streaming: Any) -> Any:
        import openai

        client = await self._client()
        seconds = duration(request.options.timeout).total_seconds()
        timeout = openai.Timeout(seconds, connect=min(seconds, _CONNECT))
        create: Any = client.chat.completions.create
        return await create(**request_body(request, self.name, own_endpoint=_is_own(client)), **streaming, timeout=timeout)


_NOTHING = Delta()


@contextlib.contextmanager
def _border() -> Generator[None]:
    """Turn what the package raises into our errors; a cancellation passes through."""
    import openai

    try:
        yield
    except openai.OpenAIError as error:
        raise _ours(error) from error
    except UnicodeEncodeError as error:
        raise ModelRefused(f"the request is no Unicode text: {error.reason}") from error
    except (ValueError, RecursionError) as error:
        raise ModelOverloaded(f"the provider's answer was cut or garbled: {error}") from error


@functools.cache
def _warm_up() -> None:
    """Import here what the package itself imports when a client is opened and used, or it would block the first request."""
    try:
        openai = importlib.import_module("openai")
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        raise ImportError("OpenAIChatModel needs the openai package: pip install 'turnhold[openai]'") from error
    _ = openai.AsyncOpenAI(base_url="http://localhost", api_key="none").chat.completions


def _is_own(client: AsyncOpenAI) -> bool:
    host = client.base_url.host
    return any(host == own or host.endswith(f".{own}") for own in _OWN_HOSTS)


def _plain(body: Any) -> object:
    return body.to_dict(mode="python", warnings=False) if hasattr(body, "to_dict") else body


def _whole(body: Any) -> AiMessage:
    if not isinstance(body, str):
        return whole_reply(_plain(body))
    if not body.strip():
        raise ModelOverloaded("the provider sent an empty answer")
    raise ModelError(f"the endpoint's answer is not JSON: is the base_url right? It begins {body[:80]!r}")


async def _body_instead_of_stream(chunks: Any) -> object:
    """Return the body of an answer that is no stream, or None: some endpoints answer whole whatever one asks for."""
    response = getattr(chunks, "response", None)
    kind = "" if response is None else response.headers.get("content-type", "")
    if response is None or not ("json" in kind or "html" in kind):
        return None
    try:
        text = (await response.aread()).decode()
    except ValueError:
        raise
    except Exception as error:
        ours = ModelTimeout if "Timeout" in type(error).__name__ else ModelOverloaded
        raise ours(f"the provider broke off: {type(error).__name__} {error}") from error
    return json.loads(text) if "json" in kind else text


def _ours(error: Exception) -> ModelError:
    import openai

    match error:
        case openai.APITimeoutError():
            return ModelTimeout("the provider did not answer in time")
        case openai.APIConnectionError():
            place = f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
            return ModelOverloaded(f"the provider at {place} is out of reach, or broke off: {error.__cause__ or error}")
        case openai.APIStatusError():
            codes = tuple(code for code in (error.code, error.type) if code)
            return status_error(error.status_code, _said(error), codes=codes, headers=error.response.headers)
        case openai.APIError():
            body: Any = error.body
            return body_error(body or error.message)
        case _:
            return ModelRefused(str(error))


def _said(error: APIError) -> str:
    body: Any = error.body
    said = body.get("message") if isinstance(body, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return said if isinstance(said, str) else error.message
