#!/bin/sh
# Checks and times this project on a machine with an NVIDIA GPU, without network, in ten minutes.
#
#     sh experiments/bench/gpu.sh RESULTS [WHEELS] [FAST_DLLM]
#
# RESULTS gets the run's folder and the log of the tests. WHEELS is a folder of wheels to install
# first, in a folder of their own: those that the machine's Python lacks (`pip download` fetches them
# elsewhere). FAST_DLLM is a checkout of Fast-dLLM. The machine's Python needs jax[cuda13] and pytest,
# and PyTorch for the comparison. If a test fails, the rest still runs, and the exit code is pytest's.
set -eu
results=$(realpath -m "$1") wheels=${2:-} fast_dllm=${3:-null}
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if [ -n "$wheels" ]; then
    $python -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
fi
export PYTHONPATH="$PWD:$site" XLA_PYTHON_CLIENT_PREALLOCATE=false
mkdir -p "$results"
tests=0
timeout 150 env JAX_PLATFORMS=cuda,cpu "$python" -m pytest -q -m device tests/model/test_gpu.py \
    > "$results/tests.txt" 2>&1 || tests=$?
cat "$results/tests.txt"
timeout 420 "$python" -m experiments.bench suite=gpu gpu.fast_dllm="$fast_dllm" \
    hydra.run.dir="$results/bench"
exit "$tests"
