"""Make a picture (SVG) of the live view: scripts/picture_top.py FILE.svg PICTURE [--columns N] [--rows N] [--light] [--keys t s ...]

PICTURE is a file with a line of JSON, as the view is sent one; with --watch PID it is written first, after some seconds.

docs/top.svg is of the demo's service: /usr/bin/python3 scripts/demo/orders.py 60 & scripts/picture_top.py docs/top.svg .build/top.json --watch $! --columns 100 --rows 22
"""

import argparse
import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from pytrace_ebpf.cli import top
from pytrace_ebpf.trace.snapshot import Snapshot, decode, encode
from pytrace_ebpf.view.top.app import Top
from pytrace_ebpf.view.top.feed import Connection, News

FONT = "'DejaVu Sans Mono', Menlo, Consolas, monospace"


class Still:
    """A source of which nothing more comes."""

    def start(self, deliver: Callable[[News], None]) -> None: ...
    def save(self, pids: Sequence[int], seconds: int, directory: str) -> None: ...
    def close(self) -> None: ...


def watched(pid: int, seconds: float) -> Snapshot:
    """The picture of a process once its window is full."""
    connection, child = top._start({"pids": [pid], "match": None, "hz": 99.0, "last_s": seconds, "follow": True})
    try:
        return next(news for news in Connection(connection)._news() if isinstance(news, Snapshot) and news.facts.seconds_ns >= seconds * 1e9)
    finally:
        connection.close()
        child.wait()


async def drawn(snapshot: Snapshot, columns: int, rows: int, light: bool, keys: Sequence[str]) -> str:
    """The SVG, with no font from elsewhere."""
    app = Top(Still(), snapshot)
    async with app.run_test(size=(columns, rows)) as pilot:
        app.theme = "textual-light" if light else "textual-dark"
        await pilot.press(*keys)
        await pilot.pause()
        svg = app.export_screenshot(title="")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: Fira Code, monospace", f"font-family: {FONT}", svg)
    return re.sub(r"\s+class=\"rich-terminal\"| <!-- Generated with .*? -->", "", svg)


def main() -> None:
    """Write the picture."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("picture", type=Path)
    arguments.add_argument("--watch", type=int, metavar="PID")
    arguments.add_argument("--columns", type=int, default=100)
    arguments.add_argument("--rows", type=int, default=24)
    arguments.add_argument("--light", action="store_true", help="on a light background")
    arguments.add_argument("--keys", nargs="*", default=[])
    args = arguments.parse_args()
    if args.watch:
        args.picture.parent.mkdir(exist_ok=True)
        args.picture.write_text(encode(watched(args.watch, 10)))
    args.file.write_text(asyncio.run(drawn(decode(args.picture.read_text()), args.columns, args.rows, args.light, args.keys)))


if __name__ == "__main__":
    main()
