// Package arch holds the rules of the code's structure, as tests: which package and which room may import which, what
// the agent may pull in, how large a package may be, and that each package says in one comment what it is for.
package arch

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ingot-metal/ingot/"

// may lists what a package may import of ours. A name ending in /... stands for the package and all below it. A package
// that is not listed may import nothing of ours: add a line here, and think about whether the arrow points down.
var may = map[string][]string{
	"proto/agentv1":    {},
	"proto/rootdevice": {},
	"proto/steparg":    {},
	"proto/drive":      {"images/fs/iso9660", "proto/segment"},
	"proto/lldp":       {},
	"proto/segment":    {},
	"proto/netdata":    {},
	"proto/swarm":      {"proto/agentv1"},

	"agent": {"proto/agentv1", "proto/steparg", "proto/swarm", "agent/...", "images/...",
		"initramfs/pid1"},
	"agent/cmd/ingot-agent": {"agent/...", "initramfs/pid1", "proto/lldp", "proto/rootdevice",
		"proto/netdata", "proto/segment"},
	"agent/standalone":    {"agent", "agent/...", "images/..."},
	"agent/step":          {"proto/steparg"},
	"agent/step/site":     {"agent/step"},
	"agent/fetch":         {"agent/step", "images/..."},
	"agent/image/chunked": {"agent/step", "agent/disk", "agent/fetch", "agent/image/trace", "images/..."},
	"agent/image": {"agent/step", "agent/image/configdrive", "agent/disk", "agent/fetch",
		"agent/image/swarm", "agent/image/chunked", "agent/image/sink", "agent/image/trace", "images/..."},
	"agent/image/sink":  {"agent/step", "agent/disk", "agent/image/trace"},
	"agent/image/trace": {"agent/step"},
	"agent/image/swarm": {"agent/step", "images/index", "proto/swarm"},
	"agent/disk": {"agent/step", "images/blkid", "images/gpt", "images/fs/fat", "images/fs/ext4",
		"proto/rootdevice"},
	"agent/disk/export": {"agent/step", "agent/disk", "proto/steparg"},
	"agent/disk/erase":  {"agent/step", "images/blkid", "images/gpt", "agent/disk", "agent/machine/passthru"},
	"agent/burnin":      {"agent/step", "agent/disk", "agent/disk/erase", "agent/machine/passthru"},
	"agent/image/configdrive": {"agent/step", "agent/disk", "images/fs/fat", "images/fs/iso9660", "agent/fetch",
		"proto/drive"},
	"agent/machine/ram": {},
	"agent/boot/ramdisk": {"agent/step", "agent/machine/ram", "agent/fetch", "agent/boot/bootentry",
		"images/fs/iso9660", "proto/drive"},
	"agent/image/inject": {"agent/step", "images/blkid", "agent/disk", "images/fs/fat", "images/fs/ext4",
		"agent/fetch"},
	"agent/boot":           {"agent/step", "agent/disk", "images/gpt", "images/fs/fat", "images/fs/ext4"},
	"agent/boot/bootentry": {},
	"agent/boot/kexec": {"agent/step", "images/blkid", "agent/machine/ram", "agent/disk", "agent/boot/bootentry",
		"images/fs/fat", "images/fs/ext4", "images/fs/xfs", "images/fs/btrfs"},
	"agent/inventory": {"agent/step", "agent/disk", "agent/disk/raid", "agent/machine/passthru",
		"agent/inventory/smbios", "proto/lldp"},
	"agent/rescue":      {"agent/step"},
	"agent/ipa":         {"agent/step", "agent/fetch", "agent/rescue", "agent/ipa/..."},
	"agent/ipa/command": {},
	"agent/ipa/ironic":  {},
	"agent/ipa/steps": {"agent/step", "agent/fetch", "agent/rescue", "agent/ipa/command",
		"agent/ipa/ironic"},
	"agent/inventory/smbios": {},
	"agent/machine/lldp":     {"proto/lldp"},
	"agent/machine/passthru": {"agent/step"},
	"agent/disk/raid":        {"agent/step", "agent/disk"},
	"agent/machine/netup":    {"proto/netdata"},
	"agent/machine/mdns":     {},
	"agent/machine/linux":    {},
	"agent/machine/fake":     {},
	"initramfs/pid1":         {},

	"images/...":    {"images/..."},
	"images/fs/...": {"images/fs/openfs"}, // file systems are made for hostile bytes, and know nothing of images
	"images/build":  {"images/gpt", "images/fs/fat", "initramfs/archive", "initramfs/kernel"},

	"conductor/app":        {"conductor/..."},
	"conductor/cmd/ingotd": {"conductor/app"},
	"conductor/config": {"conductor/config/rule", "conductor/guard/dial", "conductor/guard/limit",
		"conductor/observe/audit",
		"conductor/signoflife"},
	"conductor/config/rule":  {},
	"conductor/rest/exact":   {},
	"conductor/guard/limit":  {},
	"conductor/node":         {},
	"conductor/guard/redact": {},
	"conductor/guard/clean":  {},
	"conductor/engine": {"conductor/engine/...", "conductor/guard/dial", "conductor/hardware", "conductor/inspect",
		"conductor/inspect/hook", "conductor/guard/limit", "conductor/node", "conductor/hardware/power",
		"conductor/guard/redact",
		"conductor/signoflife", "conductor/node/ramdiskdeploy", "proto/netdata", "proto/steparg"},
	"conductor/engine/instance": {"conductor/node", "conductor/guard/redact", "proto/rootdevice"},
	"conductor/engine/catalog":  {"conductor/node", "proto/steparg"},
	"conductor/engine/start": {"conductor/engine/catalog", "conductor/engine/instance", "conductor/node",
		"conductor/hardware/power", "conductor/signoflife"},
	"conductor/engine/program": {"conductor/engine/catalog", "conductor/engine/instance", "conductor/engine/start",
		"conductor/hardware", "conductor/node", "conductor/guard/redact", "conductor/signoflife",
		"conductor/node/ramdiskdeploy",
		"proto/drive", "proto/steparg"},
	"conductor/engine/findings": {"conductor/engine/instance", "conductor/guard/dial", "conductor/inspect",
		"conductor/inspect/hook", "conductor/guard/limit", "conductor/node", "conductor/guard/redact"},
	"conductor/engine/record": {"conductor/engine/catalog", "conductor/engine/instance", "conductor/node",
		"conductor/guard/limit", "conductor/guard/redact"},
	"conductor/engine/turn": {},
	"conductor/engine/watch": {"conductor/guard/dial", "conductor/node", "conductor/hardware/power",
		"conductor/signoflife"},
	"conductor/agents/erasure": {"conductor/guard/keyfile"},
	"conductor/store": {"conductor/guard/clean", "conductor/agents/erasure", "conductor/guard/keyfile",
		"conductor/node",
		"conductor/guard/limit", "conductor/guard/redact", "conductor/store/postgres", "conductor/store/prepared",
		"conductor/store/seal"},
	"conductor/glance": {"conductor/engine/instance", "conductor/guard/keyfile", "conductor/guard/limit",
		"conductor/node"},
	"conductor/guard/oscloud": {"conductor/guard/clean", "conductor/guard/keyfile", "conductor/guard/limit"},
	"conductor/network/neutron": {"conductor/guard/clean", "conductor/guard/oscloud", "conductor/node",
		"proto/netdata"},
	"conductor/placement": {"conductor/guard/oscloud", "conductor/node", "conductor/observe/events",
		"conductor/schedule/rounds", "conductor/store"},
	"conductor/guard/dial":          {},
	"conductor/member":              {"conductor/node", "conductor/store/postgres"},
	"conductor/peer":                {"conductor/access", "conductor/guard/limit"},
	"conductor/store/postgres":      {"conductor/guard/clean"},
	"conductor/store/prepared":      {},
	"conductor/store/seal":          {"conductor/guard/keyfile"},
	"conductor/app/drain":           {"conductor/engine"},
	"conductor/app/setup":           {"conductor/config"},
	"conductor/app/doctor/firewall": {},
	"conductor/app/doctor": {"conductor/app/doctor/firewall", "conductor/agents", "conductor/config",
		"conductor/agents/erasure",
		"conductor/guard/clean", "conductor/guard/keyfile", "conductor/guard/oscloud",
		"conductor/netboot", "conductor/netboot/probe", "conductor/network/switches", "conductor/observe/shortage",
		"conductor/store", "conductor/store/postgres"},
	"conductor/store/backup":  {"conductor/guard/keyfile", "conductor/store"},
	"conductor/store/migrate": {"conductor/guard/keyfile", "conductor/store", "conductor/store/postgres"},
	"conductor/importer": {"conductor/guard/oscloud", "conductor/hardware/driver", "conductor/inspect",
		"conductor/node", "conductor/guard/redact", "conductor/rest",
		"conductor/store"},
	"conductor/store/...":                {"conductor/node", "conductor/store"},
	"conductor/network/switches":         {"conductor/network/switches/dialect", "conductor/node"},
	"conductor/network/switches/dialect": {},
	"conductor/hardware/power":           {},
	"conductor/hardware/power/...":       {"conductor/guard/limit", "conductor/hardware/power"},
	"conductor/hardware/redfish": {"conductor/hardware", "conductor/hardware/power",
		"conductor/hardware/redfish/...", "conductor/node"},
	"conductor/hardware/ipmi": {"conductor/hardware", "conductor/hardware/power", "conductor/node"},
	"conductor/hardware/openstack": {"conductor/guard/clean", "conductor/guard/oscloud", "conductor/hardware",
		"conductor/hardware/power", "conductor/hardware/redfish/inventory", "conductor/node"},
	"conductor/hardware/redfish/controller": {"conductor/guard/dial", "conductor/guard/limit",
		"conductor/hardware/power", "conductor/hardware/redfish/quirk", "conductor/hardware/redfish/sessions"},
	"conductor/hardware/redfish/quirk":    {},
	"conductor/hardware/redfish/sessions": {},
	"conductor/hardware/redfish/raid":     {"conductor/hardware/redfish/controller", "conductor/rest/exact"},
	"conductor/hardware/redfish/...": {"conductor/guard/limit", "conductor/hardware", "conductor/hardware/power",
		"conductor/hardware/redfish/controller", "conductor/hardware/redfish/quirk", "conductor/node"},
	"conductor/agents": {"conductor/guard/clean", "conductor/guard/keyfile", "conductor/guard/limit", "conductor/node",
		"conductor/guard/redact", "conductor/agents/swarm", "proto/agentv1", "proto/swarm"},
	"conductor/guard/keyfile": {},
	"conductor/agents/swarm":  {"proto/agentv1", "proto/swarm"},
	"conductor/signoflife":    {},
	"conductor/agents/...":    {"proto/agentv1"}, // agentstest: a simulated agent
	"conductor/netboot": {"conductor/guard/clean", "conductor/guard/limit", "conductor/netboot/bootiso",
		"conductor/hardware/power", "conductor/netboot/probe",
		"conductor/netboot/rawudp", "conductor/node", "conductor/guard/redact", "conductor/node/ramdiskdeploy",
		"proto/netdata"},
	"conductor/netboot/probe":      {"conductor/guard/limit", "conductor/guard/clean", "conductor/netboot/rawudp"},
	"conductor/netboot/rawudp":     {},
	"conductor/netboot/mdns":       {},
	"conductor/netboot/bootiso":    {"images/fs/fat", "images/fs/iso9660", "proto/segment"},
	"conductor/node/ramdiskdeploy": {"conductor/node", "proto/drive"},
	"conductor/hardware/driver":    {"conductor/node", "conductor/hardware/power"},
	"conductor/observe/events":     {"conductor/guard/limit", "conductor/node"},
	"conductor/hardware":           {"conductor/node", "proto/steparg"},
	"conductor/hardware/...":       {"conductor/hardware", "conductor/node", "conductor/hardware/power/fake"},
	"conductor/rest":               {"conductor/guard/limit", "conductor/guard/redact"},
	"conductor/observe/health":     {"conductor/hardware", "conductor/node"},
	"conductor/observe/shortage":   {},
	"conductor/observe/metrics":    {"conductor/guard/limit", "conductor/node"},
	"conductor/observe/logs":       {},
	"conductor/observe/audit":      {},
	"conductor/observe/spans":      {"conductor/node", "conductor/observe/trace", "conductor/rest"},
	"conductor/schedule/alloc":     {"conductor/node", "conductor/store"},
	"conductor/schedule/pool": {"conductor/observe/events", "conductor/node", "conductor/schedule/rounds",
		"conductor/store"},
	"conductor/schedule/reserve": {"conductor/observe/events", "conductor/node", "conductor/schedule/rounds",
		"conductor/store"},
	"conductor/schedule/rounds": {"conductor/observe/events", "conductor/node"},
	"conductor/access":          {"conductor/guard/keyfile", "conductor/guard/limit", "conductor/node"},
	"conductor/inspect":         {"conductor/inspect/hook", "conductor/node", "conductor/guard/redact"},
	"conductor/inspect/hook":    {"conductor/node", "proto/rootdevice", "proto/lldp"},
	"conductor/access/...":      {}, // keystonetest: a Keystone for tests
	"conductor/api": {"conductor/api/...", "conductor/access", "conductor/hardware/driver", "conductor/engine",
		"conductor/agents/erasure", "conductor/observe/audit", "conductor/observe/events", "conductor/hardware",
		"conductor/inspect", "conductor/guard/limit",
		"conductor/node", "conductor/hardware/power", "conductor/peer", "conductor/rest", "conductor/store"},
	"conductor/api/allocations": {"conductor/access", "conductor/schedule/alloc", "conductor/api/call",
		"conductor/api/document",
		"conductor/api/finder", "conductor/api/nodes", "conductor/api/resource", "conductor/node", "conductor/rest",
		"conductor/store"},
	"conductor/api/call": {"conductor/access", "conductor/api/document", "conductor/guard/limit", "conductor/node",
		"conductor/rest"},
	"conductor/api/catalog": {"conductor/api/call", "conductor/api/document", "conductor/hardware/driver",
		"conductor/member", "conductor/node", "conductor/rest", "conductor/store"},
	"conductor/api/document": {"conductor/rest"},
	"conductor/api/finder": {"conductor/access", "conductor/api/call", "conductor/api/document", "conductor/node",
		"conductor/rest", "conductor/store"},
	"conductor/api/nodes": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/api/finder", "conductor/api/resource", "conductor/hardware/driver", "conductor/engine",
		"conductor/engine/instance", "conductor/node", "conductor/guard/redact", "conductor/rest", "conductor/store"},
	"conductor/api/openapi": {"conductor/api/call", "conductor/rest"},
	"conductor/api/own": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/api/finder", "conductor/hardware/driver", "conductor/engine", "conductor/engine/catalog",
		"conductor/agents/erasure", "conductor/guard/limit",
		"conductor/observe/events", "conductor/hardware", "conductor/node", "conductor/guard/redact", "conductor/rest",
		"conductor/store", "conductor/observe/trace", "proto/rootdevice", "proto/steparg"},
	"conductor/api/parts": {"conductor/api/call", "conductor/api/document", "conductor/api/finder", "conductor/console",
		"conductor/guard/limit", "conductor/hardware/driver", "conductor/hardware", "conductor/node", "conductor/rest",
		"conductor/store"},
	"conductor/console": {"conductor/guard/limit", "conductor/hardware", "conductor/hardware/power",
		"conductor/node"},
	"conductor/api/phonehome": {"conductor/api/call", "conductor/node", "conductor/rest"},
	"conductor/api/ports": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/api/finder", "conductor/api/resource", "conductor/hardware/driver", "conductor/node",
		"conductor/guard/redact",
		"conductor/rest", "conductor/store"},
	"conductor/api/ramdisk": {"conductor/api/call", "conductor/api/document", "conductor/api/finder",
		"conductor/api/nodes", "conductor/guard/clean", "conductor/guard/limit", "conductor/node",
		"conductor/guard/redact",
		"conductor/rest", "conductor/store"},
	"conductor/api/resource": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/api/finder", "conductor/node", "conductor/rest", "conductor/store"},
	"conductor/api/pools": {"conductor/api/call", "conductor/api/document", "conductor/api/finder",
		"conductor/node", "conductor/schedule/pool", "conductor/guard/redact", "conductor/rest", "conductor/store"},
	"conductor/api/reservations": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/guard/limit", "conductor/node", "conductor/schedule/reserve", "conductor/rest", "conductor/store"},
	"conductor/api/rules": {"conductor/api/call", "conductor/api/document", "conductor/api/finder",
		"conductor/api/resource", "conductor/engine", "conductor/engine/findings", "conductor/inspect",
		"conductor/node", "conductor/rest", "conductor/store"},
	"conductor/api/states": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/guard/limit", "conductor/api/finder", "conductor/api/nodes", "conductor/api/templates",
		"conductor/engine",
		"conductor/engine/instance", "conductor/imagecheck", "conductor/node", "conductor/guard/redact",
		"conductor/rest", "images/inspect"},
	"conductor/imagecheck": {"conductor/guard/limit", "images", "images/inspect"},
	"conductor/api/templates": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/api/resource", "conductor/hardware/driver", "conductor/engine", "conductor/node",
		"conductor/guard/redact",
		"conductor/rest", "conductor/store"},
	"conductor/api/volumes": {"conductor/access", "conductor/api/call", "conductor/api/document",
		"conductor/api/finder", "conductor/api/resource", "conductor/node", "conductor/guard/redact", "conductor/rest",
		"conductor/store"},
	"conductor/client":           {"conductor/rest"},
	"conductor/web":              {"conductor/access", "conductor/guard/limit"},
	"conductor/observe/progress": {"conductor/node"},
	"conductor/observe/trace":    {"conductor/node", "conductor/rest"},

	"initramfs/archive": {},
	"initramfs/build":   {"initramfs/archive", "initramfs/kernel"},
	"initramfs/kernel":  {},

	"tools/cli": {"conductor/guard/clean", "conductor/guard/oscloud", "conductor/client", "conductor/agents/erasure",
		"conductor/rest", "conductor/netboot/bootiso", "conductor/observe/trace",
		"images/...", "initramfs/build", "proto/netdata", "proto/rootdevice", "tools/cli/manual", "tools/cli/render",
		"tools/cli/contexts",
		"tools/demo", "tools/enrol/...", "tools/lab", "tools/lab/bmc/redfish", "tools/lab/cloudrack",
		"tools/lab/fleet", "tools/lab/site", "tools/toironic", "tools/writer"},
	"tools/toironic": {"conductor/guard/clean", "conductor/rest"},
	"tools/demo": {"conductor/client", "conductor/rest", "conductor/observe/trace", "images/...", "initramfs/build",
		"tools/lab"},
	"tools/cli/render":     {"conductor/guard/clean"},
	"tools/cli/contexts":   {},
	"tools/cmd/ingot":      {"tools/cli"},
	"tools/cli/manual":     {},
	"tools/enrol":          {"conductor/client"},
	"tools/enrol/discover": {},
	"tools/enrol/probe":    {"conductor/guard/clean", "conductor/hardware/redfish/quirk"},
	"tools/lab/vswitch":    {},
	"tools/lab/cloudrack":  {"conductor/guard/clean", "conductor/guard/oscloud"},
	"tools/writer":         {"conductor/rest", "proto/steparg"},
	"tools/lab": {"initramfs/kernel", "tools/lab/bmc", "tools/lab/bmc/media", "tools/lab/bmc/redfish",
		"tools/lab/bmc/redfish/vmedia", "tools/lab/nbd", "tools/lab/pg", "tools/lab/site"},
	"tools/monitoring": {},
	"tools/lab/pg":     {},
	"tools/lab/fleet": {"agent", "agent/disk", "agent/disk/raid", "agent/inventory", "agent/step", "conductor/client",
		"images/fs/iso9660", "conductor/rest", "tools/lab/bmc"}, // runs the real agent's session
	"tools/lab/nbd":                 {},
	"tools/lab/bmc":                 {},
	"tools/lab/bmc/media":           {},
	"tools/lab/bmc/redfish":         {"tools/lab/bmc", "tools/lab/bmc/media", "tools/lab/bmc/redfish/..."},
	"tools/lab/bmc/redfish/bios":    {"tools/lab/bmc/redfish/odata"},
	"tools/lab/bmc/redfish/dell":    {"tools/lab/bmc/redfish/odata", "tools/lab/bmc/redfish/tasks"},
	"tools/lab/bmc/redfish/events":  {"tools/lab/bmc/redfish/odata"},
	"tools/lab/bmc/redfish/odata":   {},
	"tools/lab/bmc/redfish/parts":   {"tools/lab/bmc/redfish/odata"},
	"tools/lab/bmc/redfish/storage": {"tools/lab/bmc/redfish/odata", "tools/lab/bmc/redfish/tasks"},
	"tools/lab/bmc/redfish/tasks":   {"tools/lab/bmc/redfish/odata"},
	"tools/lab/bmc/redfish/update":  {"tools/lab/bmc/redfish/odata", "tools/lab/bmc/redfish/tasks"},
	"tools/lab/bmc/redfish/vmedia":  {"tools/lab/bmc", "tools/lab/bmc/media", "tools/lab/bmc/redfish/odata"},
	"tools/lab/site":                {"initramfs/kernel"},
}

// numbers is how conductor and tools decode what clients sent: all may use it, as they use encoding/json.
const numbers = "conductor/rest/exact"

// programs lists the packages that may start other programs. The ramdisk has none to start, except for the worker and a
// shell.
var programs = []string{
	"initramfs/pid1", "initramfs/build", "initramfs/kernel", "images/build", "tools/lab", "tools/lab/pg",
	"tools/lab/site", "tools/demo", "tools/cli", "agent/machine/linux", "tools/writer",
}

type pkg struct {
	ImportPath, Dir, Name string
	GoFiles, Imports      []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Name,GoFiles,Imports"}, args...)...)
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", args, err, &stderr)
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// match reports whether a pattern of the table stands for name.
func match(pattern, name string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == base || strings.HasPrefix(name, base+"/")
	}
	return pattern == name
}

// rule finds the line of the table for a package: its own, else the longest pattern that covers it.
func rule(name string) ([]string, bool) {
	if r, ok := may[name]; ok {
		return r, true
	}
	best := ""
	for p := range may {
		if match(p, name) && len(p) > len(best) {
			best = p
		}
	}
	return may[best], best != ""
}

func TestImports(t *testing.T) {
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "test/") {
			continue
		}
		allowed, ok := rule(name)
		if !ok {
			t.Errorf("%s is not in the table of test/arch: say what it may import", name)
			continue
		}
		for _, i := range p.Imports {
			ours, isOurs := strings.CutPrefix(i, module)
			if isOurs && ours == numbers &&
				(strings.HasPrefix(name, "conductor/") || strings.HasPrefix(name, "tools/")) {
				continue
			}
			if isOurs && !slices.ContainsFunc(allowed, func(a string) bool { return match(a, ours) }) {
				t.Errorf("%s imports %s, which its line in test/arch does not allow", name, ours)
			}
			if i == "os/exec" && !slices.Contains(programs, name) {
				t.Errorf("%s starts programs (os/exec), which test/arch does not allow", name)
			}
			if i == "C" {
				t.Errorf("%s uses cgo", name)
			}
		}
	}
}

// TestSource holds what one file can break: package comments, sleeping, init functions.
func TestSource(t *testing.T) {
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		fset := token.NewFileSet()
		var docs []string
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, f), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if ast.IsGenerated(file) {
				continue
			}
			if file.Doc != nil {
				docs = append(docs, f)
				if text := file.Doc.Text(); !strings.HasPrefix(text, "Package "+p.Name+" ") &&
					!strings.HasPrefix(text, "Command ") {
					t.Errorf("%s/%s: the package comment begins %.40q", name, f, text)
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					if n.Recv == nil && n.Name.Name == "init" {
						t.Errorf("%s: init function", fset.Position(n.Pos()))
					}
				case *ast.CallExpr:
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
						if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && !strings.HasPrefix(name, "test/") {
							t.Errorf("%s: time.Sleep in product code: wait for something", fset.Position(n.Pos()))
						}
					}
				}
				return true
			})
		}
		if len(p.GoFiles) > 0 && len(docs) != 1 {
			t.Errorf("%s has %d package comments (%v), want 1", name, len(docs), docs)
		}
	}
}

// agentModules is all that the agent may be made of besides the standard library: everything in it runs as root on bare
// machines.
var agentModules = []string{
	"aead.dev/minisign",                    // signatures of published images
	"github.com/dustin/go-humanize",        // sizes for people
	"github.com/google/uuid",               // of u-root's efivarfs
	"github.com/insomniacslk/dhcp",         // DHCP
	"github.com/jaypipes/ghw",              // inventory
	"github.com/jaypipes/pcidb",            // of ghw
	"github.com/josharian/native",          // of dhcp
	"github.com/klauspost/compress",        // zstd and gzip
	"github.com/klauspost/cpuid/v2",        // of blake3
	"github.com/klauspost/pgzip",           // of u-root's kmodule
	"github.com/mdlayher/packet",           // of dhcp
	"github.com/mdlayher/socket",           // of dhcp
	"github.com/mikelolasagasti/xz",        // xz
	"github.com/opencontainers/go-digest",  // of oras
	"github.com/opencontainers/image-spec", // of oras
	"github.com/pierrec/lz4/v4",            // lz4
	"github.com/u-root/u-root",             // cpio, kernel modules, mounts, kexec, firmware variables
	"github.com/u-root/uio",                // of dhcp
	"github.com/ulikunitz/xz",              // of u-root's kmodule
	"github.com/vishvananda/netlink",       // links and addresses
	"github.com/vishvananda/netns",         // of netlink
	"github.com/zeebo/blake3",              // digests
	"golang.org/x/crypto",                  // the ssh server of rescue; of minisign
	"golang.org/x/exp",                     // of u-root's kexec: type constraints, no code
	"golang.org/x/net",                     // of grpc
	"golang.org/x/sync",
	"golang.org/x/sys",                          // system calls
	"golang.org/x/term",                         // the width of the progress bar
	"golang.org/x/text",                         // of grpc
	"google.golang.org/genproto/googleapis/rpc", // of grpc
	"google.golang.org/grpc",                    // the session
	"google.golang.org/protobuf",                // the session
	"gopkg.in/yaml.v3",                          // of ghw
	"oras.land/oras-go/v2",                      // images in OCI registries
}

// needed lists what the agent of a ramdisk is linked with, in a format of go list.
func needed(t *testing.T, format string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", "-f", format, "./agent/cmd/ingot-agent")
	cmd.Dir = "../.."
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	return slices.Compact(got)
}

// TestAgentHasNoTemplates: with them, the linker keeps all exported methods of all types.
func TestAgentHasNoTemplates(t *testing.T) {
	for _, p := range needed(t, "{{.ImportPath}}") {
		if p == "text/template" || p == "html/template" {
			t.Errorf("the agent pulls in %s, which makes the ramdisk a tenth larger", p)
		}
	}
}

func TestAgentModules(t *testing.T) {
	for _, m := range needed(t, "{{with .Module}}{{.Path}}{{end}}") {
		if m+"/" != module && !slices.Contains(agentModules, m) {
			t.Errorf("the agent pulls in %s, which test/arch does not list", m)
		}
	}
}
