"""Clients that ask and ask: load.py URL=CLIENTS ... Prints, for each line that it reads, how many answers each URL has had; ends with its input."""

import http.client
import sys
import threading
import time
import urllib.parse

ANSWERS = {}


def ask(url):
    parts = urllib.parse.urlsplit(url)
    while True:
        connection = http.client.HTTPConnection(parts.netloc)
        try:
            while True:
                connection.request("GET", parts.path)
                connection.getresponse().read()
                ANSWERS[url] += 1
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)


def main():
    for word in sys.argv[1:]:
        url, _, clients = word.partition("=")
        ANSWERS[url] = 0
        for _ in range(int(clients)):
            threading.Thread(target=ask, args=(url,), daemon=True).start()
    for _ in sys.stdin:
        print(*ANSWERS.values(), flush=True)


main()
