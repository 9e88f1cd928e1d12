"""An official Python client in front of a server that may speak another era: `python eras.py SDK ERA URL SCENARIOS`.

SDK is `python1` or `python2`; ERA is `legacy` or `auto`; SCENARIOS is `all`, or names with commas between them. Plays
them against the server at URL, one of `tests/interop/servers`, and prints one JSON line: by scenario what it observed,
or its error. Judging that is left to the Rust test. If RIALTO_CONNECT names the binary, the client starts it and speaks
to it over stdio, and it is `rialto connect` that reaches URL. With `aggregate` in place of SCENARIOS it plays those of
`aggregate.py`.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aggregate
import anyio
from sightings import Sightings

sdk_name, era, url, wanted = sys.argv[1:5]
sdk = importlib.import_module({"python1": "sdk1", "python2": "sdk2"}[sdk_name])
types = sdk.types
connect = os.environ.get("RIALTO_CONNECT")

DEADLINE_SECONDS = 20
MODERN = "2026-07-28"
WATCHED = "memo://watched"
ENDLESS = {"steps": 10_000, "delay_ms": 20}


def is_wanted(scenario: str) -> bool:
    return wanted in ("all", "aggregate") or scenario in wanted.split(",")


def wire(model: Any) -> dict[str, Any]:
    """A result, request or notification as it is on the wire."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class Witness:
    """A client that can answer every question of a server, and all messages that it saw."""

    def __init__(self) -> None:
        self.notifications = Sightings()
        self.exchanges = Sightings()
        self.asked: list[str] = []
        self.places = ["San Polo", "San Marco"]
        self.listens = AsyncExitStack()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Witness"]:
        async def note_exchange(response: Any) -> None:
            self.exchanges.add((response.request.method, response.status_code))

        hooks = {"response": [note_exchange]}
        callbacks = {
            "message_handler": self.note_message,
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.list_roots,
        }
        if connect is not None:
            program = sdk.stdio_peer(era, connect, ["connect", url], log_level="info", **callbacks)
            async with program as (self.peer, self.version), self.listens:
                # A server that `connect` reaches has a session for each scenario, and a legacy one asks at its start. A
                # modern client can be asked only in a call, so there is one before the call that is looked at.
                if self.is_modern and is_wanted("roots_at_start"):
                    await self.text("roots_at_start")
                yield self
            return
        async with sdk.httpx.AsyncClient(event_hooks=hooks, timeout=30, trust_env=False) as http_client:
            async with sdk.peer(era, url, http_client, log_level="info", **callbacks) as (self.peer, self.version):
                async with self.listens:
                    yield self

    async def note_message(self, message: Any) -> None:
        if (notification := sdk.notification_in(message)) is not None:
            self.notifications.add(wire(notification))

    async def elicit(self, _context: Any, params: Any) -> Any:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": self.places.pop(0)})

    async def sample(self, _context: Any, params: Any) -> Any:
        self.asked.append(wire(params)["messages"][0]["content"]["text"])
        content = {"type": "text", "text": "A friend."}
        result = {"role": "assistant", "model": "witness", "stopReason": "endTurn", "content": content}
        return types.CreateMessageResult.model_validate(result)

    async def list_roots(self, _context: Any) -> Any:
        return types.ListRootsResult.model_validate({"roots": [{"uri": "file:///srv/one", "name": "One"}]})

    @property
    def is_modern(self) -> bool:
        return self.version == MODERN

    async def listening(self, tools: bool = False, uris: tuple[str, ...] = ()) -> None:
        """Returns when notifications of the server would be received."""
        if self.is_modern:
            listen = self.peer.listen(tools_list_changed=tools, resource_subscriptions=uris)
            await self.listens.enter_async_context(listen)
            return
        # Over stdio there is nothing to open.
        if connect is None:
            await self.exchanges.until(lambda seen: seen == ("GET", 200))
        for uri in uris:
            await self.peer.subscribe_resource(uri)

    async def received(self, method: str) -> dict[str, Any]:
        return await self.notifications.until(lambda seen: seen["method"] == method)

    async def text(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
        result = wire(await self.peer.call_tool(name, arguments or {}, **options))
        if result.get("isError"):
            raise RuntimeError(f"the tool failed: {result['content']}")
        return "\n".join(part["text"] for part in result["content"])

    async def whoami(self) -> dict[str, Any]:
        return json.loads(await self.text("whoami"))

    async def outcome(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
        try:
            return f"answered: {await self.text(name, arguments, **options)}"
        except sdk.McpError as error:
            return f"failed: {error}"


async def roots_at_start(witness: Witness) -> dict[str, Any]:
    return {"text": await witness.text("roots_at_start")}


async def call(witness: Witness) -> dict[str, Any]:
    text = await witness.text("echo", {"message": 'Grüße, 世界 \u2028 "quoted" \\ \U0001f309'})
    return {"text": text, "version": witness.version, "serverEra": (await witness.whoami())["era"]}


async def progress(witness: Witness) -> dict[str, Any]:
    seen: list[list[float | None]] = []

    async def on_progress(done: float, total: float | None, _message: str | None) -> None:
        seen.append([done, total])

    text = await witness.text("count", {"steps": 5, "delay_ms": 20}, progress_callback=on_progress)
    return {"text": text, "seen": seen}


async def two_elicitations(witness: Witness) -> dict[str, Any]:
    return {"text": await witness.text("ask_twice"), "asked": witness.asked}


async def sampling(witness: Witness) -> dict[str, Any]:
    return {"text": await witness.text("sample", {"prompt": "Who goes there?"}), "asked": witness.asked}


async def roots_in_a_call(witness: Witness) -> dict[str, Any]:
    return {"text": await witness.text("roots")}


async def list_changed(witness: Witness) -> dict[str, Any]:
    async def names() -> list[str]:
        return [tool.name for tool in (await witness.peer.list_tools()).tools]

    before = await names()
    await witness.listening(tools=True)
    await witness.text("toggle_tool")
    await witness.received("notifications/tools/list_changed")
    return {"added": [name for name in await names() if name not in before]}


async def resource_update(witness: Witness) -> dict[str, Any]:
    async def read() -> str:
        return (await witness.peer.read_resource(WATCHED)).contents[0].text

    before = await read()
    await witness.listening(uris=(WATCHED,))
    await witness.text("touch")
    updated = await witness.received("notifications/resources/updated")
    return {"uri": updated["params"]["uri"], "before": before, "after": await read()}


async def logs(witness: Witness) -> dict[str, Any]:
    if not witness.is_modern:
        await witness.listening()
        await witness.peer.set_logging_level("info")
    await witness.text("log")
    await witness.received("notifications/message")
    received = [seen["params"] for seen in witness.notifications.items if seen["method"] == "notifications/message"]
    return {"logs": [[log["level"], log["data"]] for log in received]}


async def restart(witness: Witness) -> dict[str, Any]:
    pid = (await witness.whoami())["pid"]
    steps: list[float] = []

    async def on_progress(done: float, _total: float | None, _message: str | None) -> None:
        steps.append(done)

    ended = await witness.outcome("exit", progress_callback=on_progress)
    after = await witness.text("echo", {"message": "after"})
    return {"steps": steps, "ended": ended, "after": after, "renewed": (await witness.whoami())["pid"] != pid}


async def cancellation(witness: Witness) -> dict[str, Any]:
    running = anyio.Event()
    ended = "cancelled"

    async def on_progress(_done: float, _total: float | None, _message: str | None) -> None:
        running.set()

    async def endless() -> None:
        nonlocal ended
        ended = await witness.outcome("count", ENDLESS, progress_callback=on_progress)

    request_id = sdk.next_request_id(witness.peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(endless)
        await running.wait()
        await sdk.tell_cancelled(witness.peer, request_id)
        tasks.cancel_scope.cancel()
    cancelled = 0
    # The notification has a connection of its own, so it may reach the server after the first question.
    while cancelled == 0:
        cancelled = (await witness.whoami())["cancelled"]
    return {"ended": ended, "cancelled": cancelled}


# The order matters. A legacy server asks for roots when it starts. After a cancellation that a server does not
# confirm, Rialto takes its messages of the next five seconds as possibly about the cancelled call.
SCENARIOS: list[Callable[[Witness], Awaitable[dict[str, Any]]]] = [
    roots_at_start,
    call,
    progress,
    two_elicitations,
    sampling,
    roots_in_a_call,
    list_changed,
    resource_update,
    logs,
    restart,
    cancellation,
]


async def main() -> None:
    observed: dict[str, Any] = {}
    for scenario in aggregate.scenarios(sdk, wire) if wanted == "aggregate" else SCENARIOS:
        if not is_wanted(scenario.__name__):
            continue
        witness = Witness()
        try:
            with anyio.fail_after(DEADLINE_SECONDS):
                async with witness.opened():
                    observed[scenario.__name__] = await scenario(witness)
        except Exception:
            # What a scenario saw is worth nothing if its client cannot leave.
            observed[scenario.__name__] = {"error": traceback.format_exc()}
    sys.stdout.write(json.dumps(observed) + "\n")


anyio.run(main)
