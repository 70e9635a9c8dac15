"""Two threads that call in bursts until a line comes: little to trace by an agent, much by probes. How often they did is what they say."""
import threading
import time

from ready import done, line_on_stdin, ready

CALLS = 500  # of a burst


def leaf():
    pass


def burst():
    for _ in range(CALLS):
        leaf()


def work(stop, made):
    bursts = 0
    while not stop:
        burst()
        bursts += 1
        time.sleep(0.01)
    made.append(bursts)


def main():
    stop, made = [], []
    threads = [threading.Thread(target=work, args=(stop, made)) for _ in range(2)]
    for thread in threads:
        thread.start()
    line_on_stdin()
    stop.append(True)
    for thread in threads:
        thread.join()
    done(calls={"leaf": CALLS * sum(made), "burst": sum(made)})


ready()
main()
