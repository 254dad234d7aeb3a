#!/usr/bin/env bash
# Builds and tests this checkout on Debian 13: makes a tree of it beside the
# checkout and runs tests/run.sh in there. Status 0 only if that ends so.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$root/build-debian13
mirror=
fresh=no
codename=trixie

# shellcheck source=support/packages.sh
source "$root/tests/support/packages.sh"

usage() {
  cat <<'END'
usage: tests/debian13.sh [--work FOLDER] [--mirror URL] [--fresh]
                         [argument of tests/run.sh]...

Makes a tree of Debian 13 (debootstrap), copies the checkout into it as it is,
changes and new files included, and runs tests/run.sh there, which installs
what it needs from Debian 13. Needs root. On two cores the first run takes
about half an hour and the folder 3 GB; a later run finds the tree, the packages
and what was compiled.

  --work FOLDER  where the tree and the compiler's cache are kept
                 (build-debian13 in the checkout)
  --mirror URL   of Debian; otherwise that of this machine's apt
  --fresh        make the tree anew

What runs in the tree sees this machine's network and kernel. Its mounts and
processes live in namespaces of their own and are gone when this ends, also by
Ctrl-C. To be rid of the rest, remove the folder.
END
}

run_arguments=()
while (($#)); do
  case $1 in
    --work | --mirror)
      if (($# < 2)); then
        usage >&2
        exit 2
      fi
      if [[ $1 == --work ]]; then work=$2; else mirror=$2; fi
      shift
      ;;
    --fresh) fresh=yes ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) run_arguments+=("$1") ;;
  esac
  shift
done

say() { printf '=== debian13: %s\n' "$*"; }
die() {
  printf 'debian13: %s\n' "$*" >&2
  exit 1
}

# ------------------------------------------------------------- the namespaces

# Runs a command with mounts and processes of its own, which end with it, with
# this script and with Ctrl-C. It is in a process group of its own, so that the
# terminal's Ctrl-C reaches this script alone.
namespace_pid=
in_namespace() {
  local status=0
  set -m
  setpriv --pdeathsig KILL \
    unshare --mount --propagation private --pid --fork --kill-child=KILL \
    --mount-proc "$@" </dev/null &
  namespace_pid=$!
  set +m
  wait "$namespace_pid" || status=$?
  namespace_pid=
  return "$status"
}

finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP
  if [[ -n $namespace_pid ]]; then
    kill -KILL "$namespace_pid" 2>/dev/null || true
    wait "$namespace_pid" 2>/dev/null || true
  fi
  ((status == 0)) || printf '=== debian13: FAILED (%d)\n' "$status"
  exit "$status"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ------------------------------------------------- what this machine's apt says

# first_uri_of SUITE...: from where apt takes the first of these suites that it
# has, whatever the form of its sources. Somebody else's repository may call its
# suite as Debian does, so a place with Debian's usual name goes first.
first_uri_of() {
  local suite uris uri
  for suite in "$@"; do
    uris=$(apt-get update --print-uris |
      sed -n "s,^'\(https\?://[^']*[^/']\)/*/dists/$suite/InRelease'.*,\1,p")
    uri=$(grep -m 1 -E '/debian(-security)?$' <<<"$uris" || head -n 1 <<<"$uris")
    if [[ -n $uri ]]; then
      printf '%s\n' "$uri"
      return
    fi
  done
}

# Sets `mirror`, and `sources` to the lines for the tree's sources.list.
choose_sources() {
  local machine updates= security=
  machine=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-sid}")
  if [[ -z $mirror ]]; then
    mirror=$(first_uri_of "$machine" stable testing unstable sid)
    updates=$(first_uri_of "$machine-updates" stable-updates)
    security=$(first_uri_of "$machine-security" stable-security)
  fi
  [[ -n $mirror ]] ||
    die "this machine's apt has no Debian mirror by HTTP: give --mirror URL"
  sources="deb $mirror $codename main"
  [[ -z $updates ]] || sources+=$'\n'"deb $updates $codename-updates main"
  [[ -z $security ]] || sources+=$'\n'"deb $security $codename-security main"
}

# debootstrap does not read apt's configuration, but this it knows.
take_apt_proxies() {
  local found
  eval "$(apt-config shell found_http Acquire::http::Proxy \
    found_https Acquire::https::Proxy)"
  for found in http https; do
    local from=found_$found to=${found}_proxy
    if [[ -n ${!from:-} && -z ${!to:-} ]]; then
      export "$to=${!from}"
    fi
  done
}

# ---------------------------------------------------------------- the tree

make_tree() {
  if [[ $fresh == yes ]]; then rm -rf "$tree"; fi
  if [[ -d $tree ]]; then
    say "the tree is there: $tree"
    return
  fi
  say "making a tree of Debian 13 from $mirror in $tree"
  rm -rf "$tree.new"
  local log=$work/debootstrap.log include=()
  [[ $mirror != https:* ]] || include=(--include=ca-certificates)
  in_namespace debootstrap --variant=minbase ${include[@]+"${include[@]}"} \
    "$codename" "$tree.new" "$mirror" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "debootstrap failed; its last lines are above"
  }
  mv "$tree.new" "$tree"
}

# What the tree needs to know of this machine, anew each time.
configure_tree() {
  local file
  rm -f "$tree"/etc/apt/sources.list.d/*.sources
  printf '%s\n' "$sources" >"$tree/etc/apt/sources.list"
  apt-config dump | grep '^Acquire::' |
    grep -vE '^Acquire::(IndexTargets|Changelogs|.*Auto-Detect)' \
      >"$tree/etc/apt/apt.conf.d/90machine" || true
  for file in /etc/resolv.conf /etc/hosts /etc/apt/auth.conf; do
    [[ ! -e $file ]] || cp --dereference "$file" "$tree$file"
  done
  cp -r /etc/apt/auth.conf.d "$tree/etc/apt/" 2>/dev/null || true
  # Packages start no services in there.
  printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
  chmod 755 "$tree/usr/sbin/policy-rc.d"
  # What an earlier run may have left when it was killed.
  find "$tree/tmp" -mindepth 1 -delete
}

# The files that git tracks or would track, as if written now: what was built of
# an older copy must not look newer than its source. What has not changed is in
# the compiler's cache. tests/tidy asks git in there too.
copy_checkout() {
  local copy=$tree/idempotency
  mkdir -p "$copy"
  find "$copy" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
  git -C "$root" -c safe.directory='*' ls-files -z --cached --others \
    --exclude-standard |
    while IFS= read -r -d '' file; do
      [[ ! -e $root/$file ]] || printf '%s\0' "$file"
    done |
    tar -C "$root" --null --files-from=- --owner=0 --group=0 -cf - |
    tar -C "$copy" -xmf -
  git init -q "$copy"
}

main() {
  local began=$SECONDS status=0
  if ((EUID != 0)); then
    die "debootstrap, mounts and chroot need root: run it as root, or" \
      "'sudo tests/debian13.sh'. Nothing was done."
  fi
  install_packages "${IDEMPOTENCY_DEBIAN13_PACKAGES[@]}"
  mkdir -p "$work/ccache"
  work=$(cd "$work" && pwd)
  tree=$work/tree
  exec {lock}>"$work/lock"
  flock -n "$lock" || die "another run uses $work"

  choose_sources
  take_apt_proxies
  make_tree
  configure_tree
  copy_checkout
  say "tests/run.sh ${run_arguments[*]-} in $tree"
  in_namespace "$root/tests/support/in_tree.sh" "$tree" "$work/ccache" \
    tests/run.sh ${run_arguments[@]+"${run_arguments[@]}"} || status=$?
  ((status == 0)) || exit "$status"
  say "passed in $((SECONDS - began)) s"
}

# On one line: the script may be edited while it runs.
main; exit
