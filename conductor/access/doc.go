// Package access authenticates requests and decides what their actors may do.
//
// An Actor is the sender of a request: a user with a role in a project or in the whole system. An authenticator (Basic,
// Keystone) makes an Actor from a request or returns a *Refusal. Rules are a table: an action, and the least role that
// may do it, by where the role is held: in the system, in the project that owns the node, in the one that leases it, or
// anywhere. Names and defaults of the rules are those of Ironic's policies (ironic/common/policy.py with its new
// defaults), so that operators of Ironic know them. The rules can't be edited: a site that needs other rights assigns
// other roles.
//
// Roles imply one another as Keystone sets them up (admin, manager, member, reader); "service" stands apart. The zero
// Actor may do nothing at all. Roles given in a domain count for nothing.
package access
