"""Calls tiny functions without end on two threads, in rounds of `hot.py CALLS` each, until a line comes on stdin; reports the rounds."""
import select
import threading

from ready import done, ready, words

CALLS = int(words()[0])
rounds = {"first": 0, "second": 0}
stop = []


def tiny(n):
    return n


def numbers(n):
    for number in range(n):
        yield number


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def within():
    return 1


def wrapped(function):
    return function()


def one_round():
    for number in numbers(CALLS):
        tiny(number)
    fib(12)
    for _ in range(CALLS):
        wrapped(len_of_nothing)
    wrapped(within)


def len_of_nothing():
    try:
        raise KeyError
    except KeyError:
        return 0


def work(name):
    while not stop:
        one_round()
        rounds[name] += 1


if __name__ == "__main__":
    ready()
    second = threading.Thread(target=work, args=("second",))
    second.start()
    while not select.select([0], [], [], 0)[0]:
        one_round()
        rounds["first"] += 1
    stop.append(True)
    second.join()
    done(rounds=rounds, calls={"one_round": sum(rounds.values()), "within": sum(rounds.values()), "work": 1})
