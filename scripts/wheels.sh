#!/bin/bash
# Build what is published, into dist/: the source, from it a wheel for Linux on this processor with the libraries compiled, where there is a compiler
# for it (gcc-aarch64-linux-gnu) also one on aarch64, and one without for any machine.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p .build
rm -rf dist build share *.egg-info # what an older build left would be shipped too
trap 'rm -rf share' EXIT
.venv/bin/python scripts/shell_files.py share
.venv/bin/python -m build --no-isolation >.build/wheels.log 2>&1 || { tail -n 15 .build/wheels.log >&2; exit 1; }
CC=none .venv/bin/python -m pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
if [ "$(uname -m)" != aarch64 ] && command -v aarch64-linux-gnu-gcc >/dev/null; then
    CC=aarch64-linux-gnu-gcc OBJDUMP=aarch64-linux-gnu-objdump _PYTHON_HOST_PLATFORM=linux-aarch64 \
        .venv/bin/python -m pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
fi
for wheel in dist/*manylinux*.whl; do
    platform=${wheel##*-}
    said=$(.venv/bin/python -m auditwheel show "$wheel")
    [[ $said = *\"${platform%.whl}\"* ]] || { echo "$wheel is not what its name says" >&2; exit 1; }
done
rm -rf build *.egg-info
ls -1 dist/*
