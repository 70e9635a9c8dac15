"""What it costs to read what a client library is asked for: CPU time of a call of a function that has such a library's name, with each value of `--clients`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = "class Cursor:\n    def execute(self, query, params=None):\n        pass\n"
PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
from psycopg.cursor import Cursor
cursor, query = Cursor(), "UPDATE stock SET left_over = left_over - 1, changed = now() WHERE name = 'abc' AND warehouse = 'north' AND id = %s AND left_over > 0 RETURNING left_over"
def spent(n):
    began = time.process_time_ns()
    for _ in range(n):
        cursor.execute(query)
    return (time.process_time_ns() - began) / n
spent(1000)
print(min(spent(100_000) for _ in range(5)))
"""  # fmt: skip


def main() -> None:
    """Print nanoseconds a call: without the agent, then by turns."""
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "site-packages"
        (packages / "psycopg").mkdir(parents=True)
        (packages / "psycopg" / "cursor.py").write_text(LIBRARY)
        program = [sys.executable, "-c", PROGRAM, str(packages)]
        print(f"without the agent {ns(program):.0f} ns")
        least: dict[str, float] = {}
        for turn in range(3):
            for clients in ("none", "normalized", "raw"):
                record = [
                    sys.executable,
                    "-m",
                    "pytrace_ebpf",
                    "run",
                    "-q",
                    "-o",
                    f"{folder}/{turn}-{clients}",
                    "--source",
                    "agent",
                    "--clients",
                    clients,
                    "--",
                ]
                least[clients] = min(least.get(clients, 1e9), ns(record + program))
        for clients, cost in least.items():
            print(f"--clients {clients} {cost:.0f} ns, {cost - least['none']:.0f} of them for the statement")


def ns(words: list[str]) -> float:
    """What the program prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
