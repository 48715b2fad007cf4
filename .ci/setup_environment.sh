#!/bin/sh
# setup_environment.sh PYTHON VENV: a virtual environment with the tested versions, the product in it as editable.
set -eu
python=$1
venv=$2

"$python" - <<'CHECK' || { echo "infrarsi needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
CHECK
command -v git >/dev/null || { echo "infrarsi needs git (patches are applied with git apply)" >&2; exit 1; }
if ! command -v c++ >/dev/null && ! command -v g++ >/dev/null; then
    echo "note: no C++ compiler found: candidates with torch.compile will fail on the CPU samples, all else works" >&2
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# On machines without a GPU, TORCH_INDEX_URL can name PyTorch's index of CPU builds: gigabytes less than the default.
torch=$(grep '^torch==' constraints.txt)
"$venv/bin/python" -m pip install --quiet --constraint constraints.txt ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$torch"
"$venv/bin/python" -m pip install --quiet --constraint constraints.txt --editable ".[train,dev]"
