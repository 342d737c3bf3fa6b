package own

import (
	"fmt"
	"testing"

	"github.com/ingot-metal/ingot/conductor/store"
)

// TestFaulty: a client of a conductor that was replaced is told to ask again, elsewhere; a damaged database needs an
// administrator.
func TestFaulty(t *testing.T) {
	if e := Faulty(fmt.Errorf("begin: %w", store.ErrLost)); e.Status != 503 || e.RetryAfter == 0 {
		t.Errorf("of a database that is lost: %d, again after %s", e.Status, e.RetryAfter)
	}
	if e := Faulty(store.ErrDamaged); e.Status != 503 || e.RetryAfter != 0 {
		t.Errorf("of a damaged one: %d, again after %s", e.Status, e.RetryAfter)
	}
}
