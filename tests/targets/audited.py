"""Threads that come and go, beside an audit hook that lets them run whenever a profile or trace function is set; it ends with 3 where one did not do its work."""

import os
import sys
import threading
import time

SETS = {"sys.setprofile", "sys.settrace"}
AT_A_TIME = 10


def hook(event: str, args: "tuple[object, ...]") -> None:
    if event in SETS:
        time.sleep(0.002)


def work(done: "list[int]") -> None:
    done.append(sum(range(100)))
    time.sleep(0.0005)


def come_and_go() -> None:
    while True:
        done: "list[int]" = []
        threads = [threading.Thread(target=work, args=(done,)) for _ in range(AT_A_TIME)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(done) != AT_A_TIME:
            os._exit(3)
        time.sleep(0.03)


if __name__ == "__main__":
    sys.addaudithook(hook)
    for _ in range(10):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    for _ in range(3):
        threading.Thread(target=come_and_go, daemon=True).start()
    print("ready", flush=True)
    input()
    print("done", flush=True)
