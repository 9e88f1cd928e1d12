"""What an official Python client sees of an aggregate. `eras.py` plays it, in front of these members:

`everything` is server-everything, `modern` and `python` are of `tests/interop/servers`, and so is `tasks`, which works
on calls as tasks. Every scenario concerns at least two of them.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

MEMBERS = ["everything", "modern", "python", "tasks"]
DOCUMENT = "demo://resource/dynamic/text/"
ENDLESS = {"steps": 10_000, "delay_ms": 20}
UPDATED = "notifications/resources/updated"
LIST_CHANGED = "notifications/tools/list_changed"
LOG = "notifications/message"


def watched(member: str) -> str:
    return f"{member}+memo://watched"


def scenarios(sdk: Any, wire: Callable[[Any], dict[str, Any]]) -> list[Callable[[Any], Awaitable[dict[str, Any]]]]:
    """What is played, in an order that matters as in `eras.py`."""
    types = sdk.types

    async def names(witness: Any) -> list[str]:
        return [tool.name for tool in (await witness.peer.list_tools()).tools]

    async def read(witness: Any, uri: str) -> dict[str, Any]:
        return wire(await witness.peer.read_resource(uri))["contents"][0]

    async def all_members(witness: Any) -> dict[str, Any]:
        # A list, and what an aggregate declares, are what is known of members, some of which have just begun to start.
        tools: list[str] = []
        while not all(any(tool.startswith(f"{member}__") for tool in tools) for member in MEMBERS):
            tools = await names(witness)
        return {}

    async def listing(witness: Any) -> dict[str, Any]:
        peer = witness.peer
        prompts = wire(await peer.list_prompts())["prompts"]
        resources = wire(await peer.list_resources())["resources"]
        templates = wire(await peer.list_resource_templates())["resourceTemplates"]
        return {
            "tools": await names(witness),
            "prompts": [prompt["name"] for prompt in prompts],
            "resources": [resource["uri"] for resource in resources],
            "templates": [template["uriTemplate"] for template in templates],
        }

    async def calls(witness: Any) -> dict[str, Any]:
        members = ["everything", "modern", "python"]
        texts = [await witness.text(f"{member}__echo", {"message": member}) for member in members]
        eras = [json.loads(await witness.text(f"{member}__whoami"))["era"] for member in members[1:]]
        return {"texts": texts, "eras": eras, "version": witness.version}

    async def prompts_and_completion(witness: Any) -> dict[str, Any]:
        peer = witness.peer
        prompt = await peer.get_prompt("everything__args-prompt", {"city": "Venice", "state": "Veneto"})
        of_prompt = types.PromptReference(type="ref/prompt", name="everything__completable-prompt")
        of_template = types.ResourceTemplateReference(
            type="ref/resource", uri=f"everything+{DOCUMENT}{{resourceId}}"
        )
        departments = await peer.complete(of_prompt, {"name": "department", "value": "S"})
        template = await peer.complete(of_template, {"name": "resourceId", "value": "7"})
        return {
            "prompt": wire(prompt)["messages"][0]["content"]["text"],
            "departments": departments.completion.values,
            "template": template.completion.values,
        }

    async def resources(witness: Any) -> dict[str, Any]:
        result = wire(await witness.peer.call_tool("everything__get-resource-links", {"count": 2}))
        links = [part["uri"] for part in result["content"] if part["type"] == "resource_link"]
        qualified = [watched("modern"), watched("python"), f"everything+{DOCUMENT}17"]
        texts = [(await read(witness, uri))["text"] for uri in [*qualified, f"{DOCUMENT}3", links[1]]]
        uri = (await read(witness, f"{DOCUMENT}3"))["uri"]
        try:
            ambiguous = f"answered: {await read(witness, 'memo://watched')}"
        except sdk.McpError as error:
            ambiguous = f"failed: {error}"
        return {"links": links, "texts": texts, "uri": uri, "ambiguous": ambiguous}

    async def progress(witness: Any) -> dict[str, Any]:
        steps: dict[str, list[float]] = {"modern": [], "python": []}
        texts: dict[str, str] = {}

        async def count(member: str) -> None:
            async def on_progress(done: float, _total: float | None, _message: str | None) -> None:
                steps[member].append(done)

            arguments = {"steps": 5, "delay_ms": 20}
            texts[member] = await witness.text(f"{member}__count", arguments, progress_callback=on_progress)

        async with anyio.create_task_group() as tasks:
            for member in steps:
                tasks.start_soon(count, member)
        return {"texts": [texts[member] for member in steps], "steps": list(steps.values())}

    async def elicitation(witness: Any) -> dict[str, Any]:
        texts = [await witness.text("modern__ask_twice")]
        witness.places = ["Rialto", "Accademia"]
        texts.append(await witness.text("python__ask_twice"))
        return {"texts": texts, "asked": witness.asked}

    async def sampling(witness: Any) -> dict[str, Any]:
        members = ["modern", "python"]
        texts = [await witness.text(f"{member}__sample", {"prompt": f"A sample for {member}"}) for member in members]
        asked = {"prompt": "A sample for everything", "maxTokens": 50}
        texts.append(await witness.text("everything__trigger-sampling-request", asked))
        return {"texts": texts, "asked": witness.asked}

    async def roots(witness: Any) -> dict[str, Any]:
        return {"texts": [await witness.text(f"{member}__roots") for member in ["modern", "python"]]}

    async def subscriptions(witness: Any) -> dict[str, Any]:
        await witness.listening(uris=(watched("modern"), watched("python")))
        uris = []
        for member in ["modern", "python"]:
            await witness.text(f"{member}__touch")
            uri = watched(member)
            updated = await witness.notifications.until(
                lambda seen: seen["method"] == UPDATED and seen["params"]["uri"] == uri  # noqa: B023
            )
            uris.append(updated["params"]["uri"])
        seen = [one["params"]["uri"] for one in witness.notifications.items if one["method"] == UPDATED]
        return {"uris": uris, "all": seen}

    def count_of(witness: Any, method: str) -> int:
        return sum(one["method"] == method for one in witness.notifications.items)

    async def logging(witness: Any) -> dict[str, Any]:
        if not witness.is_modern:
            await witness.listening()
            await witness.peer.set_logging_level("info")
        for at, member in enumerate(["modern", "python"]):
            await witness.text(f"{member}__log")
            await witness.notifications.until(lambda _: count_of(witness, LOG) > at)  # noqa: B023
        received = [one["params"] for one in witness.notifications.items if one["method"] == LOG]
        return {"logs": [[log["level"], log["data"]] for log in received]}

    async def list_changed(witness: Any) -> dict[str, Any]:
        before = await names(witness)
        await witness.listening(tools=True)
        added: list[str] = []
        for member in ["modern", "python"]:
            await witness.text(f"{member}__toggle_tool")
            seen = 0
            while f"{member}__extra" not in added:
                await witness.notifications.until(lambda _: count_of(witness, LIST_CHANGED) > seen)  # noqa: B023
                seen = count_of(witness, LIST_CHANGED)
                added = [name for name in await names(witness) if name not in before]
        return {"added": added}

    async def tasks(witness: Any) -> dict[str, Any]:
        # The SDK has no tasks. Rialto follows one for a modern client, and the server for a legacy one.
        return {"text": await witness.text("tasks__must" if witness.is_modern else "tasks__slow")}

    async def cancellation(witness: Any) -> dict[str, Any]:
        running = {"modern": anyio.Event(), "python": anyio.Event()}
        outcomes = {"modern": "cancelled", "python": "cancelled"}
        scopes: dict[str, anyio.CancelScope] = {}
        requests: dict[str, Any] = {}

        async def endless(member: str) -> None:
            async def on_progress(_done: float, _total: float | None, _message: str | None) -> None:
                running[member].set()

            with anyio.CancelScope() as scope:
                scopes[member] = scope
                requests[member] = sdk.next_request_id(witness.peer)
                outcomes[member] = await witness.outcome(
                    f"{member}__count", ENDLESS, progress_callback=on_progress
                )

        async def cancelled(member: str) -> int:
            return json.loads(await witness.text(f"{member}__whoami"))["cancelled"]

        async def cancel(member: str) -> None:
            await sdk.tell_cancelled(witness.peer, requests[member])
            scopes[member].cancel()

        async with anyio.create_task_group() as tasks:
            for member in running:
                tasks.start_soon(endless, member)
                await running[member].wait()
            await cancel("python")
            counted = 0
            # The notification has a connection of its own, so it may reach the server after the first question.
            while counted == 0:
                counted = await cancelled("python")
            others = await cancelled("modern")
            await cancel("modern")
        return {
            "ended": outcomes["python"],
            "cancelled": counted,
            "others": others,
            "other": outcomes["modern"],
        }

    return [
        all_members,
        listing,
        calls,
        prompts_and_completion,
        resources,
        progress,
        elicitation,
        sampling,
        roots,
        subscriptions,
        logging,
        list_changed,
        tasks,
        cancellation,
    ]
