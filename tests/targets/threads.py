"""Threads with known calls, some of them alive before the work begins."""
import threading

from ready import done, ready, words


def leaf(number):
    return number + 1


def middle(number):
    return leaf(leaf(number))


def work(rounds):
    for number in range(rounds):
        middle(number)


def waits(go, rounds):
    go.wait()
    work(rounds)


if __name__ == "__main__":
    threads, rounds = [int(word) for word in words()[:2]] or (5, 101)
    go = threading.Event()
    early = [threading.Thread(target=waits, args=(go, rounds)) for _ in range(threads)]
    for thread in early:
        thread.start()
    ready()
    late = [threading.Thread(target=work, args=(rounds,)) for _ in range(threads)]
    for thread in late:
        thread.start()
    go.set()
    for thread in early + late:
        thread.join()
    # `waits` was entered before the work began: it is open at the start of a trace by attach.
    done(threads=2 * threads, calls={"work": 2 * threads, "middle": 2 * threads * rounds, "leaf": 4 * threads * rounds})
