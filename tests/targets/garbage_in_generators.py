"""Garbage is collected within a generator, a coroutine and an asynchronous generator, at a place where objects that were on its stack are freed.

Under PYTHONMALLOC=debug a collector that reads one of them ends by SIGSEGV.
"""
import asyncio
import gc

from ready import done, line_on_stdin, ready


def generator():
    for a in iter([1]):
        for b in iter([1]):
            for c in iter([1]):
                for d in iter([1]):
                    yield a + b + c + d
    done(within="generator")
    line_on_stdin()
    gc.collect()
    yield 2


async def asynchronous():
    for a in iter([1]):
        for b in iter([1]):
            for c in iter([1]):
                for d in iter([1]):
                    yield a + b + c + d
    gc.collect()
    yield 2


async def coroutine():
    for _ in iter([1]):
        for _ in iter([1]):
            for _ in iter([1]):
                for _ in iter([1]):
                    await asyncio.sleep(0)
    gc.collect()
    return [item async for item in asynchronous()]


ready()
for _ in range(2):
    items = list(generator())
done(items=items, awaited=asyncio.run(coroutine()))
