package attack

import "testing"

// TestStrangers: a client without a valid token learns nothing.
func TestStrangers(t *testing.T) {
	w := newWorld(t)
	w.node("n", "")
	for _, path := range []string{"/v1/nodes", "/v1/nodes/n", "/v1/ports", "/v1/allocations", "/v1/volume",
		"/v1/drivers", "/v1/runbooks", "/v1/deploy_templates", "/v1/inspection_rules", "/ingot/v1/events",
		"/ingot/v1/nodes/n/timeline"} {
		w.want(401, anonymous, "GET", path, "")
		w.want(401, anonymous, "GET", path, "", "X-Auth-Token", "nonsense")
	}
	w.want(404, eve, "GET", "/v1/nodes/n", "")
	w.want(404, eve, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/extra/a","value":1}]`)
}

// TestLease: a lessee sees a node without its secrets, and only during the lease.
func TestLease(t *testing.T) {
	w := newWorld(t)
	w.node("n", `"driver_info":{"ipmi_password":"canary-bmc"}`)
	w.state("n", "manage", "manageable")
	w.want(404, leo, "GET", "/v1/nodes/n", "")
	w.lease("n", "shop")
	w.absent("the node of a lessee", w.want(200, leo, "GET", "/v1/nodes/n", ""), "canary")
	w.want(403, leo, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/driver_info/ipmi_address","value":"192.0.2.1"}]`)
	w.lease("n", "next")
	w.want(404, leo, "GET", "/v1/nodes/n", "")
	w.want(200, nina, "GET", "/v1/nodes/n", "")
}
