#!/bin/bash
# Build probes/agent/agent.so, the library that traces a Python from inside; nothing to do where it is younger than its sources.
set -euo pipefail
cd "$(dirname "$0")/../probes/agent"

# Of the folder itself it is never younger: putting it there changes that.
[ -e agent.so ] && [ -z "$(find . ../events.h ../../scripts/build-agent.sh -type f -newer agent.so)" ] && exit 0
trap 'rm -f agent.so.new' EXIT

# -z lazy: a function that an old C library keeps elsewhere is looked for when it is called, not when a program that
# is no Python is started with the library preloaded.
${CC:-gcc} -std=gnu11 -O2 -flto -g0 -Wall -Wextra -fPIC -fvisibility=hidden -shared -Wl,-z,lazy -Wl,-soname,agent.so \
    -o agent.so.new ./*.c
newest=$(objdump -T agent.so.new | grep -o 'GLIBC_2[0-9.]*' | sort -uV | tail -1)
if [ "$(printf '%s\nGLIBC_2.17\n' "$newest" | sort -V | tail -1)" != GLIBC_2.17 ]; then
    echo "agent.so needs $newest, and the oldest C library that it shall load on has GLIBC_2.17:" >&2
    objdump -T agent.so.new | grep "$newest" >&2
    exit 1
fi
mv agent.so.new agent.so
