#!/usr/bin/env bash
# What one GPU does, in under ten minutes on an H200: the GPU's tests, training with the BERT-base
# shape on SimCSE beside sentence-transformers, on supervised SimCSE and on DiffCSE, 200,000 sentences
# encoded beside it, a profiled run, and the tables of docs/performance.md made anew.
#
#   benchmarks/gpu.sh [--tiny] SENTENCES.txt
#
# --tiny tries every step with small sizes, on a machine of any kind, and changes nothing in docs.
set -euo pipefail
cd "$(dirname "$0")/.."
tiny="" page="docs/performance.md" steps=20 encoder=bert-base-random
if [ "${1:-}" = --tiny ]; then tiny=--tiny steps=6 encoder=minilm-random; shift; fi
data=$(realpath "${1:?name a file with a sentence per line}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$tiny" ]; then cp -r docs/results "$work"; cp "$page" "$work"; page="$work/performance.md"; fi

command -v nvidia-smi >/dev/null && nvidia-smi || echo "no GPU here"
python -m pytest -q -m gpu tests/gpu || [ $? = 5 ]  # 5: there is none without a GPU
python -m benchmarks.all $tiny --page "$page" --data "$data" gpu-train gpu-objectives gpu-encode
python -c "import sys; from pathlib import Path; from benchmarks.material import random_masked_lm
random_masked_lm(sys.argv[1], Path(sys.argv[2]))" $encoder "$work/encoder"
python -m contrasent train unsup-simcse --encoder "$work/encoder" --data "$data" \
    --output "$work/run" --max-steps $steps --profile --evaluation.task none \
    --evaluation.final none ${tiny:+--batch-size 2}
