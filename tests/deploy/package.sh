#!/usr/bin/env bash
# The Debian package, in two versions, and as Debian wants packages.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
: "${DEBS:?where packages go to}"

rm -rf "$DEBS"
for revision in 1 2; do
  DEB_FLAGS=--fast "$repo/deploy/debian/build" --version "0.1.0-$revision" "$BIN" "$DEBS"
done
first=("$DEBS"/*-1_*.deb)
expect 0 '/etc/telexec/telexecd.toml' dpkg-deb --info "${first[0]}" conffiles
expect 0 'Depends: .*libc6' dpkg-deb --info "${first[0]}"
expect 0 'usr/bin/telexec-ssh -> telexec$' dpkg-deb --contents "${first[0]}"
expect 0 '' lintian --allow-root --fail-on error,warning "${first[0]}"
passed "$(($(stat -c %s "${first[0]}") >> 20)) MiB; lintian: ${said:-nothing to say}"
