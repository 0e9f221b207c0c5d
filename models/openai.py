"""Chat models behind OpenAI's chat completions, at OpenAI or at any endpoint that speaks the same."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from ..actors.errors import ModelError, ModelOverloaded, ModelRefused, ModelTimeout
from ..actors.model import Delta, ModelRequest
from .clients import ClientModel, body_instead_of_stream, foreign_error, limits, no_reply, package, plain
from .openai_wire import Reader, request_body, whole_reply
from .provider_errors import body_error, status_error
from .scripted import pieces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from openai import APIError, AsyncOpenAI

    from ..actors.chat import AiMessage

_OWN_HOSTS = ("openai.com", "openai.azure.com")


class OpenAIChatModel(ClientModel["AsyncOpenAI"]):
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
        super().__init__(name, base_url, api_key, client)
        _warm_up()

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
                found = await body_instead_of_stream(chunks)
                if found is not None:
                    for delta in pieces(_whole(found[0])):
                        yield delta
                    return
                async for chunk in chunks:
                    delta = reader.read(plain(chunk))
                    if delta != _NOTHING:
                        yield delta
            if reader.finish_reason is None:
                raise ModelOverloaded("the stream ended before the reply did")
            if (delta := reader.end()) != _NOTHING:
                yield delta

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
        silence, connect = limits(request.options.timeout)
        timeout = openai.Timeout(silence, connect=connect)
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
    except ModelError:
        raise
    except Exception as error:
        raise foreign_error(error) from error


@functools.cache
def _warm_up() -> None:
    """Import here what the package itself imports when a client is opened and used, or it would block the first request.

    Nothing is sent by this client, so it looks for no certificates: that reads files, and a model may be made on a loop.
    """
    openai = package("openai", "OpenAIChatModel")
    http = openai.DefaultAsyncHttpxClient(verify=False)
    _ = openai.AsyncOpenAI(base_url="http://localhost", api_key="none", http_client=http).chat.completions


def _is_own(client: AsyncOpenAI) -> bool:
    host = client.base_url.host
    return any(host == own or host.endswith(f".{own}") for own in _OWN_HOSTS)


def _whole(body: Any) -> AiMessage:
    if isinstance(body, str):
        raise no_reply(body)
    return whole_reply(plain(body))


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
