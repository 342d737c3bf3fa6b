package kit

import (
	"testing"

	"github.com/ingot-metal/ingot/test/kit/port"
)

// FreeAddr is port.Free for tests.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := port.Free()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
