//go:build !race

package app_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// TestControllerPassword sets passwords of controllers, of which some have accounts in slots, and kills the conductor
// before the controller has the new one, before it has answered, and before it is proven: in each case the next
// conductor finds out which password is right, and neither is shown or logged.
func TestControllerPassword(t *testing.T) {
	const next = "canary-password-2"
	for _, c := range []struct {
		name, personality string
		kill              string // when: "", "before", "unanswered", "unproven"
		want              string // the password afterwards
	}{
		{"slots", "dell-idrac9", "", next}, {"ETag", "ami", "", next},
		{"killed before it is set", "generic", "before", redfish.Password},
		{"killed before the answer", "dell-idrac10", "unanswered", next},
		{"killed before it is proven", "hpe-ilo6", "unproven", next},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var b *redfish.Bench
			var d *ingotd.Process
			var took atomic.Bool
			b = redfish.Start(t, redfish.Personality(t, c.personality), func(cfg *service.Config) {
				cfg.Done = func(method, path string) {
					if method != http.MethodPatch || !strings.Contains(path, "/Accounts/") {
						return
					}
					switch c.kill {
					case "unanswered":
						d.Kill()
					case "unproven":
						b.BMC.SetFaults(bmc.Faults{Silent: true})
					}
					took.Store(true)
				}
			})
			d = ingotd.Start(t, kit.FreeAddr(t), "fetch.allow=127.0.0.0/8", "log_level=debug",
				"power.sync_interval=1s")
			said := ""
			get := func(path string) string {
				_, _, out := d.Ask("GET", path, "", nil)
				said += out
				return strings.ReplaceAll(out, " ", "")
			}
			until := func(words string, is bool) {
				t.Helper()
				ingotd.Wait(t, words, func() bool { return strings.Contains(get("/v1/nodes/n"), words) == is })
			}
			info, err := json.Marshal(b.Info)
			if err != nil {
				t.Fatal(err)
			}
			if status, _, out := d.Ask("POST", "/v1/nodes", `{"name":"n","driver":"redfish","driver_info":`+string(info)+`}`,
				nil); status != 201 {
				t.Fatal(out)
			}
			d.Ask("PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`, nil)
			until(`"provision_state":"manageable"`, true)
			const path = "/ingot/v1/nodes/n/controller_password"
			for _, body := range []string{`{}`, `{"password":7}`, `{"password":""}`, `{"password":"a\nb"}`,
				`{"password":"` + strings.Repeat("x", 300) + `"}`, `{"password":"short"}`} {
				if status, _, out := d.Ask("POST", path, body, nil); status != 400 && status != 500 {
					t.Errorf("POST %s = %d %s", body, status, out)
				}
			}
			until("redfish_new_password", false)
			if c.kill == "before" {
				b.BMC.SetFaults(bmc.Faults{Silent: true})
			}
			if c.kill == "" {
				if status, _, out := d.Ask("POST", path, `{"password":"`+next+`"}`, nil); status != 204 {
					t.Fatalf("POST = %d %s", status, out)
				}
			} else {
				go post(d.URL+path, `{"password":"`+next+`"}`) // which is never answered
				switch c.kill {
				case "before":
					until("redfish_new_password", true)
					d.Kill()
				case "unproven":
					ingotd.Wait(t, "the controller has the password", took.Load)
					d.Kill()
				default:
					ingotd.Wait(t, "the controller has the password", took.Load)
				}
				b.BMC.SetFaults(bmc.Faults{})
				d.Again()
			}
			until("redfish_new_password", false)
			if is := b.Service.Password(); is != c.want {
				t.Errorf("the controller's password is %q, want %q", is, c.want)
			}
			if status, _, out := d.Ask("PUT", "/v1/nodes/n/states/power", `{"target":"power on"}`, nil); status != 202 {
				t.Fatalf("power on = %d %s", status, out)
			}
			until(`"power_state":"poweron"`, true)
			if said += d.Log.String(); strings.Contains(said, "canary-password") {
				t.Error("a password is in an answer or in the log")
			}
		})
	}
}

// post sends a request without waiting for the answer.
func post(url, body string) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
	}
}
