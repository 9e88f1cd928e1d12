"""A server of the Python SDK, 2.x line: `python py2.py [TRANSPORT]`, with TRANSPORT `stdio` (the default) or `http`.

It offers what its neighbours do. The SDK serves both eras: one process speaks the era of its first request. In the
legacy era it asks its client by requests of its own, in the modern one by answering `input_required`.
"""

import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import anyio
import transports
import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

# Sampling, roots and logging are exactly what is tested here.
warnings.simplefilter("ignore", MCPDeprecationWarning)

MODERN = "2026-07-28"
WATCHED = "memo://watched"
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

bus = InMemorySubscriptionBus()
subscribed: set[str] = set()
cancelled = 0
touched = 0
extra = False
level = "debug"
roots_known = anyio.Event()
roots_at_start_seen: list[str] = []

ToolResult = str | types.InputRequiredResult


class Call:
    """One round of a tool call."""

    def __init__(self, context: Any, params: types.CallToolRequestParams) -> None:
        self.session = context.session
        self.request_id = context.request_id
        self.is_modern = context.protocol_version >= MODERN
        self.state = params.request_state
        self.answers = params.input_responses or {}


def form(message: str) -> types.ElicitRequest:
    params = types.ElicitRequestFormParams(message=message, requested_schema=ANSWER)
    return types.ElicitRequest(params=params)


def asking(key: str, request: Any, state: str | None = None) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests={key: request}, request_state=state)


def uris(result: types.ListRootsResult) -> list[str]:
    return [str(root.uri) for root in result.roots]


async def echo(_call: Call, message: str) -> ToolResult:
    return f"Echo: {message}"


async def whoami(call: Call) -> ToolResult:
    era = "modern" if call.is_modern else "legacy"
    return json.dumps({"era": era, "pid": os.getpid(), "cancelled": cancelled})


async def count(call: Call, steps: int, delay_ms: int) -> ToolResult:
    global cancelled
    try:
        for step in range(1, steps + 1):
            await call.session.report_progress(step, steps)
            await anyio.sleep(delay_ms / 1000)
    except anyio.get_cancelled_exc_class():
        cancelled += 1
        raise
    return f"Counted to {steps}."


async def ask_twice(call: Call) -> ToolResult:
    first = "First question: where does the bridge begin?"
    second = "Second question: where does it end?"
    if not call.is_modern:
        begin = (await call.session.elicit_form(first, ANSWER, call.request_id)).content["answer"]
        end = (await call.session.elicit_form(second, ANSWER, call.request_id)).content["answer"]
        return f"From {begin} to {end}."
    # A round brings back only its own answers, so the state carries the earlier one.
    if "end" in call.answers:
        return f"From {call.state} to {call.answers['end'].content['answer']}."
    if "begin" in call.answers:
        return asking("end", form(second), state=call.answers["begin"].content["answer"])
    return asking("begin", form(first))


async def sample(call: Call, prompt: str) -> ToolResult:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    if not call.is_modern:
        result = await call.session.create_message([message], max_tokens=50, related_request_id=call.request_id)
        return f"Sampled: {result.content.text}"
    if "completion" in call.answers:
        return f"Sampled: {call.answers['completion'].content.text}"
    params = types.CreateMessageRequestParams(messages=[message], max_tokens=50)
    return asking("completion", types.CreateMessageRequest(params=params))


async def roots(call: Call) -> ToolResult:
    if not call.is_modern:
        return ", ".join(uris(await call.session.list_roots()))
    if "roots" in call.answers:
        return ", ".join(uris(call.answers["roots"]))
    return asking("roots", types.ListRootsRequest())


async def roots_at_start(call: Call) -> ToolResult:
    # A modern server has no start at which it could ask.
    if call.is_modern:
        return await roots(call)
    await roots_known.wait()
    return ", ".join(roots_at_start_seen)


async def touch(call: Call) -> ToolResult:
    global touched
    touched += 1
    if call.is_modern:
        await bus.publish(ResourceUpdated(uri=WATCHED))
    elif WATCHED in subscribed:
        await call.session.send_resource_updated(WATCHED)
    return f"Touched {touched}."


async def toggle_tool(call: Call) -> ToolResult:
    global extra
    extra = not extra
    if call.is_modern:
        await bus.publish(ToolsListChanged())
    else:
        await call.session.send_tool_list_changed()
    return f"The extra tool is {'there' if extra else 'gone'}."


async def log(call: Call) -> ToolResult:
    for severity, data in [("debug", "a whisper"), ("warning", "a remark")]:
        # In the legacy era the SDK keeps no level, so this is the server's own duty.
        if call.is_modern or LEVELS.index(severity) >= LEVELS.index(level):
            await call.session.send_log_message(severity, data, related_request_id=call.request_id)
    return "Logged."


async def end(call: Call) -> ToolResult:
    # In the middle of a call, not before it has begun to speak.
    await count(call, steps=3, delay_ms=20)
    os._exit(3)


TOOLS: dict[str, Callable[..., Any]] = {
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


async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
    names = [*TOOLS, "extra"] if extra else list(TOOLS)
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names])


async def call_tool(context: Any, params: types.CallToolRequestParams) -> Any:
    result = await TOOLS[params.name](Call(context, params), **(params.arguments or {}))
    if isinstance(result, types.InputRequiredResult):
        return result
    return types.CallToolResult(content=[types.TextContent(type="text", text=result)])


async def list_resources(_context: Any, _params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(uri=WATCHED, name="watched")])


async def read_resource(_context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    contents = types.TextResourceContents(uri=params.uri, text=f"Version {touched}")
    return types.ReadResourceResult(contents=[contents])


async def subscribe(_context: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
    subscribed.add(str(params.uri))
    return types.EmptyResult()


async def unsubscribe(_context: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    subscribed.discard(str(params.uri))
    return types.EmptyResult()


async def set_logging_level(_context: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
    global level
    level = params.level
    return types.EmptyResult()


async def at_start(context: Any, _params: Any) -> None:
    if context.session.check_client_capability(types.ClientCapabilities(roots=types.RootsCapability())):
        try:
            roots_at_start_seen.extend(uris(await context.session.list_roots()))
        except MCPError as error:
            roots_at_start_seen.append(str(error))
    roots_known.set()


server: Server[Any] = Server(
    "interop-python-2",
    version="1.0.0",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe,
    on_unsubscribe_resource=unsubscribe,
    on_subscriptions_listen=ListenHandler(bus),
    on_set_logging_level=set_logging_level,
)
server.add_notification_handler("notifications/initialized", types.NotificationParams, at_start)


def options() -> Any:
    return server.create_initialization_options(NotificationOptions(tools_changed=True, resources_changed=True))


transports.run(server, options())
