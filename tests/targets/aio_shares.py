"""Tasks whose time on a core is known: each kind measures its own, through what it awaits, calls and iterates."""
import asyncio
import random
import sys
import time

from ready import done, ready, seconds

CLOCK = time.thread_time_ns
SPENT = {}
NAMES = {"direct": "plain", "nested": "n\u00e4chste", "awaiting": "\u5f85\u3064 %s" % ("x" * 100), "iterating": "\U0001f600"}  # the others: Task-N
TASKS = {}


def work(n):
    return sum(range(n))


def spend(name, n):
    began = CLOCK()
    work(n)
    SPENT[name] = SPENT.get(name, 0) + CLOCK() - began


class Turn:
    """Works, and lets the others run, as what is no coroutine."""

    def __init__(self, name, n):
        self.name, self.n = name, n

    def __await__(self):
        spend(self.name, self.n)
        yield


async def helper(name, n):
    spend(name, n)
    await asyncio.sleep(0)


async def values(name, n):
    for _ in range(3):
        spend(name, n)
        yield await helper(name, n)


async def direct(end):
    while time.monotonic() < end:
        spend("direct", random.randrange(20_000, 40_000))
        await asyncio.sleep(0)


async def nested(end):
    while time.monotonic() < end:
        await helper("nested", random.randrange(40_000, 80_000))


async def awaiting(end):
    while time.monotonic() < end:
        await Turn("awaiting", random.randrange(60_000, 120_000))


async def iterating(end):
    while time.monotonic() < end:
        async for _ in values("iterating", random.randrange(10_000, 20_000)):
            pass


async def eager(n):
    spend("eager", n)


async def beginning(end):
    while time.monotonic() < end:
        spend("beginning", 20_000)
        if sys.version_info >= (3, 12):
            await asyncio.eager_task_factory(asyncio.get_running_loop(), eager(40_000))
        else:
            await asyncio.ensure_future(eager(40_000))
        await asyncio.sleep(0)


async def everything(end):
    loop = asyncio.get_running_loop()
    turn = loop.call_soon

    def called():  # in no task
        spend("called", 30_000)
        if time.monotonic() < end:
            turn(called)

    turn(called)
    for kind in (direct, nested, awaiting, iterating, beginning):
        TASKS[kind.__name__] = loop.create_task(kind(end))
        if kind.__name__ in NAMES:
            TASKS[kind.__name__].set_name(NAMES[kind.__name__])
    await asyncio.gather(*TASKS.values())


if __name__ == "__main__":
    random.seed(1)
    ready()
    asyncio.run(everything(time.monotonic() + seconds(3)))
    done(spent=SPENT, names={kind: task.get_name() for kind, task in TASKS.items()})
