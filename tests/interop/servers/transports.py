"""The transports of the Python servers: `run` uses the one that the command line names, `stdio` (the default) or `http`.

What is imported from the SDK is the same in both of its lines.
"""

import socket
import sys
from typing import Any

import anyio
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

# The socket to listen on is inherited in place of standard input, so that a server which ends can be started again
# and no connection is refused meanwhile.
INHERITED = 0


def run(server: Any, options: Any) -> None:
    anyio.run(over_http if sys.argv[1:] == ["http"] else over_stdio, server, options)


async def over_stdio(server: Any, options: Any) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, options)


async def over_http(server: Any, options: Any) -> None:
    # The manager makes its options itself and takes none.
    server.create_initialization_options = lambda *_arguments, **_named: options
    manager = StreamableHTTPSessionManager(server)
    async with manager.run():
        await serve(manager.handle_request)


async def serve(app: Any) -> None:
    # Only this transport needs it.
    import uvicorn

    async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    config = uvicorn.Config(without_lifespan, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=INHERITED)])
