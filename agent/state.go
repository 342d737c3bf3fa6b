package agent

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/protobuf/proto"
)

// StateFile holds a worker's state for its successor. It is in RAM, readable by root alone, and ends with the boot.
const StateFile = "/run/ingot/agent.state"

// saved is the content of StateFile.
type saved struct {
	BootID      string   `json:"boot_id"`
	Key         []byte   `json:"key"` // PKCS #8
	Certificate []byte   `json:"certificate,omitempty"`
	NodeUUID    string   `json:"node_uuid,omitempty"`
	Generation  uint64   `json:"generation,omitempty"`
	Conductor   string   `json:"conductor,omitempty"`  // address the agent was redirected to
	Conductors  []string `json:"conductors,omitempty"` // others that the conductor has named
	Swarm       *uint64  `json:"swarm,omitempty"`      // bytes per second for neighbours; nil: no swarms
	LastSeq     uint64   `json:"last_seq"`
	Results     [][]byte `json:"results,omitempty"` // events, not acknowledged
	Plan        savedPlan
	PlansSeen   []string `json:"plans_seen,omitempty"`
	Highest     uint64   `json:"highest"` // highest plan generation seen
	// Rescue is the state of the rescue host, while it is open.
	Rescue json.RawMessage `json:"rescue,omitempty"`
}

// savedPlan is the agent's plan.
type savedPlan struct {
	ID         string `json:"id,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Running    bool   `json:"running,omitempty"`
	Index      int    `json:"index,omitempty"`
	Interface  string `json:"interface,omitempty"` // of the running step
	Name       string `json:"name,omitempty"`
}

// memory keeps this worker's state for its successor after a crash, including the results that the conductor has not
// acknowledged. It is written to the file after each change.
type memory struct {
	file string // "": no state is kept
	log  *slog.Logger
	q    *queue
	open func() json.RawMessage // state of the rescue host

	writing sync.Mutex // one writer of the file at a time
	mu      sync.Mutex
	st      saved
}

// read returns a copy of the state.
func (m *memory) read() saved {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.st
}

// edit changes the state; save, or the next result, writes it.
func (m *memory) edit(f func(*saved)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.st)
}

// change changes the state and writes it.
func (m *memory) change(f func(*saved)) {
	m.edit(f)
	m.save()
}

// save writes the file. The queue calls it after each change of the results.
func (m *memory) save() {
	if m.file == "" {
		return
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	open := m.open()
	st := m.read()
	st.Rescue = open
	st.LastSeq, st.Results = m.q.unacknowledged()
	if err := st.store(m.file); err != nil {
		m.log.Error("a restart of the agent would lose results", "err", err)
	}
}

// loadState reads the state of an earlier worker of this boot. No file, or one of another boot, returns nil.
func loadState(file, bootID string) (*saved, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last worker's state: %w", err)
	}
	var s saved
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("read the last worker's state in %s: %w", file, err)
	}
	if s.BootID != bootID {
		return nil, nil
	}
	return &s, nil
}

// store writes the state atomically.
func (s *saved) store(file string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("keep the agent's state: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("keep the agent's state: %w", err)
	}
	// No sync: the file is in RAM, and need only outlive the process.
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		return fmt.Errorf("keep the agent's state: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("keep the agent's state: %w", err)
	}
	return nil
}

func (s *saved) key() (*ecdsa.PrivateKey, error) {
	k, err := x509.ParsePKCS8PrivateKey(s.Key)
	if err != nil {
		return nil, fmt.Errorf("read the key that the last worker left: %w", err)
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key that the last worker left is of the wrong kind")
	}
	return key, nil
}

func (s *saved) events() ([]*agentv1.Event, error) {
	var out []*agentv1.Event
	for _, b := range s.Results {
		e := &agentv1.Event{}
		if err := proto.Unmarshal(b, e); err != nil {
			return nil, fmt.Errorf("read a result that the last worker left: %w", err)
		}
		out = append(out, e)
	}
	return out, nil
}
