"""A Python client of which one call fails: `python failures.py CLIENT URL SCENARIO`.

CLIENT is a name of `callers.py`; URL is Rialto in front of the stub server. Prints one JSON line with what the client
observed. A client that is ended by the failure of one call ends this script with 1 and its error on stderr.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable
from typing import Any

from callers import CLIENTS, Caller, caller_and_neighbour

DEADLINE_SECONDS = 60


async def failure_of(call: Awaitable[str]) -> dict[str, Any]:
    """Returns what the client raised for one call. A cancelled scope is no error of a call and is passed on."""
    try:
        text = await call
    except Exception as error:
        # Some clients wrap the error of the SDK.
        while not hasattr(error, "error") and error.__cause__ is not None:
            error = error.__cause__
        details = getattr(error, "error", None)
        data = getattr(details, "data", None) or {}
        return {
            "type": type(error).__name__,
            "code": getattr(details, "code", None),
            "reason": data.get("reason"),
            "message": str(error),
        }
    raise AssertionError(f"the call was answered with {text[:100]!r}")


async def held(call: Caller, neighbour: Caller) -> asyncio.Task[str]:
    """Returns a call that the server has begun and does not answer before `release`."""
    task = asyncio.create_task(neighbour("hold", {"marker": "neighbour", "every_ms": 250}, True))
    await call("wait_held", {"marker": "begun", "held": "neighbour"}, False)
    return task


async def beside(call: Caller, neighbour: Caller, tool: str, **arguments: Any) -> dict[str, Any]:
    """One call fails while another is in flight."""
    task = await held(call, neighbour)
    failure = await failure_of(call(tool, {"marker": "failing", **arguments}, False))
    return {
        "failure": failure,
        "next": await call("release", {"marker": "next"}, False),
        "neighbour": await task,
    }


async def oversized(call: Caller, neighbour: Caller) -> dict[str, Any]:
    return await beside(call, neighbour, "big", bytes=200_000)


async def timeout(call: Caller, neighbour: Caller) -> dict[str, Any]:
    return await beside(call, neighbour, "never")


async def crash(call: Caller, neighbour: Caller) -> dict[str, Any]:
    """Both calls were with the process that ended, so each gets its own error. Later calls are answered."""
    task = await held(call, neighbour)
    failure = await failure_of(call("exit", {"marker": "failing", "code": 3}, False))
    neighbours = await failure_of(task)
    after = [call("echo", {"marker": marker}, False) for marker in ("next", "and the one beside it")]
    return {"failure": failure, "neighbour": neighbours, "next": await asyncio.gather(*after)}


async def unavailable(call: Caller, _neighbour: Caller) -> dict[str, Any]:
    """Four crashes use up all restarts. Later calls are refused one by one."""
    crashes = [await failure_of(call("exit", {"marker": f"crash {number}"}, False)) for number in range(4)]
    refused = [call("echo", {"marker": f"refused {number}"}, False) for number in range(2)]
    return {"crashes": crashes, "refused": [await failure_of(call) for call in refused]}


async def plain_call(call: Caller, _neighbour: Caller) -> dict[str, Any]:
    return {"next": await call("echo", {"marker": "next"}, False)}


SCENARIOS = {scenario.__name__: scenario for scenario in (oversized, timeout, crash, unavailable, plain_call)}


async def connect_fails(client: str, url: str) -> dict[str, Any]:
    """The server cannot be had, so that connecting fails. Returns what the client shows of it."""
    try:
        async with CLIENTS[client](url):
            pass
    except BaseException as error:
        return {"message": "\n".join(messages_of(error))}
    raise AssertionError("the client has connected")


def messages_of(error: BaseException) -> list[str]:
    """Returns what a user sees of an error: its own message, and those of the errors in a group."""
    nested = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [str(error), *(message for inner in nested for message in messages_of(inner))]


async def main() -> None:
    client, url, scenario = sys.argv[1:4]
    if scenario == "connect_fails":
        async with asyncio.timeout(DEADLINE_SECONDS):
            print(json.dumps(await connect_fails(client, url)), flush=True)
        return
    async with asyncio.timeout(DEADLINE_SECONDS), caller_and_neighbour(CLIENTS[client], url) as (call, neighbour):
        seen = await SCENARIOS[scenario](call, neighbour)
        print(json.dumps(seen), flush=True)


try:
    asyncio.run(main())
except BaseException:
    traceback.print_exc()
    sys.exit(1)
