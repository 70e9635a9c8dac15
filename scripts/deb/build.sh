#!/bin/bash
# Build dist/*.deb from the wheel there, for the release whose Python this host has: 3.11, bookworm, or 3.13, trixie. DEB_PYTHON=3.13 builds for the other one.
#
# Debian has no pyarrow, and bookworm no pandas that is new enough, so the Python packages lie inside, in /usr/lib/pytrace-ebpf, out of every other
# Python's way. Compiled ones serve one minor version of Python, hence a package for each release. DEBFULLNAME and DEBEMAIL say who maintains it.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${DEB_PYTHON:-$(/usr/bin/python3 -Ic 'import sys; print("%d.%d" % sys.version_info[:2])')}
case $python in
    3.11) suite=bookworm ;;
    3.13) suite=trixie ;;
    *) echo "deb: a package is built for Python 3.11 (bookworm) or 3.13 (trixie), not for $python; set DEB_PYTHON" >&2; exit 2 ;;
esac
upstream=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' pytrace_ebpf/__init__.py)
wheel=dist/pytrace_ebpf-$upstream-py3-none-manylinux_2_17_x86_64.whl
[ -e "$wheel" ] || { echo "deb: there is no $wheel; make wheels builds it" >&2; exit 2; }
version=$upstream-1~$suite
maintainer="${DEBFULLNAME:-The pytrace-ebpf maintainers} <${DEBEMAIL:-root@localhost.localdomain}>"
stage=.build/deb-$suite
lib=$stage/usr/lib/pytrace-ebpf doc=$stage/usr/share/doc/pytrace-ebpf
rm -rf "$stage"
trap 'rm -rf "$stage"' EXIT
umask 022
install -d "$lib" "$doc" "$stage/usr/bin" "$stage/etc/pytrace-ebpf" "$stage/DEBIAN"

.venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile --target "$lib" --python-version "$python" --only-binary=:all: \
    --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 "$wheel[record,top]" shtab
rm -rf "$lib/bin" "$lib/share"
# Tests of others, and headers and static libraries to compile against them.
find "$lib" -depth -type d \( -name tests -o -name __pycache__ -o -path '*/pyarrow/include' -o -path '*/numpy/*/include' \) -exec rm -rf {} +
find "$lib" -type f \( -name '*.a' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' \) -delete
find "$lib" -type f -exec chmod 644 {} +

scripts/start.sh /usr/lib/pytrace-ebpf >"$stage/usr/bin/pytrace-ebpf"
chmod 755 "$stage/usr/bin/pytrace-ebpf"
.venv/bin/python scripts/shell_files.py "$stage/usr/share"
mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"
gzip -9n "$stage/usr/share/man/man1/pytrace-ebpf.1"
install -d "$stage/usr/lib/systemd/system"
sed 's|@PREFIX@|/usr|' scripts/daemon/pytrace-ebpf.service >"$stage/usr/lib/systemd/system/pytrace-ebpf.service"
sed 's/^\([^#]\)/# \1/' scripts/daemon/daemon.toml >"$stage/etc/pytrace-ebpf/daemon.toml" # the defaults hold until somebody edits it
echo /etc/pytrace-ebpf/daemon.toml >"$stage/DEBIAN/conffiles"
for when in postinst.d header_postinst.d; do
    install -d "$stage/etc/kernel/$when"
    sed 's|@PREFIX@|/usr|' scripts/deb/kernel-hook >"$stage/etc/kernel/$when/pytrace-ebpf"
    chmod 755 "$stage/etc/kernel/$when/pytrace-ebpf"
    echo "/etc/kernel/$when/pytrace-ebpf" >>"$stage/DEBIAN/conffiles"
done

gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
gzip -9nc >"$doc/changelog.Debian.gz" <<END
pytrace-ebpf ($version) $suite; urgency=medium

  * Built from the sources of $upstream; changelog.gz says what changed.

 -- $maintainer  $(LC_ALL=C date -Rud "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}")
END
cp scripts/deb/copyright "$doc/copyright"
install -m 755 scripts/deb/{postinst,prerm,postrm} "$stage/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@MAINTAINER@/$maintainer/" -e "s/@PYTHON@/$python/" -e "s/@NEXT@/3.$((${python#3.} + 1))/" \
    -e "s/@SIZE@/$(du -sk --exclude=DEBIAN "$stage" | cut -f1)/" scripts/deb/control >"$stage/DEBIAN/control"
(cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
# zstd: xz makes it a sixth smaller in twenty times as long. Both releases' dpkg reads it.
dpkg-deb --root-owner-group -Zzstd -z10 --build "$stage" "dist/pytrace-ebpf_${version}_amd64.deb" >/dev/null
ls "dist/pytrace-ebpf_${version}_amd64.deb"
