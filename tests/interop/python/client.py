"""An official Python client as a witness: `python client.py SDK ERA URL SCENARIO`.

SDK is `python1` or `python2`; ERA is how the client finds its era, `legacy` or `auto`. Plays one scenario against the
server at URL and prints one JSON line with what it observed; judging that line is left to the Rust test that started
it. Ends with 1 and the error on stderr if the SDK refuses.

The two lines of the SDK spell the members of their types differently, so results are looked at as they are on the
wire.
"""

import base64
import importlib
import json
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.shared.message import ClientMessageMetadata
from sightings import Sightings

sdk_name, era, url, scenario_name = sys.argv[1:5]
sdk = importlib.import_module({"python1": "sdk1", "python2": "sdk2"}[sdk_name])
httpx = sdk.httpx
types = sdk.types

DEADLINE_SECONDS = 40
LONG = "trigger-long-running-operation"
DOCUMENT = "demo://resource/dynamic/text/"


def wire(model: Any) -> dict[str, Any]:
    """A result, request or notification as it is on the wire."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class BrokenStream(httpx.AsyncByteStream):
    """Passes a stream on until its first progress event is through, then breaks the connection."""

    def __init__(self, inner: httpx.AsyncByteStream) -> None:
        self.inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = b""
        async for chunk in self.inner:
            yield chunk
            seen += chunk
            # The event must be whole, or the client would not know where to resume.
            _, found, rest = seen.replace(b"\r", b"").partition(b"notifications/progress")
            if found and b"\n\n" in rest:
                raise httpx.ReadError("connection broken on purpose")

    async def aclose(self) -> None:
        await self.inner.aclose()


class WatchedTransport(httpx.AsyncHTTPTransport):
    """Notes every exchange, and breaks the first stream of a long call if asked to."""

    def __init__(self, exchanges: Sightings, break_long_call: bool) -> None:
        super().__init__()
        self.exchanges = exchanges
        self.break_long_call = break_long_call

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self.exchanges.add(
            {
                "method": request.method,
                "status": response.status_code,
                "last_event_id": request.headers.get("last-event-id"),
                "session_id": response.headers.get("mcp-session-id"),
            }
        )
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        if self.break_long_call and is_stream and request.method == "POST" and LONG.encode() in request.content:
            self.break_long_call = False
            response.stream = BrokenStream(response.stream)
        return response


@dataclass
class Witness:
    """One client session, and everything that could be seen on the way."""

    notifications: Sightings = field(default_factory=Sightings)
    exchanges: Sightings = field(default_factory=Sightings)
    session: Any = field(init=False)
    initialized: dict[str, Any] = field(init=False)

    def session_id(self) -> str:
        return next(seen["session_id"] for seen in self.exchanges.items if seen["session_id"])

    async def listening(self) -> None:
        """Returns when the server has accepted the stream on which it speaks unasked."""
        await self.exchanges.until(lambda seen: seen["method"] == "GET" and seen["status"] == 200)

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        return wire(await self.session.call_tool(name, arguments or {}, **options))

    async def text(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
        result = await self.call(name, arguments, **options)
        return "\n".join(part["text"] for part in result["content"])

    async def received(self, part: str) -> None:
        """Returns when a log message with this text has come."""
        await self.notifications.until(
            lambda seen: seen["method"] == "notifications/message" and part in str(seen["params"]["data"])
        )

    def of(self, method: str) -> list[dict[str, Any]]:
        """The params of every notification of this method so far."""
        return [seen.get("params", {}) for seen in self.notifications.items if seen["method"] == method]


@asynccontextmanager
async def opened(
    break_long_call: bool = False,
    terminate_on_close: bool = True,
    resumed_session: dict[str, str] | None = None,
    **callbacks: Any,
) -> AsyncIterator[Witness]:
    """Opens a session, or goes on with one: then the headers that name it are given."""
    witness = Witness()

    async def message_handler(message: Any) -> None:
        if (notification := sdk.notification_in(message)) is not None:
            witness.notifications.add(wire(notification))

    callbacks["message_handler"] = message_handler
    async with httpx.AsyncClient(
        transport=WatchedTransport(witness.exchanges, break_long_call),
        headers=resumed_session,
        timeout=30,
        trust_env=False,
    ) as http_client:
        if resumed_session is None:
            async with sdk.connected(era, url, http_client, terminate_on_close, **callbacks) as (session, initialized):
                witness.session = session
                # In the modern era there is no handshake.
                witness.initialized = wire(initialized) if initialized is not None else {}
                yield witness
        else:
            async with sdk.session_over(url, http_client, terminate_on_close, **callbacks) as session:
                witness.session = session
                yield witness


def session_headers(witness: Witness) -> dict[str, str]:
    """What names a session to the server; the SDK has no other way to go on with an old one."""
    return {
        "mcp-session-id": witness.session_id(),
        "mcp-protocol-version": witness.initialized["protocolVersion"],
    }


def sampler(answer: str, asked: list[str]) -> dict[str, Any]:
    """Declares sampling and answers every request with `answer`."""
    content = {"type": "text", "text": answer}
    result = {"role": "assistant", "model": "witness", "stopReason": "endTurn", "content": content}

    async def sampling_callback(_context: Any, params: Any) -> Any:
        asked.append(wire(params)["messages"][0]["content"]["text"])
        return types.CreateMessageResult.model_validate(result)

    return {"sampling_callback": sampling_callback}


async def connect() -> dict[str, Any]:
    async with opened() as witness:
        await witness.session.send_ping()
        return {
            "server": witness.initialized["serverInfo"]["name"],
            "instructions": bool(witness.initialized["instructions"]),
            "protocolVersion": witness.initialized["protocolVersion"],
            "sessionId": witness.session_id(),
        }


async def discover() -> dict[str, Any]:
    exchanges = Sightings()
    async with httpx.AsyncClient(transport=WatchedTransport(exchanges, False), trust_env=False) as http_client:
        async with sdk.peer(era, url, http_client, log_level="info") as (client, version):
            await client.list_tools()
            return {
                "server": client.server_info.name,
                "instructions": bool(client.instructions),
                "protocolVersion": version,
                "sessions": sum(seen["session_id"] is not None for seen in exchanges.items),
            }


async def listing() -> dict[str, Any]:
    async with opened() as witness:
        tools = wire(await witness.session.list_tools())["tools"]
        prompts = wire(await witness.session.list_prompts())["prompts"]
        resources = wire(await witness.session.list_resources())["resources"]
        templates = wire(await witness.session.list_resource_templates())["resourceTemplates"]
        return {
            "tools": [tool["name"] for tool in tools],
            "prompts": [prompt["name"] for prompt in prompts],
            "resources": [resource["uri"] for resource in resources],
            "templates": [template["uriTemplate"] for template in templates],
        }


async def call() -> dict[str, Any]:
    async with opened() as witness:
        message = 'Grüße, 世界 \u2028 "quoted" \\ \U0001f309'
        return {"text": await witness.text("echo", {"message": message})}


async def large_message() -> dict[str, Any]:
    async with opened() as witness:
        message = "x" * 5_000_000
        text = await witness.text("echo", {"message": message})
        return {"length": len(text), "same": text == f"Echo: {message}"}


async def structured() -> dict[str, Any]:
    async with opened() as witness:
        weather = await witness.call("get-structured-content", {"location": "Chicago"})
        return {
            "sum": await witness.text("get-sum", {"a": 20, "b": 22}),
            "structured": weather["structuredContent"],
        }


async def tool_error() -> dict[str, Any]:
    async with opened() as witness:
        wrong = await witness.call("get-sum", {"a": "one", "b": 2})
        unknown_prompt = None
        try:
            await witness.session.get_prompt("no-such-prompt")
        except sdk.McpError as error:
            unknown_prompt = error.error.code
        return {
            "isError": wrong["isError"],
            "unknownPrompt": unknown_prompt,
            "after": await witness.text("echo", {"message": "still here"}),
        }


async def progress() -> dict[str, Any]:
    seen: list[list[float | None]] = []

    async def on_progress(done: float, total: float | None, _message: str | None) -> None:
        seen.append([done, total])

    async with opened() as witness:
        text = await witness.text(LONG, {"duration": 1, "steps": 5}, progress_callback=on_progress)
        return {"seen": seen, "text": text}


async def sampling() -> dict[str, Any]:
    asked: list[str] = []
    async with opened(**sampler("An answer from the witness.", asked)) as witness:
        text = await witness.text("trigger-sampling-request", {"prompt": "Who goes there?", "maxTokens": 50})
        return {"asked": asked, "text": text}


async def elicitation() -> dict[str, Any]:
    answers = [
        types.ElicitResult(action="accept", content={"name": "Antonio da Ponte", "check": True, "integer": 7}),
        types.ElicitResult(action="decline"),
        types.ElicitResult(action="cancel"),
    ]
    asked: list[Any] = []

    async def elicitation_callback(_context: Any, params: Any) -> Any:
        asked.append(wire(params)["requestedSchema"]["required"])
        return answers[len(asked) - 1]

    async with opened(elicitation_callback=elicitation_callback) as witness:
        texts = [await witness.text("trigger-elicitation-request") for _ in answers]
        return {"asked": asked, "texts": texts}


async def two_elicitations() -> dict[str, Any]:
    answers = ["San Polo", "San Marco"]
    asked: list[str] = []

    async def elicitation_callback(_context: Any, params: Any) -> Any:
        asked.append(wire(params)["message"])
        return types.ElicitResult(action="accept", content={"answer": answers[len(asked) - 1]})

    async with opened(elicitation_callback=elicitation_callback) as witness:
        return {"text": await witness.text("ask_twice"), "asked": asked}


async def roots() -> dict[str, Any]:
    known = [{"uri": "file:///srv/one", "name": "One"}]
    asked = 0

    async def list_roots_callback(_context: Any) -> Any:
        nonlocal asked
        asked += 1
        return types.ListRootsResult.model_validate({"roots": known})

    async with opened(list_roots_callback=list_roots_callback) as witness:
        await witness.listening()
        before = await witness.text("get-roots-list")
        known.append({"uri": "file:///srv/two", "name": "Two"})
        await witness.session.send_roots_list_changed()
        await witness.received("Roots updated: 2")
        return {"asked": asked, "before": before, "after": await witness.text("get-roots-list")}


async def logging() -> dict[str, Any]:
    async with opened() as witness:
        await witness.listening()
        session = witness.session
        await session.set_logging_level("info")
        await session.subscribe_resource(f"{DOCUMENT}1")
        await witness.received(f"{DOCUMENT}1")
        # The server logs each subscription as info. At this level the second must stay unheard, which the third proves.
        await session.set_logging_level("error")
        await session.subscribe_resource(f"{DOCUMENT}2")
        await session.set_logging_level("debug")
        await session.subscribe_resource(f"{DOCUMENT}3")
        await witness.received(f"{DOCUMENT}3")
        subscriptions = [[log["level"], log["data"]] for log in witness.of("notifications/message")]
        await session.call_tool("toggle-simulated-logging", {})
        await witness.received("evel")
        await session.call_tool("toggle-simulated-logging", {})
        simulated = len(witness.of("notifications/message")) - len(subscriptions)
        return {"subscriptions": subscriptions, "simulated": simulated}


async def subscriptions() -> dict[str, Any]:
    async with opened() as witness:
        await witness.listening()
        session = witness.session

        def updates() -> list[str]:
            return [params["uri"] for params in witness.of("notifications/resources/updated")]

        async def updated(uri: str) -> None:
            await witness.notifications.until(
                lambda seen: seen["method"] == "notifications/resources/updated" and seen["params"]["uri"] == uri
            )

        async def round_of_updates() -> None:
            # Each start of the simulation sends one round of updates at once.
            await session.call_tool("toggle-subscriber-updates", {})
            await session.call_tool("toggle-subscriber-updates", {})

        await session.subscribe_resource(f"{DOCUMENT}1")
        await session.subscribe_resource(f"{DOCUMENT}2")
        await round_of_updates()
        await updated(f"{DOCUMENT}1")
        await updated(f"{DOCUMENT}2")
        first = updates()
        await session.unsubscribe_resource(f"{DOCUMENT}1")
        await session.subscribe_resource(f"{DOCUMENT}3")
        await round_of_updates()
        await updated(f"{DOCUMENT}3")
        return {"first": sorted(first), "second": sorted(updates()[len(first) :])}


async def list_changed() -> dict[str, Any]:
    async with opened() as witness:
        await witness.listening()
        session = witness.session
        before = len((await session.list_resources()).resources)
        result = await witness.call(
            "gzip-file-as-resource",
            {"name": "bridge.gz", "data": "data:text/plain,Rialto", "outputType": "resourceLink"},
        )
        await witness.notifications.until(lambda seen: seen["method"] == "notifications/resources/list_changed")
        after = len((await session.list_resources()).resources)
        uri = result["content"][0]["uri"]
        contents = wire(await session.read_resource(uri))["contents"]
        return {"added": after - before, "uri": uri, "blob": bool(contents[0]["blob"])}


async def tools_changed() -> dict[str, Any]:
    async with opened() as witness:
        await witness.listening()

        async def names() -> set[str]:
            return {tool.name for tool in (await witness.session.list_tools()).tools}

        before = await names()
        await witness.text("toggle_tool")
        await witness.notifications.until(lambda seen: seen["method"] == "notifications/tools/list_changed")
        return {"added": sorted(await names() - before), "text": await witness.text("extra")}


async def cancellation() -> dict[str, Any]:
    async with opened() as witness:
        running = anyio.Event()
        outcome = "answered"

        async def on_progress(_done: float, _total: float | None, _message: str | None) -> None:
            running.set()

        async def call(scope: anyio.CancelScope) -> None:
            nonlocal outcome
            with scope:
                await witness.text("count", {"steps": 1000, "delay_ms": 20}, progress_callback=on_progress)
            if scope.cancelled_caught:
                outcome = "cancelled"

        scope = anyio.CancelScope()
        request_id = sdk.next_request_id(witness.session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, scope)
            await running.wait()
            await sdk.tell_cancelled(witness.session, request_id)
            scope.cancel()
        # The notification has a connection of its own, so it may reach the server after the first question.
        cancelled_calls = 0
        while cancelled_calls == 0:
            cancelled_calls = json.loads(await witness.text("whoami"))["cancelledCalls"]
        return {"outcome": outcome, "cancelledCalls": cancelled_calls}


async def fifty_at_once() -> dict[str, Any]:
    async with opened() as witness:
        texts: dict[str, str] = {}

        async def call(message: str) -> None:
            texts[message] = await witness.text("echo", {"message": message})

        async with anyio.create_task_group() as tasks:
            for index in range(50):
                tasks.start_soon(call, f"call {index}")
        wrong = [text for message, text in texts.items() if text != f"Echo: {message}"]
        return {"answered": len(texts), "wrong": wrong}


async def prompts_and_completion() -> dict[str, Any]:
    async with opened() as witness:
        session = witness.session
        prompt = await session.get_prompt("args-prompt", {"city": "Venice", "state": "Veneto"})
        ref = types.PromptReference(type="ref/prompt", name="completable-prompt")
        departments = await session.complete(ref, {"name": "department", "value": "S"})
        people = await session.complete(ref, {"name": "name", "value": ""}, {"department": "Sales"})
        return {
            "prompt": wire(prompt)["messages"][0]["content"]["text"],
            "departments": departments.completion.values,
            "people": people.completion.values,
        }


async def resources_read() -> dict[str, Any]:
    async with opened() as witness:
        session = witness.session
        text = await session.read_resource(f"{DOCUMENT}17")
        blob = await session.read_resource("demo://resource/dynamic/blob/18")
        listed = wire(await session.list_resources())["resources"]
        document = await session.read_resource(listed[0]["uri"])
        unknown = None
        try:
            await session.read_resource("demo://no/such/resource")
        except sdk.McpError as error:
            unknown = error.error.code
        return {
            "text": text.contents[0].text,
            "blob": base64.b64decode(blob.contents[0].blob).decode(),
            "document": len(document.contents[0].text),
            "unknown": unknown,
        }


async def resumed(duration: float) -> dict[str, Any]:
    steps: list[float] = []

    async def on_progress(done: float, _total: float | None, _message: str | None) -> None:
        steps.append(done)

    async with opened(break_long_call=True) as witness:
        text = await witness.text(LONG, {"duration": duration, "steps": 5}, progress_callback=on_progress)
        resumes = [seen["status"] for seen in witness.exchanges.items if seen["last_event_id"] is not None]
        return {"text": text, "steps": steps, "resumes": resumes}


async def resume_after_the_end() -> dict[str, Any]:
    """The call ends while the client is away (it stays away for a second): what it missed is replayed."""
    return await resumed(0.5)


async def resume_before_the_end() -> dict[str, Any]:
    """The client is back before the call ends: the rest comes live."""
    return await resumed(4)


async def outlives_restarts() -> dict[str, Any]:
    """The gateway is restarted, killed and restarted meanwhile: the client calls on until it has met four servers.

    A connection that breaks under a call ends the transport of the SDK, and no server can prevent it: the POST is a
    task in the transport's task group, and its exception cancels the group. The client then opens another transport
    and goes on with its session, without `initialize`.
    """
    servers: set[str] = set()
    failures: list[Any] = []
    transports: list[int] = []
    sessions: set[str] = set()
    answers = 0
    calls = 0
    open_calls = 0

    async def caller(witness: Witness) -> None:
        nonlocal answers, calls, open_calls
        while len(servers) < 4:
            calls += 1
            open_calls += 1
            try:
                with anyio.fail_after(15):
                    servers.add(await witness.text("pid", {"marker": str(calls)}))
                answers += 1
            except (sdk.McpError, TimeoutError) as error:
                failures.append([len(servers), repr(error)])
            # A call that is cancelled with its transport stays open.
            open_calls -= 1

    session: dict[str, str] | None = None
    while len(servers) < 4:
        open_calls = 0
        try:
            async with opened(resumed_session=session, terminate_on_close=False) as witness:
                if session is None:
                    await witness.listening()
                    session = session_headers(witness)
                async with anyio.create_task_group() as tasks:
                    for _ in range(4):
                        tasks.start_soon(caller, witness)
        except BaseExceptionGroup as group:
            reason = ", ".join(sorted({repr(error) for error in leaves(group)}))
            failures.extend([len(servers), reason] for _ in range(open_calls))
            transports.append(len(servers))
        sessions |= {seen["session_id"] for seen in witness.exchanges.items if seen["session_id"]}
    return {
        "servers": sorted(servers),
        "sessions": sorted(sessions),
        "failures": failures,
        "transports": transports,
        "answers": answers,
    }


def leaves(group: BaseExceptionGroup) -> list[BaseException]:
    """The exceptions of a group and of the groups in it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


async def resume_with_token() -> dict[str, Any]:
    token: str | None = None
    running = anyio.Event()

    async def on_token(latest: str) -> None:
        nonlocal token
        token = latest

    async def on_progress(_done: float, _total: float | None, _message: str | None) -> None:
        running.set()

    def request(duration: float) -> Any:
        return sdk.call_request(LONG, {"duration": duration, "steps": 5})

    async with opened(terminate_on_close=False) as first:

        async def call() -> None:
            await first.session.send_request(
                request(1),
                types.CallToolResult,
                metadata=ClientMessageMetadata(on_resumption_token_update=on_token),
                progress_callback=on_progress,
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await running.wait()
            tasks.cancel_scope.cancel()
        session = session_headers(first)
    async with opened(resumed_session=session) as second:
        # The arguments differ on purpose: a resumed call answers the first request, it does not run a second one.
        result = await second.session.send_request(
            request(30), types.CallToolResult, metadata=ClientMessageMetadata(resumption_token=token)
        )
        return {
            "token": "string" if isinstance(token, str) else "none",
            "text": result.content[0].text,
            "after": await second.text("echo", {"message": "resumed"}),
        }


async def terminate() -> dict[str, Any]:
    async with opened() as witness:
        await witness.text("echo", {"message": "before"})
        session = session_headers(witness)
    deleted = [seen["status"] for seen in witness.exchanges.items if seen["method"] == "DELETE"]
    # The SDK tells a late caller no status, so the request is made by hand.
    headers = {"accept": "application/json, text/event-stream", **session}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx.AsyncClient(trust_env=False) as http_client:
        late = await http_client.post(url, json=body, headers=headers)
    return {"deleted": deleted[0], "refused": late.status_code}


async def two_clients_sample_at_once() -> dict[str, Any]:
    """Only a process per session can tell the two questions apart when they are asked at the same time."""
    texts: dict[str, str] = {}

    async def call(name: str) -> None:
        async with opened(**sampler(f"answer of {name}", [])) as witness:
            texts[name] = await witness.text("trigger-sampling-request", {"prompt": name})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "left")
        tasks.start_soon(call, "right")
    return {"texts": [texts["left"], texts["right"]]}


SCENARIOS = [
    connect,
    discover,
    listing,
    call,
    large_message,
    structured,
    tool_error,
    progress,
    sampling,
    elicitation,
    two_elicitations,
    roots,
    logging,
    subscriptions,
    list_changed,
    tools_changed,
    cancellation,
    fifty_at_once,
    prompts_and_completion,
    resources_read,
    resume_after_the_end,
    resume_before_the_end,
    outlives_restarts,
    resume_with_token,
    terminate,
    two_clients_sample_at_once,
]


async def main() -> None:
    scenario = {scenario.__name__: scenario for scenario in SCENARIOS}[scenario_name]
    with anyio.fail_after(DEADLINE_SECONDS):
        observed = await scenario()
    sys.stdout.write(json.dumps(observed) + "\n")


if __name__ == "__main__":
    try:
        anyio.run(main)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
