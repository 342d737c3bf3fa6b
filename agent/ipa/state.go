package ipa

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"

	"github.com/ingot-metal/ingot/agent/ipa/command"
	"github.com/ingot-metal/ingot/agent/ipa/steps"
)

// StateFile is where the first process's worker keeps the state, in memory.
const StateFile = "/run/ingot/ironic.json"

// state is for the next worker of this boot, since the conductor takes no other token and certificate before the
// machine boots again. The file is in memory and readable by root alone.
type state struct {
	BootID   string           `json:"boot_id"`
	Node     string           `json:"node"`
	Token    string           `json:"token"`
	Host     string           `json:"host"` // that the certificate is for
	Pair     pair             `json:"pair"`
	Rescue   json.RawMessage  `json:"rescue,omitempty"`
	Commands []command.Result `json:"commands"`
	Done     steps.Done       `json:"done"`
}

// loadState reads the state of an earlier worker of the same boot, if there was one.
func loadState(file, boot string, log *slog.Logger) *state {
	none := &state{BootID: boot}
	if file == "" {
		return none
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return none
	}
	s := &state{}
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		log.Error("the last worker's state is lost", "err", err)
		return none
	}
	if s.BootID != boot {
		return none
	}
	return s
}

// save writes the state; commands are those issued so far, nil for the ones before.
func (a *Agent) save(commands []command.Result) {
	if a.o.State == "" {
		return
	}
	a.saving.Lock()
	defer a.saving.Unlock()
	s := *a.state
	s.Done = a.runner.Done()
	if commands != nil {
		s.Commands = commands
	}
	if a.o.Rescue != nil {
		s.Rescue = a.o.Rescue.Keep()
	}
	b, err := json.Marshal(s)
	if err == nil {
		temporary := a.o.State + ".new"
		if err = os.WriteFile(temporary, b, 0o600); err == nil {
			err = os.Rename(temporary, a.o.State)
		}
	}
	if err != nil {
		a.log.Error("the state of this boot can't be kept: the agent could not be started again", "err", err)
	}
}
