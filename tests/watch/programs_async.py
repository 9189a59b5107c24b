"""The one of `programs.py` with an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


def asynchronous() -> Any:
    log: list[Any] = []

    class Ticker:
        def __init__(self) -> None:
            self.n = 0

        def __aiter__(self) -> Ticker:
            return self

        async def __anext__(self) -> int:
            self.n += 1
            if self.n > 3:
                raise StopAsyncIteration
            await asyncio.sleep(0)
            return self.n

        async def __aenter__(self) -> int:
            return 7

        async def __aexit__(self, *args: Any) -> bool:
            log.append(args[0])
            return True

    async def numbers() -> Any:
        for i in range(3):
            yield i
            await asyncio.sleep(0)

    async def main() -> Any:
        async for i in Ticker():
            log.append(i)
        async with Ticker() as value:
            log.append(value)
            raise ValueError
        log.append([x async for x in numbers() if x])
        log.append(await asyncio.gather(*(one(i) for i in range(3))))
        return "done"

    async def one(i: int) -> int:
        await asyncio.sleep(0)
        return i * i

    return asyncio.run(main()), log
