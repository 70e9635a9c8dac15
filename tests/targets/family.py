"""Children of every kind that there is, and what each found in its environment."""
import multiprocessing
import os
import subprocess
import sys

from ready import done, ready, words


def step():
    pass


def steps(rounds):
    for _ in range(rounds):
        step()


def worker(rounds, answers):
    steps(rounds)
    answers.put(os.getpid())


def by_multiprocessing(method, rounds):
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=worker, args=(rounds, answers))
    process.start()
    pid = answers.get()
    process.join()
    return {pid: rounds}


def by_subprocess(rounds):
    child = subprocess.Popen([sys.executable, os.path.abspath(__file__), "child", str(rounds)])
    child.wait()
    return {child.pid: rounds}


def by_fork(rounds):
    pid = os.fork()
    if pid == 0:
        steps(rounds)
        os._exit(0)
    os.waitpid(pid, 0)
    return {pid: rounds}


def main():
    ready()
    preload = os.environ.get("LD_PRELOAD", "")
    steps(11)
    found = {os.getpid(): 11}
    found.update(by_multiprocessing("fork", 13))
    found.update(by_multiprocessing("spawn", 17))
    found.update(by_subprocess(19))
    found.update(by_fork(23))
    shell = subprocess.run(["/bin/sh", "-c", "echo $LD_PRELOAD; grep -c agent.so /proc/$$/maps"], stdout=subprocess.PIPE)
    bare = subprocess.run(["/bin/cat", "/proc/self/environ"], env={}, stdout=subprocess.PIPE).stdout
    done(steps=found, preload=preload, shell=shell.stdout.decode().split(), bare=bare.decode())


if __name__ == "__main__":
    if words()[:1] == ["child"]:
        steps(int(words()[1]))
    else:
        main()
