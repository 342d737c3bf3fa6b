package redfish

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/vendor"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// args are arguments of a vendor method.
type args = map[string]any

// subscriber receives events of controllers.
func subscriber(t *testing.T) (address string, got chan string) {
	t.Helper()
	got = make(chan string, 16)
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			got <- r.Header.Get("X-Token") + " " + string(b)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(web.Close)
	return web.URL + "/events?token=a", got
}

// Every personality takes a subscription, whose destination hears of a change of power; it can be listed and deleted.
func TestSubscriptions(t *testing.T) {
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name))
			v, n := vendor.New(b.management()), b.node()
			address, got := subscriber(t)
			call := func(method string, params args) string {
				t.Helper()
				out, err := v.Call(t.Context(), n, method, params)
				if err != nil {
					t.Fatalf("%s: %v", method, err)
				}
				shown, err := json.Marshal(out)
				if err != nil {
					t.Fatal(err)
				}
				return string(shown)
			}
			made := call("create_subscription", args{"Destination": address, "Context": "rack 1",
				"DeliveryRetryPolicy": "RetryForever", "HttpHeaders": []any{args{"X-Token": "canary-token"}}})
			want := `{"Id":"1","Context":"rack 1","Protocol":"Redfish","Destination":"` + address + `","EventTypes":["Alert"]}`
			if made != want {
				t.Errorf("made %s, want %s", made, want)
			}
			if all := call("get_all_subscriptions", nil); !strings.Contains(all, `"Members@odata.count":1`) ||
				!strings.Contains(all, `{"@odata.id":"/redfish/v1/EventService/Subscriptions/1"}`) {
				t.Errorf("all are %s", all)
			}
			if one := call("get_subscription", args{"id": "1"}); one != want {
				t.Errorf("it reads %s", one)
			}
			if err := b.open(b.pool, nil).SetPower(t.Context(), power.TurnOn); err != nil {
				t.Fatal(err)
			}
			select {
			case event := <-got:
				if !strings.HasPrefix(event, "canary-token ") || !strings.Contains(event, `"Context":"rack 1"`) ||
					!strings.Contains(event, "The machine is on.") {
					t.Errorf("the event is %s", event)
				}
			case <-time.After(30 * time.Second):
				t.Error("no event came")
			}
			call("delete_subscription", args{"id": "1"})
			if all := call("get_all_subscriptions", nil); !strings.Contains(all, `"Members":[]`) {
				t.Errorf("after deletion there are %s", all)
			}
			for _, method := range []string{"get_subscription", "delete_subscription"} {
				// The second is a path that a careless client would ask for.
				for _, id := range []string{"1", "../../Systems/1"} {
					_, err := v.Call(t.Context(), n, method, args{"id": id})
					if power.KindOf(err) != power.Refused || !strings.Contains(err.Error(), "list all subscriptions") {
						t.Errorf("%s of %s: %v", method, id, err)
					}
				}
			}
			if strings.Contains(b.log.String(), "canary-token") {
				t.Error("the log has the header")
			}
		})
	}
}

// A request that makes no sense is refused as such, and not repeated with its secrets.
func TestSubscriptionsThatMakeNoSense(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	v, n := vendor.New(b.management()), b.node()
	const to = "https://192.0.2.1/events"
	for text, params := range map[string]args{
		"Destination": {}, "needs a scheme": {"Destination": "192.0.2.1"}, "a host": {"Destination": "file:///etc"},
		"Context":                            {"Destination": to, "Context": 1.0},
		"Protocol":                           {"Destination": to, "Protocol": true},
		"DeliveryRetryPolicy":                {"Destination": to, "DeliveryRetryPolicy": []any{}},
		"HttpHeaders":                        {"Destination": to, "HttpHeaders": args{"Authorization": "canary"}},
		"EventTypes 7":                       {"Destination": to, "EventTypes": 7.0},
		"allowed values Alert, StatusChange": {"Destination": to, "EventTypes": []any{"Alert", "Gossip"}},
	} {
		_, err := v.Call(t.Context(), n, "create_subscription", params)
		if !errors.As(err, new(*hardware.InvalidError)) || !strings.Contains(err.Error(), text) ||
			strings.Contains(err.Error(), "canary") {
			t.Errorf("%v: %v, want one with %q", params, err, text)
		}
	}
	for method, params := range map[string]args{"get_subscription": {}, "delete_subscription": {"id": 3.0},
		"eject_vmedia": {"boot_device": "tape"}, "nothing": {}} {
		if _, err := v.Call(t.Context(), n, method, params); !errors.As(err, new(*hardware.InvalidError)) {
			t.Errorf("%s(%v): %v", method, params, err)
		}
	}
	_, err := v.Call(t.Context(), n, "create_subscription", args{"Destination": to, "Protocol": "SNMPv1",
		"HttpHeaders": []any{args{"Authorization": "canary"}}})
	if power.KindOf(err) != power.Refused || !strings.Contains(err.Error(), "SNMPv1") ||
		strings.Contains(err.Error(), "canary") {
		t.Errorf("a protocol that the controller lacks: %v", err)
	}
	for range 8 {
		if _, err = v.Call(t.Context(), n, "create_subscription", args{"Destination": to}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = v.Call(t.Context(), n, "create_subscription", args{"Destination": to}); power.KindOf(err) !=
		power.Refused {
		t.Errorf("one more than the controller takes: %v", err)
	}
}

// eject_vmedia takes out the media of a kind, or all.
func TestEjectByVendorMethod(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	m, v, n := b.management(), vendor.New(b.management()), b.node()
	image := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "a.iso", time.Now(), strings.NewReader(strings.Repeat("x", 4096)))
	}))
	defer image.Close()
	for _, device := range []string{"", "CD"} {
		if err := m.AttachMedia(t.Context(), n, "cdrom", image.URL+"/a.iso"); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Call(t.Context(), n, "eject_vmedia", args{"boot_device": device}); err != nil {
			t.Errorf("eject %q: %v", device, err)
		}
		media, err := m.VirtualMedia(t.Context(), n)
		for _, one := range media {
			if one.Inserted || err != nil {
				t.Errorf("after ejection of %q: %v, %v", device, media, err)
			}
		}
	}
}

// A hostile controller delays no caller, and nothing of it reaches a terminal.
func TestHostileSubscriptions(t *testing.T) {
	for _, behaviour := range hostile {
		t.Run(string(behaviour), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, "generic", behaviour),
				func(c *service.Config) { c.Elsewhere = "127.0.0.1:1" })
			v, n := vendor.New(b.management()), b.node()
			for _, method := range []string{"create_subscription", "get_all_subscriptions", "get_subscription",
				"delete_subscription"} {
				out, err := v.Call(t.Context(), n, method, args{"Destination": "https://192.0.2.1/", "id": "1"})
				shown, jerr := json.Marshal(out)
				if said := string(shown) + errorText(err); jerr != nil || len(said) > 1<<20 ||
					strings.ContainsAny(said, "\x1b\u202e") || strings.Contains(said, `\u001b`) {
					t.Errorf("%s says %.300q", method, said)
				}
			}
			if n := b.Service.Requests(); n > 200 {
				t.Errorf("%d requests", n)
			}
		})
	}
}
