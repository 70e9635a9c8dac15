"""Tasks of asyncio that wait for locks and semaphores which other tasks have; what is so is written as JSON: by name what a task waits for, and who has it."""

import asyncio
import json
import sys


class Shop:
    def __init__(self):
        self.lock, self.other, self.left = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self.slots = asyncio.Semaphore(2)
        self.cond = asyncio.Condition()


async def holds(shop):
    async with shop.lock:
        await asyncio.sleep(1000)


async def waits_with(shop):
    async with shop.lock:
        pass


async def waits_acquire(shop):
    await shop.lock.acquire()


async def slot(shop):
    async with shop.slots:
        await asyncio.sleep(1000)


async def lets_go(shop):
    async with shop.cond:
        await shop.cond.wait()


async def holds_condition(shop):
    async with shop.cond:
        await asyncio.sleep(1000)


async def waits_condition(shop):
    async with shop.cond:
        pass


async def takes_left(shop):
    await shop.left.acquire()


async def waits_left(shop):
    async with shop.left:
        pass


async def both(first, second):
    async with first:
        await asyncio.sleep(0.1)
        async with second:
            pass


async def twice(lock):
    async with lock:
        async with lock:
            pass


async def timed(first, second):
    async with first:
        await asyncio.sleep(0.1)
        if hasattr(asyncio, "timeout"):
            async with asyncio.timeout(1000):
                async with second:
                    pass
        else:
            await asyncio.wait_for(second.acquire(), 1000)


async def awaits(tasks, name):
    await asyncio.sleep(0.1)
    await asyncio.gather(tasks[name], asyncio.sleep(1000))


WAITS = {
    "waits_with": ["lock", "shop.lock", ["holds"]],
    "waits_acquire": ["lock", "shop.lock", ["holds"]],
    "slot 3": ["semaphore", "shop.slots", ["slot 1", "slot 2"]],
    "waits_condition": ["lock", "shop.cond", ["holds_condition"]],
    "waits_left": ["lock", "shop.left", []],
    "first": ["lock", "second", ["second"]],
    "second": ["lock", "second", ["first"]],
    "twice": ["lock", "lock", ["twice"]],
    "within": ["lock", "second", ["timed"]],
}
DEADLOCKS = [["first", "second"], ["twice"], ["one", "two"]]


async def main():
    loop, shop, tasks = asyncio.get_running_loop(), Shop(), {}
    a, b, c, d = (asyncio.Lock() for _ in range(4))
    for name, coroutine in (
        ("holds", holds(shop)),
        ("waits_with", waits_with(shop)),
        ("waits_acquire", waits_acquire(shop)),
        *((f"slot {number}", slot(shop)) for number in (1, 2, 3)),
        ("lets_go", lets_go(shop)),
        ("holds_condition", holds_condition(shop)),
        ("waits_condition", waits_condition(shop)),
        ("takes_left", takes_left(shop)),
        ("waits_left", waits_left(shop)),
        ("first", both(a, b)),
        ("second", both(b, a)),
        ("twice", twice(asyncio.Lock())),
        ("timed", timed(c, d)),
        ("within", both(d, c)),
        ("one", awaits(tasks, "two")),
        ("two", awaits(tasks, "one")),
    ):
        tasks[name] = loop.create_task(coroutine, name=name)
    await asyncio.sleep(0.5)
    timed_waits = {"timed": ["lock", "second", ["within"]]} if hasattr(asyncio, "timeout") else {}
    print(json.dumps({"waits": {**WAITS, **timed_waits}, "deadlocks": DEADLOCKS}), flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)


asyncio.run(main())
