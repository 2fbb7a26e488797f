#!/usr/bin/env bash
# The example of a warm pool: its tests boot about ten machines.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mkdir -p "$WORK/config"
printf 'listen = ["vsock://any:7443"]\nshell = "sh"\nrequire_containment = "cgroup"\n' >"$WORK/config/telexecd.toml"
"$repo/deploy/vm/build" --config "$WORK/config" --telexecd "$STATIC" --kernel "$KERNEL" "$WORK/image"
python=${TELEXEC_PYTHON:-$("$repo/client/python/tests/run" --python)}
# the package is the installed one
cd "$repo/examples/warm-pool"
# an agent that is not optimised, and is twice as large, does not fit 256 MiB: files take half of that, less the initrd
PYTHONDONTWRITEBYTECODE=1 WARM_POOL_IMAGE=$WORK/image WARM_POOL_MEMORY=320 timeout 300 "$python" -m pytest -p no:cacheprovider --quiet test_pool.py
passed "tenants are kept apart, what fails is replaced, nothing is left"
