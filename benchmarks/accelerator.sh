#!/usr/bin/env bash
# Installs seedx for an accelerator and measures it; see accelerator.py.
#
#   benchmarks/accelerator.sh cuda13 [OPTIONS]
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv .venv
.venv/bin/pip install -q -e ".[$1]"
# The ten minutes include the installation.
minutes=$(.venv/bin/python -c "print((600 - $SECONDS) / 60)")
exec .venv/bin/python -m benchmarks.accelerator --minutes "$minutes" "${@:2}"
