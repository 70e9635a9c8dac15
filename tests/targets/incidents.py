"""Works evenly until a word on stdin asks for an incident: slow, hang, raise, fight, hold, end."""
import asyncio
import os
import sys
import threading
import time

from ready import ready

QUICK, SLOW = 0.002, 0.6


def handle(seconds):
    time.sleep(seconds)


def fail():
    raise KeyError("incident")


def compute(end):
    while time.monotonic() < end:
        pass


def fight():
    fighters = [threading.Thread(target=compute, args=(time.monotonic() + 3.0,), name="fighter") for _ in range(3)]
    for fighter in fighters:
        fighter.start()
    for fighter in fighters:
        fighter.join()


async def answer():
    await asyncio.sleep(QUICK)


async def hold():
    time.sleep(SLOW)


async def wait_long():
    await asyncio.sleep(SLOW)


async def serve(*incidents):
    for incident in incidents:
        await answer()
        await asyncio.ensure_future(incident())


def incident(word):
    if word in ("slow", "hang"):
        handle(SLOW if word == "slow" else 3600)
    elif word == "raise":
        try:
            fail()
        except KeyError:
            pass
    elif word == "fight":
        fight()
    elif word == "hold":
        asyncio.run(serve(answer, hold, answer))
    elif word == "await":
        asyncio.run(serve(answer, wait_long, answer))


def listen(words):
    while True:
        read = os.read(0, 100).decode()
        words.extend(read.split() if read else ["end"])
        if not read:
            return


def main():
    words = []
    threading.Thread(target=listen, args=(words,), daemon=True).start()
    while not words or words[0] != "end":
        handle(QUICK)
        if words:
            word = words.pop(0)
            incident(word)
            print("did " + word, flush=True)
        time.sleep(QUICK)


ready()
main()
