#!/bin/sh
# Records the data directory of an earlier ingotd, for TestUpgradeKeepsAnOldStore: builds a commit, has it work with
# machines that are not there, ends it, and packs what it wrote. Run once, from the root of a clone:
#   sh test/packages/testdata/record-store.sh d926546 test/packages/testdata/store-d926546.tar.zst
set -eu
commit=$1
out=$(realpath "$2")
work=$(mktemp -d)
trap 'kill $pid 2>/dev/null || true; git worktree remove --force "$work/tree"; rm -rf "$work"' EXIT
pid=
git worktree add -q --detach "$work/tree" "$commit"
(cd "$work/tree" && CGO_ENABLED=0 go build -trimpath -o "$work/ingotd" ./conductor/cmd/ingotd)
url=http://127.0.0.1:16385
: >"$work/ingotd.yaml"
"$work/ingotd" --config "$work/ingotd.yaml" --data-dir "$work/data" --listen 127.0.0.1:16385 --set hostname=old \
	--set agents.listen=127.0.0.1:16386 --set agents.advertise=127.0.0.1:16386 --set deploy.automated_clean=false \
	--set netboot.images_dir= 2>"$work/log" &
pid=$!
until curl -fs "$url/" >/dev/null; do
	kill -0 $pid || { cat "$work/log" >&2; exit 1; }
	sleep 0.2
done
call() { # METHOD PATH [BODY]
	curl -fsS -X "$1" -H 'X-OpenStack-Ironic-API-Version: 1.90' -H 'Content-Type: application/json' \
		${3:+--data "$3"} "$url$2" || { echo "record-store.sh: $1 $2 failed" >&2; exit 1; }
}
node() { # NAME STATE
	for _ in $(seq 100); do
		if call GET "/v1/nodes/$1?fields=provision_state,reservation" | tr -d ' \n' |
			grep -q "\"provision_state\":\"$2\".*\"reservation\":null\|\"reservation\":null.*\"provision_state\":\"$2\""; then return; fi
		sleep 0.2
	done
	echo "record-store.sh: node $1 is not $2" >&2
	call GET "/v1/nodes/$1" >&2
	exit 1
}
for n in web1 web2 spare; do
	call POST /v1/nodes '{"name": "'$n'", "driver": "fake-hardware", "resource_class": "metal", "network_interface": "noop",
		"description": "of the old version", "properties": {"cpus": 8, "memory_mb": 16384, "local_gb": 100},
		"driver_info": {"redfish_address": "https://192.0.2.9", "redfish_password": "hush"}}' >/dev/null
	call PUT /v1/nodes/$n/states/provision '{"target": "manage"}'
	node $n manageable
done
uuid=$(call GET '/v1/nodes/web1?fields=uuid' | sed 's/.*"uuid": *"\([^"]*\)".*/\1/')
call POST /v1/ports '{"node_uuid": "'"$uuid"'", "address": "52:54:00:12:34:56"}' >/dev/null
call PUT /v1/nodes/web1/traits '{"traits": ["CUSTOM_OLD"]}'
call PATCH /v1/nodes/web1 '[{"op": "add", "path": "/instance_info/image_source", "value": "http://192.0.2.1/image.raw"},
	{"op": "add", "path": "/instance_info/image_checksum", "value":
	"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]' >/dev/null
call PUT /v1/nodes/web1/states/provision '{"target": "adopt"}'
node web1 active
call PUT /v1/nodes/web2/states/provision '{"target": "provide"}'
node web2 available
call POST /v1/allocations '{"name": "order-7", "resource_class": "metal"}' >/dev/null
call PUT /v1/nodes/spare/maintenance '{"reason": "fan"}'
call POST /v1/deploy_templates '{"name": "CUSTOM_QUICK", "steps":
	[{"interface": "deploy", "step": "erase_devices_metadata", "args": {}, "priority": 90}]}' >/dev/null
sleep 1 # for the allocation
call GET /v1/allocations/order-7 | grep -q '"state": *"active"'
kill $pid
wait $pid || true
pid=
rm -f "$work/data/lock"
tar -C "$work/data" --sort=name --owner=0 --group=0 --numeric-owner -c . | zstd -19 -q -f -o "$out"
ls -l "$out"
