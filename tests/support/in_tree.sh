#!/usr/bin/env bash
# in_tree.sh TREE CCACHE COMMAND...
#
# Runs the command in the folder /idempotency of a Debian tree, with CCACHE, a
# folder outside it, as the compiler's cache. To be started as root in mount and
# PID namespaces of its own: what is mounted here ends with them.
set -euo pipefail

tree=$1
cache=$2
shift 2

mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"

# Few devices, and terminals and shared memory of its own.
mount -t tmpfs -o mode=0755 tmpfs "$tree/dev"
for device in null zero full random urandom tty; do
  touch "$tree/dev/$device"
  mount --bind "/dev/$device" "$tree/dev/$device"
done
mkdir "$tree/dev/shm" "$tree/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$tree/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$tree/dev/pts"
ln -s pts/ptmx "$tree/dev/ptmx"
ln -s /proc/self/fd "$tree/dev/fd"
for number in 0 1 2; do
  name=(stdin stdout stderr)
  ln -s "/proc/self/fd/$number" "$tree/dev/${name[number]}"
done

mkdir -p "$tree/ccache"
mount --bind "$cache" "$tree/ccache"

environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
  LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive CCACHE_DIR=/ccache)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [[ -z ${!name:-} ]] || environment+=("$name=${!name}")
done

# An installation that was interrupted is finished first.
exec chroot "$tree" /usr/bin/env -i "${environment[@]}" bash -c '
  dpkg --configure -a && cd /idempotency && exec "$@"' bash "$@"
