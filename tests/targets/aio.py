"""Coroutines that count themselves: tasks, resumes, and how long each was away, by the program's own clock."""
import asyncio
import sys
import time

from ready import done, ready

away = {}  # name -> seconds between its pauses' beginnings and ends
times = {}  # name -> resumes


class Pause:
    """Awaits a future as a coroutine does, and counts."""

    def __init__(self, name, seconds):
        self.name, self.seconds = name, seconds

    def __await__(self):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(self.seconds, future.set_result, None)
        begin = time.perf_counter()
        try:
            yield from future
        finally:
            away[self.name] = away.get(self.name, 0.0) + time.perf_counter() - begin
            times[self.name] = times.get(self.name, 0) + 1


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def leaf(name):
    await Pause("leaf", 0.02)
    return name


async def worker(rounds):
    for _ in range(rounds):
        await Pause("worker", 0.01)


async def nested():
    spin(0.005)
    return [await leaf(1), await leaf(2)]


async def hog():
    await Pause("hog", 0.01)
    spin(0.06)  # holds the loop


async def at_once():
    return 1


async def numbers(count):
    for number in range(count):
        await Pause("numbers", 0.005)
        yield number


async def consume():
    return [number async for number in numbers(6)]


async def forever():
    await Pause("forever", 1000)


async def fails():
    await Pause("fails", 0.005)
    raise ValueError


async def cancelled():
    new, old = asyncio.ensure_future(forever()), asyncio.ensure_future(forever())
    new.cancel()  # before its first step
    await asyncio.sleep(0)
    old.cancel()
    return await asyncio.gather(new, old, return_exceptions=True)


async def everything():
    await asyncio.gather(*[worker(7) for _ in range(11)])
    await asyncio.gather(nested(), nested(), hog(), consume(), at_once(), fails(), return_exceptions=True)
    await asyncio.wait_for(leaf(3), 5)
    await cancelled()
    if sys.version_info >= (3, 11):
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(worker(2))
    else:
        await asyncio.gather(*[worker(2) for _ in range(3)])
    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await asyncio.gather(asyncio.create_task(nested()), asyncio.create_task(at_once()))
    else:
        await asyncio.gather(nested(), at_once())


if __name__ == "__main__":
    ready()
    asyncio.run(everything())
    done(away=away, pauses=times)
