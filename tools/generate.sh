#!/bin/sh
# Makes the Go in proto/agentv1 from agent.proto, and the dashboard's bundle from its sources. With --check it changes nothing and fails when the result differs.
set -eu
out=.
if [ "${1:-}" = --check ]; then
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
fi
protoc \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-go-grpc="$(go tool -n protoc-gen-go-grpc)" \
	--go_out="$out" --go_opt=module=github.com/ingot-metal/ingot \
	--go-grpc_out="$out" --go-grpc_opt=module=github.com/ingot-metal/ingot \
	proto/agentv1/agent.proto
ui=$PWD/conductor/web/ui
if [ "$out" = . ]; then
	go -C tools/bundle run . -ui "$ui"
	go test ./conductor/node ./conductor/api ./conductor/config -run "Diagram|Doc" -update >/dev/null
	go test ./tools/cli ./conductor/app ./agent/cmd/ingot-agent -run Reference -update >/dev/null
	go test ./test/arch -run "Steps|Formats" -update >/dev/null
	exit 0
fi
go -C tools/bundle run . -check -ui "$ui"
for f in agent.pb.go agent_grpc.pb.go; do
	# The compiler's own version stands in a comment and may differ from machine to machine.
	strip() { sed '/^\/\/.*protoc/d' "$1"; }
	if [ "$(strip "$out/proto/agentv1/$f")" != "$(strip "proto/agentv1/$f")" ]; then
		echo "proto/agentv1/$f is not what agent.proto makes: run make generate" >&2
		exit 1
	fi
done
