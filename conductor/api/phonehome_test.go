package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

func (m instant) PhoneHome(ctx context.Context, token, from string) error {
	return engine.New(m.s, nil, nil, nil, engine.Config{Hostname: "c1", PhoneHomeKey: []byte("key")}, nil).PhoneHome(
		ctx, token, from)
}

// TestPhoneHome: a system calls as cloud-init does, once, without authentication; a client without a valid token learns
// nothing.
func TestPhoneHome(t *testing.T) {
	waiting := func() *node.Job {
		return &node.Job{ID: "job", Phase: node.PhaseDeploy, Note: "sign", StartedAt: time.Now(), Steps: []node.JobStep{
			{Interface: "deploy", Name: "boot_instance", Status: node.StepRunning,
				Args: []byte(`{"sign_of_life":["phone_home"]}`)}}}
	}
	f := newFixture(t, Config{},
		node.Node{Name: "post", Provision: node.DeployWait, TargetProvision: node.Active, Job: waiting()},
		node.Node{Name: "get", Provision: node.DeployWait, TargetProvision: node.Active, Job: waiting()})
	f.srv.cfg.Authenticate = func(*http.Request) (*access.Actor, error) {
		return nil, errors.New("this route needs no authentication")
	}
	const form = "instance_id=i-1&hostname=demo&pub_key_ed25519=ssh-ed25519+AAAA"
	for _, c := range []struct {
		method, name, body string
	}{{"POST", "post", form}, {"GET", "get", ""}} {
		n, err := f.st.Node(t.Context(), c.name)
		if err != nil {
			t.Fatal(err)
		}
		call := func(token string) int {
			r := httptest.NewRequest(c.method, "/ingot/v1/phone_home/"+token, strings.NewReader(c.body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			f.srv.ServeHTTP(w, r)
			return w.Code
		}
		good := signoflife.Token([]byte("key"), n.UUID, "job")
		for token, want := range map[string]int{"x": 404, signoflife.Token([]byte("other"), n.UUID, "job"): 404,
			signoflife.Token([]byte("key"), n.UUID, "else"): 404} {
			if got := call(token); got != want {
				t.Errorf("%s with a bad token = %d, want %d", c.method, got, want)
			}
		}
		if first, second := call(good), call(good); first != 204 || second != 404 {
			t.Errorf("%s = %d, then %d; want 204, then 404", c.method, first, second)
		}
		if n, err = f.st.Node(t.Context(), c.name); err != nil || n.Job.Sign == nil ||
			n.Job.Sign.Detail != "192.0.2.1" {
			t.Errorf("%s left %+v, %v", c.method, n.Job, err)
		}
	}
}
