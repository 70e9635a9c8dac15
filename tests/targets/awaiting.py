"""Tasks of asyncio that wait in each way there is; what asyncio itself knows of them is written as JSON: names, functions and lines, innermost first."""

import asyncio
import json
import sys


async def leaf():
    await asyncio.sleep(1000)


async def middle():
    await leaf()


async def gets(queue):
    while True:
        await queue.get()


async def numbers():
    while True:
        await asyncio.sleep(1000)
        yield 1


async def iterates():
    async for _ in numbers():
        pass


async def awaits(task):
    await task


async def gathers():
    await asyncio.gather(middle(), middle())


async def many():
    await asyncio.gather(*(middle() for _ in range(10)))


async def locked(lock):
    async with lock:
        pass


async def future(one):
    await one


class Awaitable:
    def __await__(self):
        yield from asyncio.sleep(1000).__await__()


async def custom():
    await Awaitable()


async def ends():
    pass


async def never_begins():
    pass


class Own(asyncio.Task):
    pass


def chain(task):
    """(function, line), innermost first."""
    found, at = [], task.get_coro()
    while at is not None:
        for kind in ("cr", "gi", "ag"):
            if (frame := getattr(at, f"{kind}_frame", None)) is not None:
                found.append((frame.f_code.co_name, frame.f_lineno))
                at = getattr(at, f"{kind}_await", None) or getattr(at, "gi_yieldfrom", None)
                break
        else:
            return found[::-1]  # a future; or what says of itself nothing
    return found[::-1]


async def main():
    loop = asyncio.get_running_loop()
    lock = asyncio.Lock()
    await lock.acquire()
    coroutines = (middle(), gets(asyncio.Queue()), gathers(), many(), locked(lock), future(loop.create_future()), ends())
    tasks = [loop.create_task(each) for each in coroutines]
    tasks.append(loop.create_task(awaits(tasks[0])))
    tasks.append(Own(middle(), loop=loop))
    tasks.append(asyncio.tasks._PyTask(middle(), loop=loop))
    tasks[0].set_name("gr\u00fc\u00dfe")
    tasks[-1].set_name("in Python")
    unseen = [loop.create_task(iterates(), name="iterates"), loop.create_task(custom(), name="custom")]  # chain() ends early there
    if hasattr(asyncio, "eager_task_factory"):
        tasks.append(asyncio.Task(middle(), loop=loop, eager_start=True))
    await asyncio.sleep(0.1)
    tasks.append(loop.create_task(never_begins()))
    alive = {task for task in {*asyncio.all_tasks(), *tasks} if not task.done()}  # all_tasks() leaves out the one in Python from 3.14 on
    known = {task.get_name(): chain(task) for task in alive if task not in (*unseen, asyncio.current_task())}
    print(json.dumps(known), flush=True)
    sys.stdin.readline()


asyncio.run(main())
