#!/usr/bin/env bash
# Checks the examples that cannot be run here: cloud-init's user-data and Firecracker's configuration.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python=$(venv jsonschema==4.26.0 PyYAML==6.0.3)/bin/python3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The package is looked into, not installed: it would configure this machine at its next boot.
(cd "$work" && { apt-get download -qq cloud-init || { apt-get update -qq && apt-get download -qq cloud-init; }; }) >/dev/null 2>&1 \
  || die "apt-get could not download cloud-init"
dpkg -x "$work"/cloud-init_*.deb "$work/package"
schema=$(find "$work/package" -name 'schema-cloud-config-v1.json')
[[ -s $schema ]] || die "the package of cloud-init has no schema"
user_data=deploy/cloud-init/user-data.yaml
[[ $(head -n 1 "$user_data") == "#cloud-config" ]] || die "$user_data: the first line is not #cloud-config"
valid() { # FILE
  "$python" -c 'import json, sys, jsonschema, yaml
schema = json.load(open(sys.argv[1]))
jsonschema.Draft4Validator(schema).validate(yaml.safe_load(open(sys.argv[2])))' "$schema" "$1"
}
valid "$user_data" || die "$user_data is not as the schema has it"
sed 's/permissions: "0644"/permissions: 420/' "$user_data" >"$work/wrong.yaml"
if valid "$work/wrong.yaml" 2>/dev/null; then die "the schema finds nothing"; fi
passed "$user_data is valid for cloud-init"

# Its files in a place of their own, with certificates for those that are only named.
"$python" -c 'import os, sys, yaml
root = sys.argv[2]
for file in yaml.safe_load(open(sys.argv[1]))["write_files"]:
    path = root + file["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    text = file["content"].replace("\"/etc/", f"\"{root}/etc/").replace("\"/var/", f"\"{root}/var/")
    # the package, which makes the user, is not installed here
    text = text.replace("agent_user = \"telexec\"", "agent_user = \"games\"")
    open(path, "w").write(text)
    os.chmod(path, int(file["permissions"], 8))' "$user_data" "$work/root"
etc=$work/root/etc/telexec
"$telexec" certs init --dir "$work/ca" >/dev/null
"$telexec" certs issue agent --server --dir "$work/ca" >/dev/null
cp "$work/ca/ca.pem" "$work/ca/agent.pem" "$work/ca/agent.key" "$etc"
[[ $(stat -c %a "$etc/agent.key") == 600 ]] || die "others may read the key"
chmod 755 "$work"
chown root:games "$etc/agent.key" && chmod 640 "$etc/agent.key"
"$STATIC" --config "$etc/telexecd.toml" --check-config 2>"$work/said" || die "$(cat "$work/said")"
passed "its configuration and policy are valid"

jq -e '(keys == ["boot-source", "drives", "machine-config", "vsock"])
  and (."boot-source" | has("kernel_image_path") and has("initrd_path") and has("boot_args"))
  and (."machine-config" | (.vcpu_count | type == "number") and (.mem_size_mib | type == "number"))
  and (.vsock | .guest_cid >= 3 and (.uds_path | type == "string"))' deploy/firecracker/vm.json >/dev/null \
  || die "deploy/firecracker/vm.json is not as expected"
passed "deploy/firecracker/vm.json has the syntax and keys of Firecracker's configuration"
