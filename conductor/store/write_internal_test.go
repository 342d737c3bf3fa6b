package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestWritesOfAGroup: of writes that share a transaction, one that fails takes back only itself, and has the error of
// its own statement, also where that is kept back and sent with others. A write reads what it has written.
func TestWritesOfAGroup(t *testing.T) { Engines(t, testWritesOfAGroup) }

func testWritesOfAGroup(t *testing.T, o Options) {
	s := openTest(t, o)
	put := func(tx *txn, name string) error {
		return tx.exec("put", `INSERT INTO duties (name, conductor, until) VALUES (?, '', 0)`, name)
	}
	breaks := func(tx *txn) error { return tx.exec("break it", `INSERT INTO nowhere (a) VALUES (1)`) }
	found := func(tx *txn, name string) error {
		if ok, err := tx.find([]any{new(any)}, `SELECT 1 FROM duties WHERE name = ?`, name); err != nil || !ok {
			return fmt.Errorf("%s is not found: %v", name, err)
		}
		return nil
	}
	refusal := errors.New("it is refused")
	type row struct {
		name, want string
		run        func(tx *txn) error
	}
	rows := []row{
		{"good", "", func(tx *txn) error { return put(tx, "good") }},
		{"breaks", "nowhere", func(tx *txn) error { return errors.Join(put(tx, "breaks"), breaks(tx)) }},
		{"reads", "", func(tx *txn) error { return errors.Join(put(tx, "reads"), found(tx, "reads")) }},
		{"refuses", "it is refused", func(tx *txn) error { return errors.Join(put(tx, "refuses"), refusal) }},
		{"reads after it breaks", "nowhere", func(tx *txn) error {
			if err := breaks(tx); err != nil {
				return err
			}
			return found(tx, "good")
		}},
		{"odd", "put: ", func(tx *txn) error { return put(tx, "a\x00b") }},
		{"last", "", func(tx *txn) error { return put(tx, "last") }},
		{"breaks last", "nowhere", breaks},
	}
	if s.hold == nil {
		rows = slices.DeleteFunc(rows, func(r row) bool { return r.name == "odd" }) // SQLite keeps U+0000
	}

	// The first write waits until all others wait for it: then they are one group.
	waiting := func() int {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting)
	}
	errs := make([]error, len(rows))
	var work sync.WaitGroup
	work.Go(func() {
		if err := s.write(t.Context(), func(tx *txn) error {
			for k, r := range rows {
				work.Go(func() { errs[k] = s.write(t.Context(), r.run) })
				for waiting() <= k {
					time.Sleep(time.Millisecond)
				}
			}
			return put(tx, "first")
		}); err != nil {
			t.Error(err)
		}
	})
	work.Wait()
	for k, r := range rows {
		text := ""
		if errs[k] != nil {
			text = errs[k].Error()
		}
		if r.want == "" && text != "" || !strings.Contains(text, r.want) {
			t.Errorf("%s: %s, want %q", r.name, text, r.want)
		}
	}
	names, err := list(t.Context(), s.r, "duties", into(text), `SELECT name FROM duties ORDER BY name`)
	if err != nil || !slices.Equal(names, []string{"first", "good", "last", "reads"}) {
		t.Errorf("stored are %q, %v", names, err)
	}
	// and alone, with the transaction as its savepoint
	if err := s.write(t.Context(), rows[1].run); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("alone: %v", err)
	}
}
