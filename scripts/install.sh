#!/bin/bash
# Install pytrace-ebpf with its Python packages under $DESTDIR$PREFIX, with --daemon the daemon's systemd unit, or take all away with --remove.
#
# lib/pytrace-ebpf holds the packages, bin/pytrace-ebpf starts them with Debian's Python, share holds
# the manual page and what bash, zsh and fish complete commands with. No virtual
# environment, so that a tree staged in DESTDIR works where it is unpacked.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${DESTDIR:-}${PREFIX:=/usr/local}/bin
lib=${DESTDIR:-}$PREFIX/lib/pytrace-ebpf
share=${DESTDIR:-}$PREFIX/share
hooks=("${DESTDIR:-}/etc/kernel/postinst.d/pytrace-ebpf" "${DESTDIR:-}/etc/kernel/header_postinst.d/pytrace-ebpf")
in_share=(
    man/man1/pytrace-ebpf.1 bash-completion/completions/pytrace-ebpf
    zsh/site-functions/_pytrace-ebpf fish/vendor_completions.d/pytrace-ebpf.fish
)

as_owner() { # root where the prefix is not ours to write
    local existing=${DESTDIR:-}$PREFIX
    while [ ! -e "$existing" ]; do existing=$(dirname "$existing"); done
    if [ -w "$existing" ]; then "$@"; else sudo "$@"; fi
}

as_root() { if [ -n "${DESTDIR:-}" ] || [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

unit=${DESTDIR:-}$PREFIX/lib/systemd/system/pytrace-ebpf.service
example=$share/doc/pytrace-ebpf/daemon.toml
if [ "${1:-}" = --daemon ]; then
    mkdir -p .build
    sed "s|@PREFIX@|$PREFIX|" scripts/daemon/pytrace-ebpf.service >.build/pytrace-ebpf.service
    as_owner install -D -m 644 .build/pytrace-ebpf.service "$unit"
    as_owner install -D -m 644 scripts/daemon/daemon.toml "$example"
    echo "installed $unit; its configuration is /etc/pytrace-ebpf/daemon.toml, for which $example is an example"
    echo "to start it: systemctl enable --now pytrace-ebpf"
    exit
fi

if [ "${1:-}" = --remove ]; then
    as_owner rm -rf "$unit" "$(dirname "$example")" "$lib" "$bin/pytrace-ebpf" "${in_share[@]/#/$share/}"
    for hook in "${hooks[@]}"; do
        [ ! -e "$hook" ] || as_root rm -f "$hook"
    done
    exit
fi

stage=.build/install
rm -rf $stage build # what an older build left would be shipped too
.venv/bin/python -m pip install -qq --disable-pip-version-check --target $stage/lib ".[record,plots,top]"
rm -rf $stage/lib/bin $stage/lib/share
scripts/start.sh "$PREFIX/lib/pytrace-ebpf" >$stage/pytrace-ebpf
chmod 755 $stage/pytrace-ebpf
.venv/bin/python scripts/shell_files.py $stage/share
as_owner mkdir -p "$bin" "$(dirname "$lib")"
as_owner rm -rf "$lib"
as_owner cp -r $stage/lib "$lib"
as_owner cp $stage/pytrace-ebpf "$bin/pytrace-ebpf"
for file in "${in_share[@]}"; do as_owner install -D -m 644 "$stage/share/$file" "$share/$file"; done
# A kernel that is installed later has the eBPF programs compiled for it by then.
if [[ $PREFIX = /usr || $PREFIX = /usr/local ]] && [ -d "${DESTDIR:-}/etc/kernel/postinst.d" ]; then
    sed "s|@PREFIX@|$PREFIX|" scripts/deb/kernel-hook >$stage/hook
    for hook in "${hooks[@]}"; do as_root install -D -m 755 $stage/hook "$hook"; done
fi
rm -rf $stage
echo "installed $bin/pytrace-ebpf"
if [ -z "${DESTDIR:-}" ]; then # once for a kernel; where it cannot be done, the first recording does it
    as_root "$bin/pytrace-ebpf" doctor --compile || true
fi
