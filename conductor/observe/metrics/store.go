package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// storeNumbers are those of the database.
type storeNumbers struct {
	statements *prometheus.HistogramVec
	groups     prometheus.Observer
	failures   *prometheus.CounterVec
}

func newStore(s *Set) storeNumbers {
	n := storeNumbers{
		statements: s.histogram("ingot_store_statement_seconds",
			"Time of a statement to the database, without the reading of its rows.", tiny, "statement"),
		groups: s.histogram("ingot_store_group_writes",
			"Writes that shared one transaction, and one synchronisation of the disk.",
			[]float64{1, 2, 4, 8, 16, 32, 64}).WithLabelValues(),
		failures: s.counter("ingot_store_failures_total",
			"Statements that the database refused: busy (a lock was not had in time), full, away (its server can't be"+
				" reached), damaged, other.", "kind"),
	}
	// An alert sees a counter rise, but not come into being.
	for _, kind := range []string{"busy", "full", "away", "damaged", other} {
		n.failures.WithLabelValues(kind)
	}
	return n
}

// statementNames are the statements that are told apart, by the beginning of their text.
var statementNames = map[string]string{"SELECT": "select", "INSERT": "insert", "UPDATE": "update", "DELETE": "delete",
	"BEGIN ": "begin", "COMMIT": "commit", "ROLLBA": "rollback", "SAVEPO": "savepoint", "RELEAS": "savepoint"}

// Statement counts a statement to the database.
func (s *Set) Statement(text string, took time.Duration) {
	name := statementNames[text[:min(len(text), 6)]]
	if name == "" {
		name = other
	}
	s.store.statements.WithLabelValues(name).Observe(took.Seconds())
}

// StatementFailed counts a statement that failed; kind is one of a few words.
func (s *Set) StatementFailed(kind string) { s.store.failures.WithLabelValues(kind).Inc() }

// Group counts writes that shared a transaction.
func (s *Set) Group(writes int) { s.store.groups.Observe(float64(writes)) }
