#!/usr/bin/env bash
# What one GPU does: the GPU's tests, training with the BERT-base
# shape on SimCSE beside sentence-transformers, on supervised SimCSE and on DiffCSE, 20,000 sentences
# encoded beside it, and the tables of docs/performance.md made anew.
#
#   benchmarks/gpu.sh [--tiny] SENTENCES.txt
#
# --tiny tries every step with small sizes, on a machine of any kind, and changes nothing in docs.
set -euo pipefail
cd "$(dirname "$0")/.."
tiny="" docs="docs"
if [ "${1:-}" = --tiny ]; then tiny=--tiny; shift; fi
data=$(realpath "${1:?name a file with a sentence per line}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$tiny" ]; then cp -r docs/results docs/performance.md "$work"; docs="$work"; fi

command -v nvidia-smi >/dev/null && nvidia-smi || echo "no GPU here"
python -m pytest -q -m gpu tests/gpu || [ $? = 5 ]  # 5: there is none without a GPU
python -m pytest -q tests/test_fused.py
python -m benchmarks $tiny --results "$docs/results" --page "$docs/performance.md" --data "$data" \
  gpu-train gpu-objectives gpu-encode
