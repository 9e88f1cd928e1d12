"""What a client saw, in order."""

from collections.abc import Callable
from typing import Any

import anyio


class Sightings:
    """A list that can be waited on: `until` returns the first item that fits, past or future."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._added = anyio.Event()

    def add(self, item: Any) -> None:
        self.items.append(item)
        self._added.set()
        self._added = anyio.Event()

    async def until(self, fits: Callable[[Any], bool]) -> Any:
        looked = 0
        while True:
            added = self._added
            for item in self.items[looked:]:
                looked += 1
                if fits(item):
                    return item
            await added.wait()
