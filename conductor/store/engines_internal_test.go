package store

import (
	"os"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

func TestMain(m *testing.M) { os.Exit(pgserver.Main(m)) }

// ServerOptions are those of a store in a new database of PostgreSQL.
func ServerOptions(t testing.TB) Options {
	t.Helper()
	_, url := pgserver.Shared(t).Database(t)
	return Options{Dir: t.TempDir(), URL: url, Password: pgserver.Password}
}

// Engines runs a test on both databases.
func Engines(t *testing.T, test func(t *testing.T, o Options)) {
	t.Run("SQLite", func(t *testing.T) { test(t, Options{Dir: t.TempDir()}) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, ServerOptions(t)) })
}

func openTest(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
