package attack

import "testing"

// TestStrangers: who shows no token, or one that is none, learns nothing.
func TestStrangers(t *testing.T) {
	w := newWorld(t)
	w.node("n", "")
	for _, path := range []string{"/v1/nodes", "/v1/nodes/n", "/v1/ports", "/v1/allocations", "/v1/volume", "/v1/drivers", "/v1/runbooks",
		"/v1/deploy_templates", "/v1/inspection_rules", "/ingot/v1/events", "/ingot/v1/nodes/n/timeline"} {
		w.want(401, nobody, "GET", path, "")
		w.want(401, nobody, "GET", path, "", "X-Auth-Token", "nonsense")
	}
	w.want(404, eve, "GET", "/v1/nodes/n", "")
	w.want(404, eve, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/extra/a","value":1}]`)
}
