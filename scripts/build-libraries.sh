#!/bin/bash
# Build what is compiled: pytrace_ebpf/rebuild/rebuild.so, which rebuilds calls, and on Linux on x86-64 probes/agent/agent.so, which traces
# a Python from inside, and probes/outside/outside.so, which samples one from outside. Nothing to do where they are younger than their sources.
set -euo pipefail
cd "$(dirname "$0")/.."

SCRIPT=$PWD/scripts/build-libraries.sh

# Whether a library is missing or older than one of its sources. Of the folder itself it is never younger: putting it there changes that.
stale() {
    local library=$1
    shift
    [ ! -e "$library" ] || [ -n "$(find "$@" "$SCRIPT" -type f ! -name "*.py*" -newer "$library")" ]
}

# build LIBRARY FLAGS...: compile all C of its folder, linked in one part: the old names that probes/agent/build.h gives hold for all of it.
build() {
    local library=$1 folder
    shift
    folder=$(dirname "$library")
    trap 'rm -f "$library.new"' RETURN
    ${CC:-gcc} -std=gnu11 -O2 -flto -flto-partition=one -g0 -Wall -Wextra -fPIC -fvisibility=hidden -shared "$@" -o "$library.new" "$folder"/*.c || return
    if [ "$(uname -s)" = Linux ] && ! loads_everywhere "$library.new"; then return 1; fi
    mv "$library.new" "$library"
}

loads_everywhere() {
    local newest
    newest=$(${OBJDUMP:-objdump} -T "$1" | grep -o 'GLIBC_2[0-9.]*' | sort -uV | tail -1)
    [ "$(printf '%s\nGLIBC_2.17\n' "$newest" | sort -V | tail -1)" = GLIBC_2.17 ] && return
    echo "$1 needs $newest, and the oldest C library that it shall load on has GLIBC_2.17:" >&2
    ${OBJDUMP:-objdump} -T "$1" | grep "$newest" >&2
    return 1
}

# Whether what the compiler makes is for a machine that can record, which need not be this one.
traces() {
    local machine
    machine=$(${CC:-gcc} -dumpmachine 2>/dev/null) || machine=$(uname -m)-$(uname -s)
    [[ $machine = x86_64-*[Ll]inux* ]]
}

# -fwrapv: sums of whatever a trace holds may overflow. -ffp-contract=off: the same estimates on every machine.
if stale pytrace_ebpf/rebuild/rebuild.so pytrace_ebpf/rebuild probes/agent/agent.h probes/events.h probes/text.h probes/unwind.h; then
    build pytrace_ebpf/rebuild/rebuild.so -O3 -fwrapv -ffp-contract=off
fi
# -z lazy: a function that an old C library keeps elsewhere is looked for when it is called, not when a program that
# is no Python is started with the library preloaded.
if traces && stale probes/agent/agent.so probes/agent probes/events.h probes/text.h probes/cpython_offsets.h; then
    build probes/agent/agent.so -Wl,-z,lazy -Wl,-soname,agent.so
fi
if traces && stale probes/outside/outside.so probes/outside; then
    build probes/outside/outside.so
fi
