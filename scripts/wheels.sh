#!/bin/bash
# Build what is published, into dist/: the source, from it a wheel for Linux on x86-64 with the libraries compiled, and one without for any machine.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p .build
rm -rf dist build share *.egg-info # what an older build left would be shipped too
trap 'rm -rf share' EXIT
.venv/bin/python scripts/shell_files.py share
.venv/bin/python -m build --no-isolation >.build/wheels.log 2>&1 || { tail -n 15 .build/wheels.log >&2; exit 1; }
CC=none .venv/bin/python -m pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
.venv/bin/python -m auditwheel show dist/*manylinux*.whl | grep -q '"manylinux_2_17_x86_64"' || { echo "the wheel is not what its name says" >&2; exit 1; }
rm -rf build *.egg-info
ls -1 dist/*
