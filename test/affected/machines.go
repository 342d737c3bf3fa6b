package main

import (
	"slices"
	"strings"
)

// line says which packages a machine test is there for: it is run when the code of one of them changed.
type line struct {
	test string // package:Test, package:Prefix*, or package for all of its tests without a line of their own
	on   string // packages; /... stands for all below as well
}

func (l *line) packages() []string { return strings.Fields(l.on) }

// isFor reports whether a test exists for one of some packages.
func (l *line) isFor(changed []string) bool {
	return slices.ContainsFunc(l.packages(), func(pattern string) bool {
		return slices.ContainsFunc(changed, func(name string) bool { return matches(pattern, name) })
	})
}

// smoke is the machine test that is run before all others: a machine's whole way through the product.
const smoke = "test/e2e:TestBIOS"

// machines is the table of machine tests. The first line that names a test is its line.
var machines = []line{
	{smoke, "agent/... conductor/... initramfs/... proto/... tools/lab/... images images/build test/kit/..."},
	{"test/e2e:TestUEFI",
		"agent/boot agent/boot/bootentry agent/boot/kexec conductor/netboot images/build proto/rootdevice tools/lab"},
	{"test/e2e:TestTwoAtOnce",
		"agent/image/chunked agent/image/swarm conductor/agents/swarm images/index images/publish proto/swarm"},
	{"test/e2e:TestSmallMemory", "agent/fetch agent/image agent/image/sink images"},
	{"test/e2e:TestServerProfile",
		"agent/burnin agent/inventory agent/machine/linux agent/disk/raid conductor/inspect/... initramfs/..."},
	{"test/e2e:TestPool", "conductor/schedule/alloc conductor/schedule/pool"},
	{"test/e2e:TestRedfish", "conductor/hardware/redfish/... conductor/netboot/bootiso tools/lab/bmc/..."},
	{"test/e2e:TestKexecHangs",
		"agent agent/boot/kexec conductor/agents conductor/engine/... conductor/signoflife conductor/store/..."},
	{"test/e2e:TestLife*",
		"agent/image/configdrive agent/disk images/fs/ext4 agent/image/inject agent/rescue conductor/engine/..."},
	{"test/e2e:TestWorkload*",
		"images/fs/iso9660 agent/machine/ram agent/boot/ramdisk conductor/node/ramdiskdeploy proto/drive"},
	{"test/e2e:TestZeroReboot*",
		"agent/boot/bootentry agent/boot/kexec agent/machine/ram conductor/engine/program conductor/observe/trace"},
	{"test/e2e:TestImageFaults*", "agent/fetch agent/image images/..."},
	{"test/e2e:TestControllerFaults", "conductor/hardware/power/... conductor/hardware/driver tools/lab/bmc"},
	{"test/e2e:TestTenantsAreApart", "conductor/network/switches/... tools/lab/vswitch"},
	{"test/e2e:TestNeutronsDHCP", "conductor/network/neutron conductor/netboot test/kit/cloudsim"},
	{"test/e2e:TestStranger", "conductor/netboot"},
	{"test/e2e:TestOldSystemStarts", "conductor/engine conductor/netboot"},
	{"test/e2e:TestForeign*", "conductor/netboot tools/lab tools/lab/site"},
	{"test/e2e:TestNetworks*", "conductor/netboot tools/lab/site"}, // boot nothing but in make test-full
	{"test/e2e:TestMatrixHasEveryPair", "tools/lab/site"},
	{"test/e2e:TestPowerCut*", "agent/disk agent/image agent/image/sink"},

	{"test/machine:TestForms*",
		"agent/image/chunked agent/image/configdrive agent/image agent/image/sink agent/standalone images/..."},
	{"test/machine:TestClockSetBack", "conductor/agents conductor/engine conductor/observe/shortage"},
	{"test/machine:TestClocksDiffer", "conductor/member conductor/store/postgres"},
	{"test/machine:TestExportedDiskIsWritten", "agent/disk/export agent/machine/linux"},
	{"test/machine:TestWrittenWithOpenISCSI", "agent/disk/export agent/standalone tools/writer"},
	{"test/machine:TestKexecLocked", "agent/boot/kexec"},
	{"test/machine:TestNoRandomGenerator", "initramfs/pid1"},
	{"test/machine:TestRAIDBoots*", "agent/boot agent/disk/raid"},
	{"test/machine:TestISO*", "conductor/netboot/bootiso images/fs/iso9660 initramfs/kernel proto/segment"},
	{"test/machine:TestUnderIronic", "agent/ipa agent/ipa/command agent/ipa/ironic agent/ipa/steps agent/cmd/ingot-agent"},
	{"test/machine:TestNetworkDataInMachine*", "agent/machine/netup conductor/netboot/bootiso proto/netdata proto/segment"},
	{"test/machine:TestInventoryInMachine*",
		"agent/inventory agent/machine/lldp agent/machine/netup agent/inventory/smbios proto/lldp"},
	{"test/machine:TestPartitionImageBoots*", "agent/boot agent/disk images/fs/fat agent/image"},
	{"test/machine:TestDiskFaults*", "agent/disk agent/image agent/machine/linux agent/image/sink"},
	{"test/machine:TestDiskPowerCut*", "agent/disk agent/image/sink"},
	{"test/machine:TestEveryBusInAMachine",
		"agent/image/configdrive agent/disk agent/disk/erase agent/image agent/machine/linux"},
	{"test/machine:TestEraseInMachine*", "agent/disk/erase agent/machine/passthru conductor/agents/erasure"},
	{"test/machine:TestAgentDirect*",
		"agent agent/cmd/... agent/boot/kexec agent/machine/linux agent/machine/ram conductor/agents initramfs/pid1"},
	{"test/machine:TestAgentOnServer*", "agent/inventory agent/machine/linux agent/machine/passthru initramfs/..."},

	{"test/memory:TestTheAgentFitsIn64MiB*", "agent/image/chunked agent/fetch agent/image agent/image/sink images/..."},
	{"test/memory:TestMemoryInASwarm*", "agent/image/chunked agent/image/swarm images/index proto/swarm"},

	{"test/compat:TestHTTPBasic", "conductor/access"},
	{"test/compat:TestKeystone*", "conductor/access/..."},
	{"test/compat:TestTutorialOfTheAPI", "conductor/client"},
	{"test/compat:TestShellBlocks*", "conductor/client tools/cli"},
	{"test/compat:TestEverySubcommand*", "conductor/api/... conductor/hardware/driver conductor/hardware/..."},
	{"test/compat:TestAgentRAID", "agent/disk/raid conductor/engine/catalog conductor/hardware/..."},
	{"test/attack", "conductor/..."},
	{"test/ui", "conductor/web conductor/api/... conductor/access"},
	{"test/conformance",
		"conductor/api/... conductor/app conductor/config conductor/engine conductor/node conductor/rest conductor/store"},
	{"test/metal3", "conductor/api/... conductor/engine/... conductor/hardware/... tools/lab/fleet"},
	{"test/openstack/demo", "conductor/glance test/openstack/demo"},
	{"test/openstack/moving", "conductor/importer test/conformance/ironic test/openstack/moving tools/toironic"},
	{"test/openstack/underironic",
		"agent/ipa agent/ipa/steps conductor/importer initramfs/build test/openstack/underironic tools/cli"},
	{"test/openstack",
		"conductor/access conductor/api/... conductor/app conductor/engine conductor/glance conductor/hardware/openstack " +
			"conductor/node conductor/rest tools/lab/cloudrack"},
	{"test/chaos", "conductor/agents conductor/engine conductor/member conductor/store conductor/store/postgres tools/lab/fleet"},
	{"test/compat", "conductor/api/... conductor/app conductor/config conductor/node conductor/rest"},

	{"tools/demo", "conductor/observe/trace images/build tools/cmd/ingot tools/demo tools/lab"},
	{"tools/monitoring", "tools/monitoring conductor/observe/metrics conductor/app"},
	{"tools/lab", "tools/lab/..."},
	{"tools/cli", "conductor/client conductor/agents/erasure conductor/observe/trace images/inspect images/publish tools/..."},
	{"images/build", "images/build initramfs/archive initramfs/kernel"},
	{"initramfs/build:TestShellModule", "initramfs/build"},
	{"initramfs/build", "initramfs/archive initramfs/build initramfs/kernel"},
}

// lineOf returns the line of a test of a suite, or nil. The name "" is that of a suite whose tests all run together.
func lineOf(suite, test string) *line {
	var ofSuite *line
	for i := range machines {
		switch l := &machines[i]; {
		case test != "" && matchesTest(l.test, suite+":"+test):
			return l
		case l.test == suite:
			ofSuite = l
		}
	}
	return ofSuite
}

// isMachineSuite reports whether the table decides on a package's tests, not the import graph.
func isMachineSuite(pkg string) bool {
	for _, l := range machines {
		if suite, _, _ := cutColon(l.test); suite == pkg {
			return true
		}
	}
	return false
}
