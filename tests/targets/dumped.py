"""Threads that each wait for something of their own, after "ready"; what faulthandler says of them goes to the file named, at each line of standard input."""

import faulthandler
import os
import select
import socket
import subprocess
import sys
import threading
import time

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen()
connection = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[2])
server.listen()
reads, writes = os.pipe()
others, ours = os.pipe()
holder = subprocess.Popen(["sleep", "1000"], stdout=ours)
os.close(ours)
lock = threading.Lock()
lock.acquire()
poll = select.poll()
for each in (connection.fileno(), reads):
    poll.register(each, select.POLLIN)
epoll = select.epoll()
epoll.register(connection.fileno(), select.EPOLLIN)


def waits_lock():
    lock.acquire()


def reads_tcp():
    connection.recv(1)


def accepts_tcp():
    listening._accept()


def accepts_unix():
    server._accept()


def polls():
    poll.poll()


def epolls():
    epoll.poll()


def selects():
    select.select([reads], [], [])


def waits_child():
    os.waitpid(holder.pid, 0)


def reads_pipe():
    os.read(others, 1)


def sleeps():
    time.sleep(1000)


WAITING = (waits_lock, reads_tcp, accepts_tcp, accepts_unix, polls, epolls, selects, waits_child, reads_pipe, sleeps)
for function in WAITING:
    threading.Thread(target=function, name=function.__name__, daemon=True).start()
tasks = "/proc/self/task"


def all_wait():
    states = [open(f"{tasks}/{tid}/stat").read().rpartition(")")[2].split()[0] for tid in os.listdir(tasks) if int(tid) != os.getpid()]
    return len(states) == len(WAITING) and set(states) == {"S"}


while not all_wait():
    time.sleep(0.01)
print(listening.getsockname()[1], connection.getsockname()[1], holder.pid, flush=True)
for _ in sys.stdin:
    with open(sys.argv[1], "w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    print("written", flush=True)
holder.kill()
