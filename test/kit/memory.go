package kit

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Group is a control group with a limit of memory: the kernel ends a process in it that passes the limit.
type Group struct {
	join string // file that a process joins it by
}

// MemoryGroup makes a Group for the duration of the test. It counts all memory of its processes: programs, the kernel's
// memory for them, and their own share of the page cache.
func MemoryGroup(t testing.TB, limit int) Group {
	t.Helper()
	NeedRoot(t)
	name := fmt.Sprintf("ingot-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, v := range []struct{ root, limit, swap string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
	} {
		if v.limit == "memory.max" {
			// The controller may have to be handed on to groups below the root first.
			os.WriteFile(filepath.Join(v.root, "cgroup.subtree_control"), []byte("+memory"), 0o644)
		}
		dir := filepath.Join(v.root, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if os.WriteFile(filepath.Join(dir, v.limit), []byte(fmt.Sprint(limit)), 0o644) != nil {
			os.Remove(dir)
			continue
		}
		os.WriteFile(filepath.Join(dir, v.swap),
			[]byte(map[bool]string{true: fmt.Sprint(limit), false: "0"}[v.limit == "memory.limit_in_bytes"]), 0o644)
		t.Cleanup(func() {
			Eventually(t, 10*time.Second, "the control group is empty", func() bool { return os.Remove(dir) == nil })
		})
		return Group{filepath.Join(dir, "cgroup.procs")}
	}
	t.Fatal("no control group of memory can be made here, neither of version 1 nor of version 2")
	return Group{}
}

// Command is a program in the group.
func (g Group) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "sh",
		append([]string{"-c", `echo $$ > "$0" && exec "$@"`, g.join, name}, args...)...)
}

// HighWater is the peak of a process's resident memory in KiB, once it runs the program.
func HighWater(pid int, program string) int {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != program {
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	peak := 0
	fmt.Sscan(string(rest), &peak)
	return peak
}
