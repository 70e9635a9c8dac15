"""Threads that give a function objects which were made just before and are garbage right afterwards, while others make theirs of the same memory."""
import sys
import threading

from ready import done, ready

THREADS, ROUNDS = 4, 1000


def seen_given(number, text, fraction, many, made):
    return text


def work(first):
    for number in range(first, first + ROUNDS):
        made = type("Made%d" % (number % 7), (), {})()
        seen_given(number << 0, str(number) + ("", "é", "€")[number % 3] * (number % 5), number + 0.5, list(range(number % 50)), made)


ready()
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(10**6 * number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
done(calls=THREADS * ROUNDS)
