"""Whose client it is, when it is opened and closed, and what both model classes say of wrong definitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold.actors.errors import InvalidDefinition, ModelOverloaded
from turnhold.models import anthropic as anthropic_module
from turnhold.models import openai as openai_module

from .dialects import DIALECTS, MESSAGE, REQUEST, Dialect
from .provider import Provider, whole

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
MODULES = {"openai": openai_module, "anthropic": anthropic_module}


async def test_a_given_client_keeps_its_settings_and_is_not_closed(dialect: Dialect) -> None:
    """Its retries are off for us and on for its owner."""
    answers = whole(dialect.error("x"), status=500), dialect.whole()
    async with (
        Provider(*answers).serving() as provider,
        dialect.client(provider.url, max_retries=5, default_headers={"x-mine": "yes"}) as client,
    ):
        model = dialect.model("m", client=client)
        with pytest.raises(ModelOverloaded):
            await model.complete(REQUEST)
        await model.close()

        assert not client.is_closed()
        assert await model.complete(REQUEST) == MESSAGE
    assert "x-mine: yes" in provider.heads[0]
    assert client.max_retries == 5


async def test_its_own_client_is_closed_and_opened_again(dialect: Dialect) -> None:
    """`close` may be called before, between and after requests."""
    async with Provider(dialect.whole()).serving() as provider:
        model = dialect.model("m", base_url=provider.url, api_key="secret")
        await model.close()
        await model.complete(REQUEST)
        first = model._opened
        await model.close()
        await model.close()
        assert first is not None
        assert first.max_retries == 0
        assert first.is_closed()
        assert await model.complete(REQUEST) == MESSAGE
        assert model._opened is not first
        await model.close()
    assert "secret" in provider.heads[0]


async def test_opening_a_client_never_blocks_the_loop(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for the machine's certificates on disk, wherever that says they are; two first requests share it."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    MODULES[dialect.name]._warm_up.cache_clear()  # the first model of a process, made on a loop
    async with Provider(dialect.whole(), dialect.whole()).serving() as provider:
        model = dialect.model("m", base_url=provider.url, api_key="secret")
        assert await asyncio.gather(model.complete(REQUEST), model.complete(REQUEST)) == [MESSAGE, MESSAGE]
        await model.close()


async def test_an_endpoint_of_ones_own_needs_no_key(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages want one; the endpoint gets a placeholder."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    async with Provider(dialect.whole()).serving() as provider:
        model = dialect.model("m", base_url=provider.url)
        assert await model.complete(REQUEST) == MESSAGE
        assert model._opened is not None
        assert model._opened.max_retries == 0
        await model.close()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("", {}),
        (None, {}),
        ("m", {"base_url": "localhost:8000"}),
        ("m", {"base_url": "http://x", "client": object()}),
        ("m", {"api_key": "x", "client": object()}),
    ],
)
def test_wrong_definitions(dialect: Dialect, name: Any, settings: dict[str, Any]) -> None:
    """They are refused when they are made."""
    with pytest.raises(InvalidDefinition):
        dialect.model(name, **settings)


def test_without_the_package_the_error_names_the_extra(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, and what to install."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=dialect.package)

    monkeypatch.setattr("importlib.import_module", missing)
    MODULES[dialect.name]._warm_up.cache_clear()
    with pytest.raises(ImportError, match=rf"turnhold\[{dialect.package}\]"):
        dialect.model("m")
