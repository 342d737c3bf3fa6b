package attack

import (
	"strings"
	"testing"
)

// TestOddAddresses: an address in another notation gives no more access than the usual one, with as little read before
// authentication, and with the same limits.
func TestOddAddresses(t *testing.T) {
	w := newWorld(t)
	id := w.node("canary-node", `"extra":{"a":"canary-extra"},"driver_info":{"fake_password":"canary-secret"}`)
	old := []string{newest[0], "1.82"}
	before := w.want(200, root, "GET", "/v1/nodes/"+id, "", newest...)
	compared := 0
	for _, tt := range []struct{ method, odd, usual string }{
		{"GET", "/v1/nodes/" + id + "/extra", "/v1/nodes/" + id + "?fields=extra"},
		{"GET", "/v1/nodes/" + id + "/driver_info", "/v1/nodes/" + id + "?fields=driver_info"},
		{"GET", "/v1/nodes/" + id + ".json", "/v1/nodes/" + id},
		{"GET", "/v1/nodes/canary-node.json", "/v1/nodes/canary-node"},
		{"GET", "/v1/nodes/detail.json", "/v1/nodes/detail"},
		{"GET", "/v1/nodes.json", "/v1/nodes"},
		{"GET", "/v1/nodes/states/" + id, "/v1/nodes/" + id + "/states"},
		{"GET", "/v1/nodes/states?node_ident=" + id, "/v1/nodes/" + id + "/states"},
		{"GET", "/v1/nodes/states/console/canary-node.json", "/v1/nodes/canary-node/states/console"},
		{"GET", "/v1/nodes/vendor_passthru/methods?node_ident=" + id, "/v1/nodes/" + id + "/vendor_passthru/methods"},
		{"PUT", "/v1/nodes/states/power/" + id, "/v1/nodes/" + id + "/states/power"},
		{"PUT", "/v1/nodes/states/provision?node_ident=" + id, "/v1/nodes/" + id + "/states/provision"},
		{"PUT", "/v1/nodes/maintenance/" + id, "/v1/nodes/" + id + "/maintenance"},
		{"PUT", "/v1/nodes/management/boot_device.json?node_ident=" + id,
			"/v1/nodes/" + id + "/management/boot_device"},
		{"DELETE", "/v1/nodes/" + id + ".json?x=1", "/v1/nodes/" + id + "?x=1"},
		{"PATCH", "/v1/nodes/" + id + ".json", "/v1/nodes/" + id},
	} {
		for who := range personas {
			got, _, out := w.ask(who, tt.method, tt.odd, `{"x":"y"}`, old...)
			want, _, usual := w.ask(who, tt.method, tt.usual, `{"x":"y"}`, old...)
			if got != want || strings.ReplaceAll(out, "canary-node.json", "canary-node") != usual {
				t.Errorf("%s: %s %s = %d %.300s, and %s = %d %.300s", who, tt.method, tt.odd, got, out, tt.usual, want,
					usual)
			}
			compared++
		}
		if got := w.unsent(tt.method, tt.odd, ""); got != 401 {
			t.Errorf("anonymous: %s %s = %d, want 401 at once", tt.method, tt.odd, got)
		}
	}
	if compared < 150 {
		t.Errorf("%d requests were compared", compared)
	}
	if got := w.large("PUT", "/v1/nodes/maintenance/"+id, 1<<20+1); got != 413 {
		t.Errorf("a large body = %d, want 413", got)
	}
	if after := w.want(200, root, "GET", "/v1/nodes/"+id, "", newest...); after != before {
		t.Errorf("after all this the node is\n%s\nwas\n%s", after, before)
	}
}
