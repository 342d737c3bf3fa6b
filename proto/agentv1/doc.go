// Package agentv1 is the gRPC contract between agent and conductor, generated from agent.proto.
//
// The proto file is the specification; `make generate` makes the Go beside it, and CI fails when the two differ.
package agentv1
