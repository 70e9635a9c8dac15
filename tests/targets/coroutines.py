"""Coroutines, driven by hand and by asyncio: every send is an entry."""
import asyncio

from ready import done, ready


class Pause:
    def __await__(self):
        yield
        yield


async def leaf():
    await Pause()
    return 1


async def branch():
    return await leaf() + await leaf()


async def numbers():
    for number in range(5):
        yield number
        await asyncio.sleep(0)


async def consume():
    return sum([number async for number in numbers()])


async def worker(rounds):
    for _ in range(rounds):
        await asyncio.sleep(0)


async def fails():
    await asyncio.sleep(0)
    raise ValueError


async def everything():
    await asyncio.gather(*[worker(7) for _ in range(11)])
    try:
        await fails()
    except ValueError:
        pass
    task = asyncio.ensure_future(worker(1000))
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    return await consume()


def by_hand():
    coroutine = branch()
    sends = 0
    try:
        while True:
            coroutine.send(None)
            sends += 1
    except StopIteration as stop:
        assert stop.value == 2
    return sends


if __name__ == "__main__":
    ready()
    sends = [by_hand() for _ in range(13)]
    assert sends == [4] * 13
    assert asyncio.run(everything()) == 10
    # A leaf is entered 3 times (start, 2 resumes), a branch 5 times.
    done(calls={"by_hand": 13, "branch": 13 * 5, "leaf": 13 * 6, "__await__": 13 * 6})
