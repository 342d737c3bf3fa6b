//go:build !race

package app_test

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/redfish"
)

// A node's controller takes subscriptions to its events through the vendor methods that clients of Ironic know; those
// send the arguments of a GET and of a DELETE in the body.
func TestSubscriptionsThroughRedfish(t *testing.T) {
	r := newRacked(t)
	b := redfish.Start(t, redfish.Personality(t, "dell-idrac9"))
	r.enrol("n1", b, "")
	const at = "/v1/nodes/n1/vendor_passthru"
	methods := r.ask(200, "GET", at+"/methods", "")
	for _, m := range []string{"create_subscription", "delete_subscription", "eject_vmedia", "get_all_subscriptions",
		"get_subscription"} {
		if !strings.Contains(methods, `"`+m+`"`) {
			t.Errorf("there is no %s: %s", m, methods)
		}
	}
	made := r.ask(200, "POST", at+"?method=create_subscription",
		`{"Destination":"https://192.0.2.1/x","Context":"c","HttpHeaders":[{"A":"canary"}]}`)
	if !strings.Contains(made, `"Id":"1"`) || !strings.Contains(made, `"Destination":"https://192.0.2.1/x"`) {
		t.Errorf("made %s", made)
	}
	if one := r.ask(200, "GET", at+"?method=get_subscription", `{"id":"1"}`); one != made {
		t.Errorf("it reads %s, not %s", one, made)
	}
	if all := r.ask(200, "GET", at+"/get_all_subscriptions", ""); !strings.Contains(all, "Subscriptions/1") {
		t.Errorf("all are %s", all)
	}
	r.ask(400, "GET", at+"?method=get_subscription", "")
	r.ask(400, "GET", at+"?method=get_subscription", `{"id"`)
	r.ask(400, "POST", at+"?method=delete_subscription", `{"id":"1"}`)
	r.ask(400, "DELETE", at+"?method=delete_subscription", `{"id":"2"}`)
	r.ask(200, "DELETE", at+"?method=delete_subscription", `{"id":"1"}`)
	if all := r.ask(200, "GET", at+"/get_all_subscriptions", ""); strings.Contains(all, "Subscriptions/1") {
		t.Errorf("after deletion: %s", all)
	}
	r.ask(202, "POST", at+"?method=eject_vmedia", `{}`)
	r.ask(400, "POST", at+"?method=eject_vmedia", `{"boot_device":"tape"}`)
}
