"""Make a picture (SVG) of what a command shows: scripts/picture.py FILE.svg [--columns N] [--light] [--rows N] -- report TRACE ...

docs/report.svg is of `make demo`'s recording: scripts/picture.py docs/report.svg --columns 104 --rows 36 -- report .build/demo --top 12
"""

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parents[1]
# rich's own has the frame of a window, and a font from elsewhere.
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def shown(words: list[str], columns: int) -> str:
    """What a terminal of so many columns is sent by this command."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": str(columns), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment |= {"COLORTERM": "truecolor", "PYTHONUTF8": "1"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "pytrace_ebpf", *words]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Write the picture."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--columns", type=int, default=100)
    arguments.add_argument("--rows", type=int, help="the first so many lines alone")
    arguments.add_argument("--light", action="store_true", help="on a light background")
    arguments.add_argument("command", nargs="+")
    args = arguments.parse_args()
    lines = shown(args.command, args.columns).splitlines()[: args.rows]
    console = Console(record=True, width=args.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False)
    for line in (f"$ pytrace-ebpf {' '.join(args.command)}", *lines):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ignore", crop=False)
    theme = DEFAULT_TERMINAL_THEME if args.light else DIMMED_MONOKAI
    args.file.write_text(console.export_svg(title="", theme=theme, code_format=FORMAT, unique_id="r"))


if __name__ == "__main__":
    main()
