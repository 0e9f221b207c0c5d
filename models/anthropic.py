"""Chat models behind Anthropic's messages, at Anthropic or at any endpoint that speaks the same."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, cast

from ..actors.errors import ModelError, ModelOverloaded, ModelRefused, ModelTimeout
from ..actors.model import Delta, ModelRequest
from .anthropic_wire import Reader, request_body, whole_reply
from .clients import ClientModel, body_instead_of_stream, foreign_error, limits, no_reply, package, plain
from .provider_errors import body_error, status_error
from .scripted import pieces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from anthropic import AsyncAnthropic

    from ..actors.chat import AiMessage

_OWN_HOST = "anthropic.com"
_NOTHING = Delta()


class AnthropicChatModel(ClientModel["AsyncAnthropic"]):
    """A model called `name`, through the official `anthropic` package (the extra ``turnhold[anthropic]``).

    `base_url` (without ``/v1``) and `api_key` default to Anthropic and to the variables that the package reads; an endpoint of
    your own needs no key. With `client` (an `anthropic.AsyncAnthropic`) its settings and life are yours; otherwise a client is
    opened by the first request and closed by `close`, after which a request opens a new one. The package's own retries are off
    either way: ours are stored with the turn.

    `ModelOptions.timeout` is the longest silence of the connection, `ModelOptions.extra` is merged into the request.
    `max_output_tokens` is 8192 where it is not set. Tokens read from or written to the provider's cache count as input.

    :raises InvalidDefinition: if an argument is wrong, or `client` comes with `base_url` or `api_key`.
    :raises ImportError: if the `anthropic` package is missing.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: AsyncAnthropic | None = None,
    ) -> None:
        super().__init__(name, base_url, api_key, client)
        _warm_up()

    async def complete(self, request: ModelRequest) -> AiMessage:
        """Answer a request.

        :raises ModelError: if the provider refused, failed or timed out; the class says whether a retry makes sense.
        """
        with _border():
            return _whole(await self._create(request), self.name)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer a request piece by piece; what was counted comes with the first piece and, complete, at the end.

        :raises ModelError: if the provider refused, failed or timed out, or if the stream ended before the reply did.
        """
        reader = Reader(self.name)
        with _border():
            async with await self._create(request, stream=True) as events:
                found = await body_instead_of_stream(events)
                if found is not None:
                    for delta in pieces(_whole(found[0], self.name)):
                        yield delta
                    return
                async for event in events:
                    delta = reader.read(plain(event))
                    if delta != _NOTHING:
                        yield delta
            if reader.stop_reason is None:
                raise ModelOverloaded("the stream ended before the reply did")
            if (delta := reader.end()) != _NOTHING:
                yield delta

    def _open(self) -> AsyncAnthropic:
        """Open a client; an endpoint of the user's own may need no key, but the package always wants one."""
        import anthropic

        client = anthropic.AsyncAnthropic(base_url=self._base_url, api_key=self._api_key, max_retries=0)
        if self._base_url is None or client.api_key or client.auth_token or getattr(client, "credentials", None):
            return client
        return client.with_options(api_key="none")

    async def _create(self, request: ModelRequest, **streaming: Any) -> Any:
        import anthropic

        client = await self._client()
        silence, connect = limits(request.options.timeout)
        timeout = anthropic.Timeout(silence, connect=connect)
        create: Any = client.messages.create
        return await create(**request_body(request, self.name, own_endpoint=_is_own(client)), **streaming, timeout=timeout)


@contextlib.contextmanager
def _border() -> Generator[None]:
    """Turn what the package raises into our errors; a cancellation passes through."""
    import anthropic

    try:
        yield
    except anthropic.AnthropicError as error:
        raise _ours(error) from error
    except ModelError:
        raise
    except TypeError as error:  # the package's way of saying that it has no key
        raise (ModelRefused(str(error)) if "authentication" in str(error) else foreign_error(error)) from error
    except Exception as error:
        raise foreign_error(error) from error


@functools.cache
def _warm_up() -> None:
    """Import here what the package itself imports when a client is opened and used, or it would block the first request.

    Nothing is sent by this client, so it looks for no certificates: that reads files, and a model may be made on a loop.
    """
    anthropic = package("anthropic", "AnthropicChatModel")
    http = anthropic.DefaultAsyncHttpxClient(verify=False)
    _ = anthropic.AsyncAnthropic(base_url="http://localhost", api_key="none", http_client=http).messages


def _is_own(client: AsyncAnthropic) -> bool:
    host = client.base_url.host
    return host == _OWN_HOST or host.endswith(f".{_OWN_HOST}")


def _whole(body: Any, model: str) -> AiMessage:
    if isinstance(body, str):
        raise no_reply(body)
    return whole_reply(plain(body), model)


def _ours(error: Exception) -> ModelError:
    import anthropic

    match error:
        case anthropic.APITimeoutError():
            return ModelTimeout("the provider did not answer in time")
        case anthropic.APIConnectionError():
            place = f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
            return ModelOverloaded(f"the provider at {place} is out of reach, or broke off: {error.__cause__ or error}")
        case anthropic.APIStatusError():
            body = _error_of(error.body)
            if error.status_code < 400:  # within a stream
                return body_error(body or error.message)
            said, type_ = body.get("message"), body.get("type")
            codes = (type_,) if isinstance(type_, str) else ()
            text = said if isinstance(said, str) else error.message
            return status_error(error.status_code, text, codes=codes, headers=error.response.headers)
        case anthropic.APIError():
            return body_error(error.message)
        case _:
            return ModelRefused(str(error))


def _error_of(body: object) -> dict[str, Any]:
    """Return what an error body says: the provider puts it one level down."""
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    inner = fields.get("error", fields)
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {"message": str(inner)}
