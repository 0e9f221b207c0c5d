"""The Model Context Protocol, through its official SDK (extra `mcp`)."""

from .connection import McpUnreachable
from .remote import McpServer

__all__ = ["McpServer", "McpUnreachable"]
