"""Takes the names of a Python's instructions into trace/opcodes.json: `scripts/opcodes.py COMMAND...`, one for each version.

A command is an interpreter's path, or words in quotes that start one.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).parents[1] / "pytrace_ebpf/trace/opcodes.json"
# dis._all_opmap: with the specialized ones, from 3.11 on.
SAYS = """
import dis, json, opcode, sys
names = getattr(dis, "_all_opmap", dis.opmap)
generic = {special: name for name, specials in getattr(opcode, "_specializations", {}).items() for special in specials}
numbers = {number: name for name, number in names.items() if number < 256}
print(json.dumps(["%d.%d" % sys.version_info[:2], numbers, {name: generic[name] for name in numbers.values() if name in generic}]))
"""


def main() -> None:
    """Replace what the table has of these versions."""
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for command in sys.argv[1:]:
        said = subprocess.run([*shlex.split(command), "-c", SAYS], capture_output=True, text=True, check=True).stdout
        version, names, generic = json.loads(said)
        table[version] = {"names": names, "generic": generic}
    versions = sorted(table, key=lambda version: int(version.split(".")[1]))
    lines = [f"{json.dumps(version)}: {json.dumps(table[version], separators=(',', ':'))}" for version in versions]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
