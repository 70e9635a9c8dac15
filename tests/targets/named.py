"""Threads with names of their own, which stay until the end."""

import threading

from ready import done, ready


def wait(begun, end):
    begun.set()
    end.wait()


ready()
end = threading.Event()
threads = []
for name in ("first", "second", "gr\u00fc\u00dfe"):
    begun = threading.Event()
    threads.append(threading.Thread(target=wait, args=(begun, end), name=name))
    threads[-1].start()
    begun.wait()
threads[1].name = "renamed"
done(calls={})
end.set()
for thread in threads:
    thread.join()
