// Package api is the REST server: OpenStack Ironic's Bare Metal API below /v1, and below /ingot/v1 what Ironic has no
// words for.
//
// There is one table of routes (route.go), put together from those of the packages below this one, each of which
// answers for some resources. A route has a path, a method, who may use it, the first microversion that has it, and a
// handler; one without an access rule makes New fail. This package lets requests in (access.go), reads them, and sends
// what handlers answer; errors of other packages become status codes in one function (translate). JSON shapes and
// versions are in conductor/rest, what a verb does is in conductor/engine.
//
// A new resource that is like the others is a resource.Kind in a package of its own. Its tests are here, where they see
// the whole.
//
// Where it deliberately differs from Ironic, it does so in ways that no client can depend on: bodies that are not JSON,
// and unknown fields in a list, are the client's fault (400) and not the server's (500); a node keeps only the
// interfaces that were chosen for it, so changing its driver needs no reset of those that were not; a PATCH that sends
// the mask "******" back keeps the secret it stands for.
package api
