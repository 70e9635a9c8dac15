"""An event loop that one coroutine holds now and then: python3 loop.py [SECONDS]."""

import asyncio
import hashlib
import sys
import time


def checksum(block: bytes) -> str:
    return hashlib.pbkdf2_hmac("sha256", block, b"salt", 100_000).hex()  # tens of milliseconds, and nothing in it awaits


async def upload(number: int) -> str:
    await asyncio.sleep(0.05)
    return checksum(str(number).encode())


async def heartbeat() -> None:
    while True:
        await asyncio.sleep(0.01)


async def main(seconds: float) -> None:
    beating = asyncio.create_task(heartbeat(), name="heartbeat")
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        await asyncio.gather(*(upload(number + i) for i in range(3)))
        number += 3
        await asyncio.sleep(0.1)
    beating.cancel()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1] if sys.argv[1:] else 3)))
