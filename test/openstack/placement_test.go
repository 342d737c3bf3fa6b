package openstack

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/placement"
	"github.com/ingot-metal/ingot/conductor/store"
)

// counted has machines of another store counted in the same Placement, beside those that Nova reports: they are offered
// with their traits, what others change is mended, and they are gone with their nodes.
func (s *site) counted(novas string) {
	s.t.Helper()
	st, err := store.Open(s.t.Context(), store.Options{Dir: s.t.TempDir()})
	if err != nil {
		s.t.Fatal(err)
	}
	defer st.Close()
	client, err := oscloud.New(oscloud.Config{Name: "Placement", URL: s.cloud.URLs["placement"],
		Header: placement.Header, Forget: func(string) {},
		Login: func(context.Context) (string, error) { return s.token, nil }})
	if err != nil {
		s.t.Fatal(err)
	}
	const group = "8c9a4b5e-0000-4000-8000-0000000000a1"
	count := placement.New(st, nil, placement.Config{Client: client, Hostname: "c1", Mark: "ab12",
		Groups: map[string]string{"rack1": group}, Interval: time.Minute}, nil)
	report := func() {
		s.t.Helper()
		if err := count.Report(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	var ids []string
	for i, boot := range []*node.Boot{nil, {Kept: true, Connected: true}} {
		n := &node.Node{Name: fmt.Sprint("counted", i), Driver: "x", ResourceClass: "bm.counted",
			ConductorGroup: "rack1", Provision: node.Available, Power: "power off", Boot: boot,
			Traits: []string{"CUSTOM_COUNTED", "HW_CPU_X86_VMX"}}
		if err := st.CreateNode(s.t.Context(), n); err != nil {
			s.t.Fatal(err)
		}
		ids = append(ids, n.UUID)
	}
	report()
	offered := func(more string) (ids []string) {
		s.t.Helper()
		all, _ := s.get("placement", "/allocation_candidates?resources=CUSTOM_BM_COUNTED:1"+more,
			"provider_summaries").(object)
		for id := range all {
			ids = append(ids, id)
		}
		return ids
	}
	if got := offered("&required=CUSTOM_COUNTED,HW_CPU_X86_VMX&member_of=" + group); len(got) != 2 {
		s.t.Errorf("Placement offers %v", got)
	}
	if got := offered("&required=" + placement.Warm); len(got) != 1 || got[0] != ids[1] {
		s.t.Errorf("the machines that are warm are %v", got)
	}
	// Somebody else changes one, and a machine goes into maintenance.
	path := "/resource_providers/" + ids[0]
	have, _ := s.get("placement", path+"/inventories").(object)
	have["inventories"].(object)["CUSTOM_BM_COUNTED"].(object)["total"] = 5
	have["inventories"].(object)["CUSTOM_BM_COUNTED"].(object)["max_unit"] = 5
	if status, out := s.ask("placement", http.MethodPut, path+"/inventories", have); status != http.StatusOK {
		s.t.Fatalf("change an inventory: %d %v", status, out)
	}
	if _, err := st.UpdateNode(s.t.Context(), ids[1], func(n *node.Node) error {
		n.Maintenance = true
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	report()
	now, _ := s.get("placement", path+"/inventories", "inventories", "CUSTOM_BM_COUNTED").(object)
	if got := offered(""); now["total"] != 1.0 || len(got) != 1 || got[0] != ids[0] {
		s.t.Errorf("the inventory is %v, and offered are %v", now, got)
	}
	// What Nova reports is not touched.
	if err := st.CreateNode(s.t.Context(), &node.Node{UUID: novas, Driver: "x", ResourceClass: "bm.counted",
		Provision: node.Available, Power: "power off"}); err != nil {
		s.t.Fatal(err)
	}
	before := fmt.Sprint(s.get("placement", "/resource_providers/"+novas+"/inventories"))
	if err := count.Report(s.t.Context()); err == nil || !strings.Contains(err.Error(), "Nova's Ironic driver") {
		s.t.Errorf("a node that Nova reports: %v", err)
	}
	if after := fmt.Sprint(s.get("placement", "/resource_providers/"+novas+"/inventories")); after != before {
		s.t.Errorf("the inventory of Nova's was %s, and is %s", before, after)
	}
	for _, id := range append(ids, novas) {
		if err := st.DeleteNode(s.t.Context(), id); err != nil {
			s.t.Fatal(err)
		}
	}
	report()
	if left, _ := s.get("placement", "/resource_providers", "resource_providers").([]any); len(left) != 1 {
		s.t.Errorf("after the end Placement has %v", left)
	}
}
