#!/usr/bin/env bash
# What one command builds for a release, with the profile that is built already: the whole thing takes half an hour.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$repo"
DEB_FLAGS=--fast deploy/release --profile dev "$WORK/release" >"$WORK/log" 2>&1 || { tail -n 40 "$WORK/log"; die "deploy/release"; }
expect 0 'telexecd-.*-linux: OK' bash -c "cd '$WORK/release' && sha256sum --check SHA256SUMS"
[[ $(wc -l <"$WORK/release/SHA256SUMS") -eq 6 ]] || die "not six files: $said"
DEB_FLAGS=--fast deploy/debian/build "${CARGO_TARGET_DIR:-target}/debug" "$WORK/again" >/dev/null
cmp "$WORK"/release/*.deb "$WORK"/again/*.deb || die "the same package has other bytes when it is made again"
passed "the package made again has the same bytes"
for bill in "$WORK"/release/*.cdx.json; do
  expect 0 '^CycloneDX [0-9]{3}' python3 -c '
import json, sys
bill = json.load(open(sys.argv[1]))
names = {one["name"] for one in bill["components"]}
assert {"rustls", "tonic", "aws-lc-sys"} <= names, names
print(bill["bomFormat"], len(names))' "$bill"
  passed "${bill##*/}: $said components"
done
passed "programs, package and bills of materials, with their checksums"
