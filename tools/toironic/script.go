package toironic

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// stable are the states of nodes that are carried, and verbs how each is reached after enroll.
var (
	stable = slices.Sorted(maps.Keys(verbs))
	verbs  = map[string]struct {
		verbs []string
		as    string // the state it gets, if it is another one
	}{
		"enroll": {}, "manageable": {verbs: []string{"manage"}}, "available": {verbs: []string{"manage", "provide"}},
		"active":          {verbs: []string{"manage", "adopt"}},
		"rescue":          {[]string{"manage", "adopt"}, "active"},
		"rescue failed":   {[]string{"manage", "adopt"}, "active"},
		"unrescue failed": {[]string{"manage", "adopt"}, "active"},
		"service failed":  {[]string{"manage", "adopt"}, "active"},
		"clean failed":    {[]string{"manage"}, "manageable"},
		"inspect failed":  {[]string{"manage"}, "manageable"},
		"adopt failed":    {[]string{"manage"}, "manageable"},
		"deploy failed":   {[]string{"manage"}, "manageable"},
		"error":           {[]string{"manage"}, "manageable"},
	}
)

// pairs are options NAME=KEY=VALUE for each entry of a map.
func pairs(option string, m map[string]any) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		v := m[key]
		word, ok := v.(string)
		if !ok || numberLike(word) {
			word = encoded(v)
		}
		out = append(out, option+"="+key+"="+word)
	}
	return out
}

// numberLike reports whether the client would take a text for JSON.
func numberLike(s string) bool {
	return json.Valid([]byte(s))
}

// state brings a node into its state. Nothing is written to its disks: cleaning is off meanwhile.
func (e *export) state(n Object) {
	id, what := text(n, "uuid"), called("node", n)
	fmt.Fprintf(&e.script, "\n")
	if traits, _ := n["traits"].([]any); len(traits) > 0 {
		words := []string{"baremetal", "node", "add", "trait", id}
		for _, t := range traits {
			words = append(words, fmt.Sprint(t))
		}
		e.command(words...)
	}
	set := []string{"baremetal", "node", "set", id}
	for _, key := range []string{"owner", "lessee", "description"} {
		if v := text(n, key); v != "" {
			set = append(set, "--"+key+"="+v)
		}
	}
	if v := text(n, "instance_uuid"); v != "" && !e.allocated(n) {
		set = append(set, "--instance-uuid="+v)
	}
	if info, ok := n["instance_info"].(map[string]any); ok {
		set = append(set, pairs("--instance-info", e.unmask(what+", instance_info", info))...)
	}
	if raid, ok := n["target_raid_config"].(map[string]any); ok && len(raid) > 0 {
		set = append(set, "--target-raid-config="+encoded(raid))
	}
	if len(set) > 4 {
		e.command(set...)
	}
	s := text(n, "provision_state")
	to := verbs[s]
	provides := slices.Contains(to.verbs, "provide")
	if provides {
		e.command("baremetal", "node", "set", id, "--no-automated-clean")
	}
	for _, verb := range to.verbs {
		e.command("baremetal", "node", verb, id, "--wait=600")
	}
	if provides {
		switch n["automated_clean"] {
		case true:
			e.command("baremetal", "node", "set", id, "--automated-clean")
		case nil:
			// Ironic 21.4 answers the removal with a fault: cleaning is on there then, as without the field.
			e.script.WriteString(command("baremetal", "node", "unset", id, "--automated-clean") + " ||\n\t" +
				command("baremetal", "node", "set", id, "--automated-clean") + "\n")
		}
	}
	if to.as != "" {
		e.note("%s: its state %s; it becomes %s", what, s, to.as)
	}
	for _, flag := range []string{"protected", "retired"} {
		if n[flag] != true {
			continue
		}
		words := []string{"baremetal", "node", "set", id, "--" + flag}
		if why := text(n, flag+"_reason"); why != "" {
			words = append(words, "--"+flag+"-reason="+why)
		}
		e.command(words...)
	}
	if n["maintenance"] == true {
		words := []string{"baremetal", "node", "maintenance", "set", id}
		if why := text(n, "maintenance_reason"); why != "" {
			words = append(words, "--reason="+why)
		}
		e.command(words...)
	}
	if n["console_enabled"] == true {
		e.note("%s: that its console is on", what)
	}
}

// allocated reports whether an allocation that is carried gives a node its instance.
func (e *export) allocated(n Object) bool {
	return slices.ContainsFunc(e.things.Allocations, func(a Object) bool {
		return text(a, "node_uuid") == text(n, "uuid") && text(a, "state") == "active"
	})
}

func (e *export) allocations() {
	for _, a := range e.things.Allocations {
		n := text(a, "node_uuid")
		if n == "" || e.gone[n] || text(a, "state") != "active" {
			e.note("%s: it has no node that is carried", called("allocation", a))
			continue
		}
		words := []string{"baremetal", "allocation", "create", "--uuid=" + text(a, "uuid"), "--node=" + n}
		for _, o := range [][2]string{{"--name=", "name"}, {"--owner=", "owner"},
			{"--resource-class=", "resource_class"}} {
			if v := text(a, o[1]); v != "" {
				words = append(words, o[0]+v)
			}
		}
		for _, o := range [][2]string{{"--trait=", "traits"}, {"--candidate-node=", "candidate_nodes"}} {
			list, _ := a[o[1]].([]any)
			for _, v := range list {
				words = append(words, o[0]+fmt.Sprint(v))
			}
		}
		e.command(append(words, pairs("--extra", object(a, "extra"))...)...)
	}
}

func object(o Object, key string) map[string]any {
	m, _ := o[key].(map[string]any)
	return m
}

// resources are templates, runbooks, rules and volumes.
func (e *export) resources() {
	for _, t := range e.things.Templates {
		if e.steps("deploy template", t) {
			e.command(append([]string{"baremetal", "deploy", "template", "create", text(t, "name"),
				"--uuid=" + text(t, "uuid"), "--steps=" + encoded(t["steps"])},
				pairs("--extra", object(t, "extra"))...)...)
		}
	}
	for _, b := range e.things.Runbooks {
		if !e.since("runbook", b, rest.VersionRunbooks) || !e.steps("runbook", b) {
			continue
		}
		words := []string{"baremetal", "runbook", "create", "--name=" + text(b, "name"),
			"--uuid=" + text(b, "uuid"), "--steps=" + encoded(b["steps"])}
		if b["public"] == true {
			words = append(words, "--public=true")
		} else if owner := text(b, "owner"); owner != "" {
			words = append(words, "--owner="+owner)
		}
		if b["disable_ramdisk"] == true {
			words = append(words, "--disable-ramdisk")
		}
		e.command(append(words, pairs("--extra", object(b, "extra"))...)...)
	}
	for _, r := range e.things.Rules {
		if !e.since("inspection rule", r, rest.VersionRules) {
			continue
		}
		if r["actions"] == nil {
			e.note("inspection rule %s: it is sensitive, and the API does not show what it does", text(r, "uuid"))
			continue
		}
		words := []string{"baremetal", "inspection", "rule", "create", "--uuid=" + text(r, "uuid"),
			"--priority=" + encoded(r["priority"]), "--phase=" + text(r, "phase"), "--actions=" + encoded(r["actions"]),
			"--conditions=" + encoded(r["conditions"])}
		if d := text(r, "description"); d != "" {
			words = append(words, "--description="+d)
		}
		e.command(words...)
	}
	for _, v := range e.things.Connectors {
		if !e.gone[text(v, "node_uuid")] {
			e.command(append([]string{"baremetal", "volume", "connector", "create", "--node=" + text(v, "node_uuid"),
				"--uuid=" + text(v, "uuid"), "--type=" + text(v, "type"), "--connector-id=" + text(v, "connector_id")},
				pairs("--extra", object(v, "extra"))...)...)
		}
	}
	for _, v := range e.things.Targets {
		if e.gone[text(v, "node_uuid")] {
			continue
		}
		words := []string{"baremetal", "volume", "target", "create", "--node=" + text(v, "node_uuid"),
			"--uuid=" + text(v, "uuid"), "--type=" + text(v, "volume_type"), "--volume-id=" + text(v, "volume_id"),
			"--boot-index=" + encoded(v["boot_index"])}
		words = append(words, pairs("--property",
			e.unmask("volume target "+text(v, "uuid"), object(v, "properties")))...)
		e.command(append(words, pairs("--extra", object(v, "extra"))...)...)
	}
}

func (e *export) since(kind string, o Object, v rest.Version) bool {
	if v > e.version {
		e.note("%s: such objects are of version %s", called(kind, o), v)
		return false
	}
	return true
}

// steps reports whether the steps of an object are all known.
func (e *export) steps(kind string, o Object) bool {
	if masked(o["steps"]) {
		e.note("%s: its steps have secrets, which the API masks", called(kind, o))
		return false
	}
	return true
}
