#!/usr/bin/env bash
# The fresh machine: a bare Debian root with only git and make, a clone of this repository's HEAD in
# it, and the README's two commands. Needs root, debootstrap, and the network by which this machine
# reaches its Debian mirror: sources, proxies and certificates are copied from it at run time.
#   tests/bare/bare.sh [FOLDER]     keeps the root in FOLDER (made if it is not there), else removes it
# SUITE=bookworm MIRROR=... COMMANDS="run test" may be set.
set -euo pipefail
repository=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
suite=${SUITE:-bookworm}
host_mirror() { # the first Debian mirror that this machine's apt knows
  find /etc/apt \( -name '*.list' -o -name '*.sources' \) -exec cat {} + |
    sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' | sed -n 1p
}
mirror=${MIRROR:-$(host_mirror)}
[ "$(id -u)" = 0 ] || { echo "bare.sh: needs root" >&2; exit 1; }

if [ $# -gt 0 ]; then root=$1 keep=1 && mkdir -p "$root"; else root=$(mktemp -d) keep=0; fi
chmod 755 "$root" && root=$(cd "$root" && pwd)
mounted=0
leave() {
  [ $mounted = 0 ] || umount "$root/proc"
  [ $keep = 1 ] || rm -rf --one-file-system "$root"
}
trap leave EXIT

start=$SECONDS
stamp() { while IFS= read -r line; do printf '%5d s  %s\n' $((SECONDS - start)) "$line"; done; }
# An empty environment but for what reaches the network.
inside() {
  local -a reach=()
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || reach+=("$name=${!name}")
  done
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C \
    "${reach[@]}" chroot "${user[@]}" "$root" "$@"
}
user=()

if [ ! -e "$root/etc/debian_version" ]; then
  debootstrap --variant=minbase "$suite" "$root" "$mirror" >"${TMPDIR:-/tmp}/bare-debootstrap.log"
  rm -f "$root"/etc/apt/sources.list
  cp -a /etc/apt/. "$root/etc/apt/"
  [ ! -d /usr/local/share/ca-certificates ] || cp -a /usr/local/share/ca-certificates "$root/usr/local/share/"
  [ ! -d /etc/ssl/certs ] || { mkdir -p "$root/etc/ssl" && cp -a /etc/ssl/certs "$root/etc/ssl/"; }
fi
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
mount -t proc proc "$root/proc"
mounted=1
inside apt-get update -q >/dev/null
inside env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends git make >/dev/null
echo "bare root ready after $((SECONDS - start)) s:" \
  "$(inside sh -c 'dpkg-query -W | wc -l') packages, $(inside sh -c 'ls /usr/bin/gcc /usr/bin/python3 /usr/bin/sudo /usr/bin/cmake 2>/dev/null | tr "\n" " "')"

rm -rf "$root/srv/weft"
git -C "$repository" bundle create -q "$root/srv/weft.bundle" HEAD
inside git -c advice.detachedHead=false clone -q /srv/weft.bundle /srv/weft
git -C "$repository" log -1 --format='clone of %h: %s'

# Not root, no sudo: the line to run is printed, nothing else happens.
if ! inside sh -c 'command -v cmake' >/dev/null; then
  user=(--userspec=nobody)
  if inside make -C /srv/weft run >"$root/tmp/nobody" 2>&1 || ! grep -q 'apt-get install' "$root/tmp/nobody"; then
    echo "bare.sh: make run of a plain user should print the line that installs:" >&2
    cat "$root/tmp/nobody" >&2
    exit 1
  fi
  user=()
  echo "a plain user is told:"
  cat "$root/tmp/nobody"
fi

for command in ${COMMANDS:-run test}; do
  start=$SECONDS
  echo "== make $command"
  inside make -C /srv/weft "$command" 2>&1 | stamp
  echo "== make $command: $((SECONDS - start)) s"
done
