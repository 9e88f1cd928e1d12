"""One way to call tools for every Python client: the SDK in all its lines, and frameworks that stand on it.

A caller takes a tool's name, its arguments and whether it wants progress, and returns the text of the result. What a
client raises is left as it is. Imports are late, because each client lives in an environment of its own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

Caller = Callable[[str, dict[str, Any], bool], Awaitable[str]]

# Longer than anything that happens here: no client's own limit may end a call before Rialto's does.
PATIENCE_SECONDS = 60


async def ignore_progress(*_arguments: Any) -> None:
    """A client that takes progress sends a token, without which the server reports none."""


def text_of(content: list[Any]) -> str:
    return "\n".join(part["text"] if isinstance(part, dict) else part.text for part in content)


def caller_over(session: Any) -> Caller:
    async def call(name: str, arguments: dict[str, Any], progress: bool) -> str:
        options = {"progress_callback": ignore_progress} if progress else {}
        result = await session.call_tool(name, arguments, **options)
        return text_of(result.content)

    return call


@asynccontextmanager
async def sdk1(url: str) -> AsyncIterator[Caller]:
    from mcp import ClientSession
    from mcp.client import streamable_http

    # The older name is the only one that all versions have.
    async with (
        streamable_http.streamablehttp_client(url) as (read, write, _session_id),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield caller_over(session)


@asynccontextmanager
async def sdk2(url: str, mode: str) -> AsyncIterator[Caller]:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with Client(streamable_http_client(url), mode=mode) as client:
        yield caller_over(client)


@asynccontextmanager
async def fastmcp(url: str) -> AsyncIterator[Caller]:
    from fastmcp import Client

    async with Client(url) as client:

        async def call(name: str, arguments: dict[str, Any], progress: bool) -> str:
            handler = ignore_progress if progress else None
            result = await client.call_tool(name, arguments, progress_handler=handler)
            return text_of(result.content)

        yield call


@asynccontextmanager
async def langchain(url: str) -> AsyncIterator[Caller]:
    from langchain_mcp_adapters.callbacks import Callbacks
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools

    client = MultiServerMCPClient({"rialto": {"transport": "streamable_http", "url": url}})
    async with client.session("rialto") as session:
        silent = {tool.name: tool for tool in await load_mcp_tools(session)}
        with_progress = {
            tool.name: tool for tool in await load_mcp_tools(session, callbacks=Callbacks(on_progress=ignore_progress))
        }

        async def call(name: str, arguments: dict[str, Any], progress: bool) -> str:
            tool = (with_progress if progress else silent)[name]
            return text_of(await tool.ainvoke(arguments))

        yield call


@asynccontextmanager
async def openai_agents(url: str, old_transport: bool = False) -> AsyncIterator[Caller]:
    from agents.mcp import MCPServerSse, MCPServerStreamableHttp

    server_type = MCPServerSse if old_transport else MCPServerStreamableHttp
    server = server_type(
        params={"url": url, "timeout": PATIENCE_SECONDS}, client_session_timeout_seconds=PATIENCE_SECONDS
    )
    async with server:

        async def call(name: str, arguments: dict[str, Any], progress: bool) -> str:
            meta = {"progressToken": f"of {name}"} if progress else None
            result = await server.call_tool(name, arguments, meta)
            return text_of(result.content)

        yield call


@asynccontextmanager
async def caller_and_neighbour(open_one: Any, url: str) -> AsyncIterator[tuple[Caller, Caller]]:
    """The caller whose call fails, and its neighbour: both in one session, unless the client makes calls one by one."""
    async with open_one(url) as call:
        if open_one is openai_agents:
            async with open_one(url) as neighbour:
                yield call, neighbour
        else:
            yield call, call


CLIENTS = {
    "sdk1": sdk1,
    "sdk2-legacy": partial(sdk2, mode="legacy"),
    "sdk2-auto": partial(sdk2, mode="auto"),
    "fastmcp": fastmcp,
    "langchain": langchain,
    "openai-agents": openai_agents,
    "openai-agents-sse": partial(openai_agents, old_transport=True),
}
