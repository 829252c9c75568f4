#!/usr/bin/env bash
# The reference recipe, run in the agent's workspace: trains base_model on train.txt and leaves final_model.
set -euo pipefail

# The matrices are small: more threads would only wait for one another.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

bash timer.sh || echo "no timer here; going on"
python3 -u "$(dirname "$0")/train.py"
python3 evaluate.py --model-path final_model --limit 150 --json-output-file metrics.json
