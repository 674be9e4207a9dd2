#!/usr/bin/env bash
# Installs seedx for an accelerator and measures it; see accelerator.py.
#
#   benchmarks/accelerator.sh cuda13 [OPTIONS]
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv .venv
.venv/bin/pip install -q -e ".[$1]"
exec .venv/bin/python -m benchmarks.accelerator "${@:2}"
