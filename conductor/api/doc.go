// Package api is the REST server: OpenStack Ironic's Bare Metal API below /v1, and Ingot's additions below /ingot/v1.
//
// There is one table of routes (route.go), assembled from those of the packages below this one, each of which handles
// some resources. A route has a path, a method, an access rule, the first microversion that has it, and a handler; one
// without an access rule makes New fail. This package admits requests (access.go), reads them, and sends the answers of
// handlers; errors of other packages become status codes in one function (translate). JSON shapes and versions are in
// conductor/rest, verbs in conductor/engine.
//
// A new resource that is like the others is a resource.Kind in a package of its own. Its tests are here, where they see
// the whole.
//
// Deliberate differences from Ironic are such that no client can depend on Ironic's way: bodies that are not JSON, and
// unknown fields in a list, are the client's fault (400) and not the server's (500); a node keeps only the interfaces
// that were chosen for it, so changing its driver needs no reset of the others; a PATCH that sends the mask "******"
// back keeps the secret it stands for.
package api
