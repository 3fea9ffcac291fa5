#!/usr/bin/env bash
# Writes every generated file from the code that it describes; with --check, fails where one is out of date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --quiet --locked -p palisade
palisade=${CARGO_TARGET_DIR:-target}/debug/palisade
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

generate() { mkdir -p "$fresh/$(dirname "$1")" && "$palisade" "${@:2}" >"$fresh/$1"; }
generate deploy/palisade.yaml manifests
generate docs/reference/cli.md reference cli
generate docs/reference/metrics.md reference metrics

if [ "${1:-}" = --check ]; then
  (cd "$fresh" && find . -type f) | while read -r file; do
    diff -u "$file" "$fresh/$file" || { echo "$file is out of date: run make generate" >&2; exit 1; }
  done
else
  cp -r "$fresh/." .
fi
