"""The process that top.py starts: run by itself as `top_child.py FD PATH...`, PATH as in sys.path; what is wanted comes by the connection FD."""

import socket
import sys

if __name__ == "__main__":
    sys.path[:] = sys.argv[2:]

    from pytrace_ebpf.cli.watching import Watching

    Watching(socket.socket(fileno=int(sys.argv[1]))).run()
