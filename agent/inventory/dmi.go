package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/ingot-metal/ingot/agent/inventory/smbios"
)

// dmiTables reads the SMBIOS tables; nil for a machine without. Only root can read them.
func dmiTables(root string) ([]smbios.Structure, error) {
	table, err := os.ReadFile(filepath.Join(root, "sys/firmware/dmi/tables/DMI"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, os.ErrPermission):
		return nil, errors.New("the SMBIOS tables are readable by root alone")
	case err != nil:
		return nil, fmt.Errorf("read the SMBIOS tables: %w", err)
	}
	return smbios.Parse(table), nil
}

var bdf = regexp.MustCompile(`^([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$`)

// nameByBoard sets the names that the program biosdevname would assign: em2 for the second Ethernet port on the board,
// p3p1 for the first port of the card in slot 3. Like that program it assigns none in a virtual machine, which has no
// physical slots.
func nameByBoard(all []Interface, cpuFlags []string, tables []smbios.Structure) {
	if slices.Contains(cpuFlags, "hypervisor") {
		return
	}
	ports := smbios.Ports(tables)
	cards := map[int][]*Interface{} // by slot
	for i := range all {
		if all[i].PCIAddress == nil {
			continue
		}
		m := bdf.FindStringSubmatch(*all[i].PCIAddress)
		if m == nil {
			continue
		}
		var at [4]int
		for k := range at {
			n, err := strconv.ParseInt(m[k+1], 16, 32)
			if err != nil {
				at[0] = -1
			}
			at[k] = int(n)
		}
		for _, p := range ports {
			switch {
			case p.Segment != at[0] || p.Bus != at[1] || p.Device != at[2]:
			case p.Onboard && p.Kind == onboardEthernet && p.Function == at[3]:
				all[i].BIOSDevName = text(fmt.Sprintf("em%d", p.Number))
			case !p.Onboard && all[i].BIOSDevName == nil:
				cards[p.Number] = append(cards[p.Number], &all[i])
			}
		}
	}
	for slot, ports := range cards {
		slices.SortFunc(ports, func(a, b *Interface) int {
			return compare(*a.PCIAddress, a.Name, *b.PCIAddress, b.Name)
		})
		for i, p := range ports {
			p.BIOSDevName = cmp.Or(p.BIOSDevName, text(fmt.Sprintf("p%dp%d", slot, i+1)))
		}
	}
}

// onboardEthernet is the onboard device type of a network port (DSP0134, table 7.42.2).
const onboardEthernet = 5
