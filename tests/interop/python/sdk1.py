"""What is peculiar to the Python SDK, 1.x line."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

__all__ = ["McpError", "httpx", "types"]


@asynccontextmanager
async def session_over(
    url: str, http_client: httpx.AsyncClient, terminate_on_close: bool, **callbacks: Any
) -> AsyncIterator[ClientSession]:
    """A session that has sent no message yet."""
    transport = streamable_http_client(url, http_client=http_client, terminate_on_close=terminate_on_close)
    async with transport as (read, write, _session_id), ClientSession(read, write, **callbacks) as session:
        yield session


@asynccontextmanager
async def connected(
    era: str, url: str, http_client: httpx.AsyncClient, terminate_on_close: bool, **callbacks: Any
) -> AsyncIterator[tuple[ClientSession, types.InitializeResult]]:
    """A session that has found its era."""
    if era == "old":
        # The transport wants to make its own HTTP client; what is to be watched is watched below it.
        def watched(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx.AsyncClient:
            return httpx.AsyncClient(transport=http_client._transport, headers=headers, timeout=timeout, auth=auth)

        transport = sse_client(url, httpx_client_factory=watched)
        async with transport as (read, write), ClientSession(read, write, **callbacks) as session:
            yield session, await session.initialize()
        return
    if era != "legacy":
        raise ValueError(f"this SDK does not know the {era} way to connect")
    async with session_over(url, http_client, terminate_on_close, **callbacks) as session:
        yield session, await session.initialize()


@asynccontextmanager
async def peer(
    era: str, url: str, http_client: httpx.AsyncClient, log_level: str, **callbacks: Any
) -> AsyncIterator[tuple[ClientSession, str]]:
    """A connected client and the revision it speaks. The log level is left to a request."""
    async with connected(era, url, http_client, True, **callbacks) as (session, initialized):
        yield session, str(initialized.protocolVersion)


@asynccontextmanager
async def stdio_peer(
    era: str, command: str, args: list[str], log_level: str, **callbacks: Any
) -> AsyncIterator[tuple[ClientSession, str]]:
    """The same, of a program that it starts itself."""
    if era != "legacy":
        raise ValueError(f"this SDK does not know the {era} way to connect")
    transport = stdio_client(StdioServerParameters(command=command, args=args))
    async with transport as (read, write), ClientSession(read, write, **callbacks) as session:
        yield session, str((await session.initialize()).protocolVersion)


def notification_in(message: Any) -> Any:
    """The notification in what a message handler is given, if it is one."""
    return message.root if isinstance(message, types.ServerNotification) else None


def call_request(name: str, arguments: dict[str, Any]) -> Any:
    params = types.CallToolRequestParams(name=name, arguments=arguments)
    return types.ClientRequest(types.CallToolRequest(params=params))


def next_request_id(session: ClientSession) -> int:
    """The SDK numbers its requests one after the other."""
    return session._request_id


async def tell_cancelled(session: ClientSession, request_id: int) -> None:
    """The SDK sends nothing when a caller goes away, so the client sends the notification itself."""
    params = types.CancelledNotificationParams(requestId=request_id, reason="enough")
    await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
