// Package access says who asks and who may do what.
//
// An Actor is whoever sent a request: a user with a role in a project or in the whole system. An authenticator (Basic,
// Keystone) makes one of a request or gives a *Refusal. Rules are a table: what may be done, and the least role that
// may do it, by where the role is held: in the system, in the project that owns the node, in the one that leases it, or
// anywhere. Names and defaults of the rules are those of Ironic's policies (ironic/common/policy.py with its new
// defaults), so that whoever knows a policy there knows the rule here. The rules can't be edited: a site that needs
// others gives other roles.
//
// Roles imply one another as Keystone sets them up (admin, manager, member, reader); "service" stands apart. The zero
// Actor may do nothing at all. Roles given in a domain count for nothing.
package access
