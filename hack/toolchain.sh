#!/usr/bin/env bash
# Sees to what a build needs: Rust with rustfmt and clippy, a C compiler (ring has some), util-linux.
set -euo pipefail
say() { printf '%s\n' "$*" >&2; }

need_debian() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || { say "please install: $*"; exit 1; }
  say "installing $*"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$@" >/dev/null
}

packages=()
command -v cc >/dev/null || packages+=(gcc libc6-dev)
command -v setpriv >/dev/null || packages+=(util-linux)
command -v flock >/dev/null || packages+=(util-linux)
[ ${#packages[@]} -eq 0 ] || need_debian "${packages[@]}"

command -v cargo >/dev/null || { say "no cargo on the PATH: install Rust 1.89 or newer"; exit 1; }
for component in fmt clippy; do
  cargo "$component" --version >/dev/null 2>&1 && continue
  command -v rustup >/dev/null || { say "cargo $component is missing, and there is no rustup to add it"; exit 1; }
  rustup component add "${component/fmt/rustfmt}" >&2
done
