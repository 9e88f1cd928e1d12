"""What the Python servers need to be reached over HTTP.

The socket to listen on is inherited in place of standard input, so that a server which ends can be started again
without anyone being turned away meanwhile.
"""

import socket
from typing import Any

import uvicorn

INHERITED = 0


async def serve(app: Any) -> None:
    async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    config = uvicorn.Config(without_lifespan, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=INHERITED)])
