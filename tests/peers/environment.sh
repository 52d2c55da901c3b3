#!/usr/bin/env bash
# Makes a virtual environment with the versions that produced the results in docs and fixtures:
#   tests/peers/environment.sh DIR [export]
# With `export`, also installs what the parts export and harness of tests/long.sh need.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: environment.sh DIR [export]}
lists=(-r "$here/requirements.txt")
if [ "${2:-}" = export ]; then lists+=(-r "$here/requirements-export.txt"); fi
"${PYTHON:-python3}" -m venv "$dir"
"$dir/bin/pip" install -q "${lists[@]}"
echo "$dir/bin/python"
