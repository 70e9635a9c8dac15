"""Three threads that never stop calling: attach to it at any moment."""
import threading

from ready import ready


def down(levels):
    return levels and down(levels - 1)


def forever():
    while True:
        down(29)


if __name__ == "__main__":
    for _ in range(2):
        threading.Thread(target=forever, daemon=True).start()
    ready()
    forever()
