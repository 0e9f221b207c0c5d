"""From a URL to connections: where the servers are, and which of them has a slot."""

from __future__ import annotations

import re
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from redis.asyncio.connection import AbstractConnection, Connection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ..actors.checks import shown
from ..actors.errors import InvalidDefinition

Address: TypeAlias = "tuple[str, int]"
SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")
NAMESPACE = "th"
MAX_NAMESPACE = 64
DATABASE = re.compile(r"(/\d*)?")
SEVERAL = re.compile(r"(rediss?\+cluster://(?:[^/?#]*@)?[^/?#,@]*)((?:,[^/?#,@]*)+)", re.IGNORECASE)
UNREADABLE = "host, port, database or an option has no proper value; characters such as / # ? in a password are written in percent"
OPTIONS = {
    *("namespace", "db", "username", "password"),
    *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"),
}


class Place:
    """A parsed URL. `seeds` are the addresses it names; `cluster` tells whether slots are spread over several masters."""

    def __init__(self, url: str) -> None:
        parts, others = _split(url)
        options = parse_qs(parts.query, keep_blank_values=True)
        if unknown := sorted(set(options) - OPTIONS):
            raise InvalidDefinition(f"unknown option {shown(unknown[0])} in the Redis URL; known are {', '.join(sorted(OPTIONS))}")
        self.namespace = _namespace(options.pop("namespace", [NAMESPACE])[0])
        self.cluster = parts.scheme.endswith("+cluster")
        scheme = parts.scheme.removesuffix("+cluster")
        user, at, first = parts.netloc.rpartition("@")
        plain = urlunsplit((scheme, user + at + first, parts.path, urlencode(options, doseq=True), ""))
        try:
            settings = dict[str, Any](cast("dict[str, Any]", parse_url(plain)))
            self.seeds = [(settings.pop("host", "localhost"), settings.pop("port", 6379))] + [_address(host) for host in others]
        except (ValueError, TypeError):  # what they say may be part of a password
            raise InvalidDefinition(f"the Redis URL cannot be read: {UNREADABLE}") from None
        if (scheme != "unix" and not DATABASE.fullmatch(parts.path)) or not all(host for host, _ in self.seeds):
            raise InvalidDefinition(f"the Redis URL cannot be read: {UNREADABLE}")
        if self.cluster and settings.get("db", 0):
            raise InvalidDefinition("a Redis Cluster has only database 0; leave the number out of the URL")
        if scheme == "unix" and not settings.get("path"):
            raise InvalidDefinition("a unix:// URL names a socket: unix:///var/run/redis.sock")
        self._kind: type[AbstractConnection] = settings.pop("connection_class", Connection)
        self._settings = settings
        self.shown = urlunsplit((parts.scheme, ",".join([first, *others]), parts.path, "", ""))  # no password
        try:
            self.connection(self.seeds[0], timeout=1)  # no I/O; what it does not take would end every task that connects
        except (RedisError, ValueError, TypeError) as fault:
            raise InvalidDefinition(f"the Redis URL has an option that a connection of its kind does not take: {fault}") from None

    def connection(self, address: Address, *, timeout: float) -> AbstractConnection:
        """Return a connection that is not open yet; `timeout` in seconds bounds connecting, not what is read later."""
        settings = dict(self._settings)
        if self._kind is not UnixDomainSocketConnection:
            settings |= {"host": address[0], "port": address[1], "socket_keepalive": True}
        return self._kind(
            **settings,
            socket_connect_timeout=timeout,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            client_name="turnhold",
            driver_info=None,  # else its version is read from disk for every connection
        )


def _split(url: str) -> tuple[Any, list[str]]:
    """Return the parts of a URL with the first server only, and the others: newer Pythons take no list with ``[::1]`` in it."""
    others: list[str] = []
    if found := SEVERAL.match(url):
        others, url = found[2].split(",")[1:], found[1] + url[found.end() :]
    try:
        parts = urlsplit(url)
        if parts.scheme in SCHEMES and not parts.fragment:
            return parts, others
    except ValueError:
        pass
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    raise InvalidDefinition(f"not the URL of a Redis: it begins with one of {known}")


def _namespace(text: str) -> str:
    if not text.isascii() or not text.isprintable() or not 0 < len(text) <= MAX_NAMESPACE or set("{} ") & set(text):
        raise InvalidDefinition(
            f"namespace must be 1 to {MAX_NAMESPACE} printable ASCII characters without braces and blanks, not {shown(text)}"
        )
    return text


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return (host or text).strip("[]"), int(port) if host else 6379


def slots_of(answer: list[Any], asked: Address) -> dict[int, Address]:
    """Return which master has which slot, from the answer to CLUSTER SLOTS; a node without a name is the one `asked`."""
    found: dict[int, Address] = {}
    for start, end, master, *_ in answer:
        host = master[0].decode() if master[0] else ""
        address = (host or asked[0], int(master[1]) or asked[1])
        found.update(dict.fromkeys(range(start, end + 1), address))
    return found
