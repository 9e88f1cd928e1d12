"""A server of the Python SDK, 1.x line: `python py1.py [TRANSPORT]`, with TRANSPORT `stdio` (the default) or `http`.

It offers what its neighbours do. It only knows the legacy era: it asks its client by requests of its own, in the
middle of a call or right after the start.
"""

import json
import os
from typing import Any

import anyio
import transports
from mcp import McpError, types
from mcp.server.lowlevel import NotificationOptions, Server
from pydantic import AnyUrl

WATCHED = "memo://watched"
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class ServerThatAsksAtStart(Server[Any, Any]):
    """Asks for roots as soon as it may. The SDK gives a notification's handler no session to ask with."""

    async def _handle_message(self, message: Any, session: Any, *rest: Any) -> None:
        if isinstance(message, types.ClientNotification) and isinstance(message.root, types.InitializedNotification):
            await ask_for_roots(session)
        await super()._handle_message(message, session, *rest)


server = ServerThatAsksAtStart("interop-python-1", "1.0.0")

subscribed: set[str] = set()
cancelled = 0
touched = 0
extra = False
level = "debug"
roots_known = anyio.Event()
roots_at_start_seen: list[str] = []


async def ask_for_roots(session: Any) -> None:
    if session.check_client_capability(types.ClientCapabilities(roots=types.RootsCapability())):
        try:
            result = await session.list_roots()
            roots_at_start_seen.extend(str(root.uri) for root in result.roots)
        except McpError as error:
            roots_at_start_seen.append(str(error))
    roots_known.set()


async def echo(message: str) -> str:
    return f"Echo: {message}"


async def whoami() -> str:
    return json.dumps({"era": "legacy", "pid": os.getpid(), "cancelled": cancelled})


async def count(steps: int, delay_ms: int) -> str:
    global cancelled
    context = server.request_context
    token = context.meta.progressToken if context.meta else None
    try:
        for step in range(1, steps + 1):
            if token is not None:
                await context.session.send_progress_notification(
                    token, step, steps, related_request_id=str(context.request_id)
                )
            await anyio.sleep(delay_ms / 1000)
    except anyio.get_cancelled_exc_class():
        cancelled += 1
        raise
    return f"Counted to {steps}."


async def elicit(message: str) -> Any:
    context = server.request_context
    return (await context.session.elicit_form(message, ANSWER, context.request_id)).content["answer"]


async def ask_twice() -> str:
    begin = await elicit("First question: where does the bridge begin?")
    end = await elicit("Second question: where does it end?")
    return f"From {begin} to {end}."


async def sample(prompt: str) -> str:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    context = server.request_context
    result = await context.session.create_message([message], max_tokens=50, related_request_id=context.request_id)
    return f"Sampled: {result.content.text}"


async def roots() -> str:
    result = await server.request_context.session.list_roots()
    return ", ".join(str(root.uri) for root in result.roots)


async def roots_at_start() -> str:
    await roots_known.wait()
    return ", ".join(roots_at_start_seen)


async def touch() -> str:
    global touched
    touched += 1
    if WATCHED in subscribed:
        await server.request_context.session.send_resource_updated(AnyUrl(WATCHED))
    return f"Touched {touched}."


async def toggle_tool() -> str:
    global extra
    extra = not extra
    await server.request_context.session.send_tool_list_changed()
    return f"The extra tool is {'there' if extra else 'gone'}."


async def log() -> str:
    # The SDK keeps no level, so this is the server's own duty.
    for severity, data in [("debug", "a whisper"), ("warning", "a remark")]:
        if LEVELS.index(severity) >= LEVELS.index(level):
            context = server.request_context
            await context.session.send_log_message(severity, data, related_request_id=context.request_id)
    return "Logged."


async def end() -> str:
    # In the middle of a call, not before it has begun to speak.
    await count(steps=3, delay_ms=20)
    os._exit(3)


TOOLS = {
    "echo": echo,
    "whoami": whoami,
    "count": count,
    "ask_twice": ask_twice,
    "sample": sample,
    "roots": roots,
    "roots_at_start": roots_at_start,
    "touch": touch,
    "toggle_tool": toggle_tool,
    "log": log,
    "exit": end,
}


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    names = [*TOOLS, "extra"] if extra else list(TOOLS)
    return [types.Tool(name=name, inputSchema={"type": "object"}) for name in names]


@server.call_tool()
async def call_tool(name: str, arguments: dict[str, Any]) -> list[types.TextContent]:
    return [types.TextContent(type="text", text=await TOOLS[name](**arguments))]


@server.list_resources()
async def list_resources() -> list[types.Resource]:
    return [types.Resource(uri=AnyUrl(WATCHED), name="watched")]


@server.read_resource()
async def read_resource(_uri: AnyUrl) -> str:
    return f"Version {touched}"


@server.subscribe_resource()
async def subscribe_resource(uri: AnyUrl) -> None:
    subscribed.add(str(uri))


@server.unsubscribe_resource()
async def unsubscribe_resource(uri: AnyUrl) -> None:
    subscribed.discard(str(uri))


@server.set_logging_level()
async def set_logging_level(wanted: types.LoggingLevel) -> None:
    global level
    level = wanted


def options() -> Any:
    made = server.create_initialization_options(NotificationOptions(tools_changed=True, resources_changed=True))
    # The SDK does not look whether there is a handler for subscriptions, and never declares them.
    made.capabilities.resources.subscribe = True
    return made


transports.run(server, options())
