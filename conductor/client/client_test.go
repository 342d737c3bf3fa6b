package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(srv.URL+"/v1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Pause, c.Poll = time.Millisecond, time.Millisecond
	return c
}

func fail(w http.ResponseWriter, e *rest.Error) {
	w.WriteHeader(e.Status)
	w.Write(e.Body())
}

func TestListsAreReadToTheirEnd(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get(rest.VersionHeader); got != rest.MaxVersion.String() {
			t.Errorf("asked for version %q", got)
		}
		if r.URL.Query().Get("marker") == "" {
			fmt.Fprintf(w, `{"nodes":[{"uuid":"1","name":"a"},{"uuid":"2"}],"next":"http://elsewhere:1/v1/nodes?fields=uuid,name&marker=2"}`)
			return
		}
		fmt.Fprint(w, `{"nodes":[{"uuid":"3","name":"c"}]}`)
	})
	names, err := c.Names(t.Context())
	if err != nil || strings.Join(names, " ") != "a 2 c" {
		t.Errorf("Names = %v, %v", names, err)
	}
}

func TestLockedNodeIsTriedAgain(t *testing.T) {
	var calls atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) < 3 {
			fail(w, rest.Conflict("Node x is locked by host h, please retry after the current operation is completed."))
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	if err := c.Provision(t.Context(), "x", ProvisionRequest{Target: "manage"}); err != nil || calls.Load() != 3 {
		t.Errorf("Provision = %v after %d calls, want nil after 3", err, calls.Load())
	}
	calls.Store(-100)
	err := c.Provision(t.Context(), "x", ProvisionRequest{Target: "manage"})
	var answer *rest.Error
	if !errors.As(err, &answer) || answer.Status != http.StatusConflict || int(calls.Load()) != -100+1+c.Retries {
		t.Errorf("Provision = %v after %d calls", err, calls.Load()+100)
	}
}

// TestOtherConflictsAreNotTriedAgain: what is taken is taken a moment later, too.
func TestOtherConflictsAreNotTriedAgain(t *testing.T) {
	var calls atomic.Int32
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		fail(w, rest.Conflict("A node with name x already exists."))
	})
	var answer *rest.Error
	if err := c.Provision(t.Context(), "x", ProvisionRequest{Target: "manage"}); !errors.As(err, &answer) ||
		answer.Status != http.StatusConflict || calls.Load() != 1 {
		t.Errorf("Provision = %v after %d calls, want 409 after one", err, calls.Load())
	}
}

func TestErrorsAreTheServersWords(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { fail(w, rest.NotFound("Node x could not be found.")) })
	_, err := c.Node(t.Context(), "x")
	var answer *rest.Error
	if !errors.As(err, &answer) || answer.Status != 404 || answer.Message != "Node x could not be found." {
		t.Errorf("Node = %v", err)
	}
}

func TestNameWithASlashIsNotSent(t *testing.T) {
	asked := false
	cl := serve(t, func(http.ResponseWriter, *http.Request) { asked = true })
	for _, name := range []string{"a/b", "../ports"} {
		_, err := cl.Node(t.Context(), name)
		if err == nil || !strings.Contains(err.Error(), "has a slash in it") || asked {
			t.Errorf("Node(%q) = %v, sent: %v", name, err, asked)
		}
	}
}

func TestNoConductor(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close()
	c, err := New(strings.Replace(srv.URL, "http://", "http://user:secret@", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Node(t.Context(), "x")
	var down *ConnectError
	if !errors.As(err, &down) || strings.Contains(err.Error(), "secret") {
		t.Errorf("Node = %v, want a *ConnectError without the password", err)
	}
	if _, err := New("127.0.0.1:6385", nil); err == nil {
		t.Error("New took an endpoint without http")
	}
}

func TestWait(t *testing.T) {
	states := []string{"deploying/active", "wait call-back/active", "", "deploying/active"}
	for _, c := range []struct {
		name, last, lastError string
		wanted, err           string
	}{
		{"well", "active/", "", "active", ""},
		{"failed", "deploy failed/active", "the image is gone", "active",
			`node n ended in state "deploy failed": the image is gone`},
		{"back where it was", "enroll/", "wrong password", "manageable",
			`node n ended in state "enroll": wrong password`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var at atomic.Int32
			cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
				i := int(at.Add(1)) - 1
				state := c.last
				if i < len(states) {
					state = states[i]
				}
				if state == "" { // the server restarts
					conn, _, _ := w.(http.Hijacker).Hijack()
					conn.Close()
					return
				}
				s, target, _ := strings.Cut(state, "/")
				json.NewEncoder(w).Encode(
					rest.Progress{NodeUUID: "u", ProvisionState: s, TargetProvisionState: rest.Null(target),
						LastError: rest.Null(c.lastError)})
			})
			looks := 0
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			_, err := cl.Wait(ctx, "n", func(*rest.Progress) { looks++ }, c.wanted)
			if c.err == "" && err != nil || c.err != "" && (err == nil || err.Error() != c.err) {
				t.Errorf("Wait = %v, want %q", err, c.err)
			}
			if looks < 4 {
				t.Errorf("told of %d looks", looks)
			}
		})
	}
}

func TestProgressOfAPlainIronic(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/ingot/") {
			fail(w, rest.Routing(404, ""))
			return
		}
		fmt.Fprint(w, `{"uuid":"u","provision_state":"cleaning","target_provision_state":"available","power_state":null}`)
	})
	p, err := c.Progress(t.Context(), "n")
	if err != nil || p.ProvisionState != "cleaning" || p.TargetProvisionState != "available" || p.Job != nil {
		t.Errorf("Progress = %+v, %v", p, err)
	}
}
