"""The Model Context Protocol, through its official SDK (extra `mcp`)."""

from .connection import McpUnreachable
from .remote import McpServer
from .serve import mcp_server, serve_mcp

__all__ = ["McpServer", "McpUnreachable", "mcp_server", "serve_mcp"]
