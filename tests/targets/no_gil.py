"""Threads that call as fast as they can at the same time, the same functions and new ones: code objects that come and go."""
import sys
import threading

from ready import done, ready, words


def leaf(number):
    return number + 1


def shared(number):
    return leaf(leaf(number))


def numbers(rounds):
    for number in range(rounds):
        yield shared(number)


def fails(number):
    raise ValueError(number)


def makes(thread, number):
    """A function of this thread's, whose code object dies at once."""
    space = {}
    exec(compile("def made():\n return 1\nmade()", "<made %d>" % (thread * 100000 + number), "exec"), space)


def work(thread, rounds):
    for number in numbers(rounds):
        if number % 8 == 0:
            try:
                fails(number)
            except ValueError:
                pass
        if number % 64 == 0:
            makes(thread, number)


def waits(together, thread, rounds):
    together.wait()
    work(thread, rounds)


if __name__ == "__main__":
    threads, rounds = [int(word) for word in words()[:2]] or (4, 8000)
    together = threading.Barrier(threads)
    ready()
    running = [threading.Thread(target=waits, args=(together, thread, rounds)) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    failing, making = (rounds + 1) // 8, (rounds + 1) // 64  # shared(number) is number + 2
    done(
        gil=getattr(sys, "_is_gil_enabled", lambda: True)(),
        calls={"waits": threads, "work": threads, "numbers": threads * (rounds + 1), "shared": threads * rounds, "leaf": 2 * threads * rounds,
               "fails": threads * failing, "makes": threads * making, "made": threads * making},
    )
