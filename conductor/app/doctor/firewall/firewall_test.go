package firewall

import (
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestFind lists what nft and iptables have set in a network of the test's own.
func TestFind(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "nft")
	runtime.LockOSThread() // and not unlocked: the thread ends with its network
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	find := func() []Chain {
		t.Helper()
		got, err := Find()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := find(); len(got) != 0 {
		t.Errorf("a new network has the chains %v", got)
	}
	nft := func(commands string) {
		t.Helper()
		cmd := exec.Command("nft", commands) // on this thread, so in its network
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v\n%s", commands, err, out)
		}
	}
	nft(`add table inet filter; add chain inet filter input { type filter hook input priority 0; policy drop; }
add rule inet filter input iif lo accept; add rule inet filter input tcp dport 22 accept
add chain inet filter output { type filter hook output priority 0; policy drop; }
add chain inet filter other; add rule inet filter other drop
add table ip open; add chain ip open input { type filter hook input priority 0; }
add table ip6 strict; add chain ip6 strict in { type filter hook input priority 5; } ; add rule ip6 strict in drop
add table ip nat; add chain ip nat in { type nat hook input priority 100; }; add rule ip nat in counter`)
	want := []Chain{{"inet", "filter", "input", true, 2}, {"ip6", "strict", "in", false, 1}}
	if got := find(); !slices.Equal(got, want) {
		t.Errorf("chains %v, want %v", got, want)
	}
	if got := want[0].String(); got != "inet filter input: rules 2, all else is dropped" {
		t.Errorf("the chain is described as %q", got)
	}
}
