"""What is peculiar to the Python SDK, 2.x line."""

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import mcp_types as types
from mcp import Client, ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.exceptions import MCPError as McpError

__all__ = ["McpError", "httpx", "types"]

# Sampling, roots and logging are exactly what is tested here.
warnings.simplefilter("ignore", MCPDeprecationWarning)


@asynccontextmanager
async def session_over(
    url: str, http_client: httpx.AsyncClient, terminate_on_close: bool, **callbacks: Any
) -> AsyncIterator[ClientSession]:
    """A session that has sent no message yet."""
    transport = streamable_http_client(url, http_client=http_client, terminate_on_close=terminate_on_close)
    async with transport as (read, write), ClientSession(read, write, **callbacks) as session:
        yield session


@asynccontextmanager
async def connected(
    era: str, url: str, http_client: httpx.AsyncClient, terminate_on_close: bool, **callbacks: Any
) -> AsyncIterator[tuple[ClientSession, types.InitializeResult | None]]:
    """A session that has found its era."""
    transport = streamable_http_client(url, http_client=http_client, terminate_on_close=terminate_on_close)
    async with Client(transport, mode=era, **callbacks) as client:
        yield client.session, client.session.initialize_result


@asynccontextmanager
async def peer(
    era: str, url: str, http_client: httpx.AsyncClient, log_level: str, **callbacks: Any
) -> AsyncIterator[tuple[Client, str]]:
    """A connected client and the revision it speaks. It answers in every era, which a session alone does not."""
    transport = streamable_http_client(url, http_client=http_client)
    async with Client(transport, mode=era, log_level=log_level, **callbacks) as client:
        yield client, client.protocol_version


@asynccontextmanager
async def stdio_peer(
    era: str, command: str, args: list[str], log_level: str, **callbacks: Any
) -> AsyncIterator[tuple[Client, str]]:
    """The same, of a program that it starts itself."""
    transport = stdio_client(StdioServerParameters(command=command, args=args))
    async with Client(transport, mode=era, log_level=log_level, **callbacks) as client:
        yield client, client.protocol_version


def notification_in(message: Any) -> Any:
    """The notification in what a message handler is given, if it is one."""
    return None if isinstance(message, Exception) else message


def call_request(name: str, arguments: dict[str, Any]) -> Any:
    return types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))


def next_request_id(_session: ClientSession) -> None:
    """Not needed: see `tell_cancelled`."""


async def tell_cancelled(_session: ClientSession, _request_id: None) -> None:
    """The SDK itself tells the server when a caller goes away."""
