package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestNodesGoToPlacement: an ingotd that is told of a Placement reports a new node there at once, as its user in
// Keystone.
func TestNodesGoToPlacement(t *testing.T) {
	ks := keystonetest.Start(t)
	ks.AddUser("ingot", "own")
	ks.Grant("ingot", "service", "service", "admin")
	ks.AddUser("root", "pw")
	ks.Grant("root", "", "admin")
	var mu sync.Mutex
	made, requests := "", []string{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var in struct{ UUID string }
		if r.Method == http.MethodPost && json.NewDecoder(r.Body).Decode(&in) == nil {
			made = in.UUID
		}
		requests = append(requests, r.Method+" "+r.URL.Path+" in "+r.Header.Get("OpenStack-API-Version"))
		if r.Header.Get("X-Auth-Token") == "" {
			t.Errorf("%s %s comes without a token", r.Method, r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPut && (strings.HasPrefix(r.URL.Path, "/traits/") ||
			strings.HasPrefix(r.URL.Path, "/resource_classes/")) {
			w.WriteHeader(http.StatusCreated)
			return
		}
		// All of what is read: nothing is there.
		_, _ = w.Write([]byte(`{"traits": [], "resource_providers": [], "inventories": {}, "aggregates": []}`))
	}))
	t.Cleanup(web.Close)
	d := ingotd.Start(t, kit.FreeAddr(t), "api.auth=keystone", "api.keystone.auth_url="+ks.URL,
		"api.keystone.username=ingot", "api.keystone.password=own", "placement.url="+web.URL,
		"placement.aggregates=rack1=8c9a4b5e-0000-4000-8000-0000000000a1")
	status, _, body := d.Ask("POST", "/v1/nodes", `{"driver":"fake-hardware","resource_class":"large","conductor_group":""}`,
		map[string]string{"X-OpenStack-Ironic-API-Version": "1.109", "X-Auth-Token": ks.Token("root", "")})
	if status != http.StatusCreated {
		t.Fatalf("POST = %d %s", status, body)
	}
	ingotd.Wait(t, "the node is in Placement", func() bool {
		mu.Lock()
		defer mu.Unlock()
		seen := strings.Join(requests, "\n")
		return made != "" && strings.Contains(body, made) && strings.Contains(seen,
			"PUT /resource_providers/"+made+"/inventories in placement 1.30") &&
			strings.Contains(seen, "GET /resource_providers/"+made+"/aggregates") &&
			strings.Contains(seen, "PUT /resource_classes/CUSTOM_LARGE")
	})
}
