// Package run sends requests to servers, waits for their effects, removes created objects, and compares.
package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/test/conformance/accept"
	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/compare"
	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/test/conformance/record"
)

// Server is one that is asked. What a scene makes is remembered until Clear removes it.
type Server struct {
	Base     string
	Roles    map[string]http.Header // by the name of the role; "" is the administrator
	Projects map[string]string      // the IDs that stand for {names} in bodies
	made     []string               // addresses, the oldest first
	guesses  int
}

// As has a pair's users ask.
func (s *Server) As(p *ironic.Pair) {
	s.Projects, s.Roles = p.Projects, map[string]http.Header{}
	for i, r := range p.Roles {
		s.Roles[r.Name] = r.Header
		if i == 0 {
			s.Roles[""] = r.Header
		}
	}
}

// Get returns an object, as the administrator.
func (s *Server) Get(ctx context.Context, path string) ([]byte, error) {
	status, _, b, err := s.do(ctx, ask.Ask{Method: http.MethodGet, Path: path})
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d", path, status)
	}
	return b, err
}

// guesser is the role that has a wrong password.
const guesser = "wrong-password"

// from is a client at another address of loopback.
func from(ip net.IP) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}}
	return &http.Client{Timeout: client.Timeout, CheckRedirect: client.CheckRedirect,
		Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
}

var client = &http.Client{
	Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (s *Server) do(ctx context.Context, a ask.Ask) (int, http.Header, []byte, error) {
	var body io.Reader
	if a.Body != "" {
		text := a.Body
		for name, id := range s.Projects {
			text = strings.ReplaceAll(text, "{"+name+"}", id)
		}
		body = strings.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, a.Method, s.Base+a.Path, body)
	if err != nil {
		return 0, nil, nil, err
	}
	for k, v := range s.Roles[a.Role] {
		req.Header[k] = v
	}
	if a.Version != "" {
		req.Header.Set("X-OpenStack-Ironic-API-Version", a.Version)
	}
	for k, v := range a.Header {
		req.Header.Set(k, v)
	}
	use := client
	if a.Role == guesser {
		// After some wrong passwords an address has to wait, which Ironic does not ask of it.
		s.guesses++
		use = from(net.IPv4(127, 1, byte(s.guesses>>8), byte(s.guesses)))
	}
	resp, err := use.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, b, err
}

// Ask asks, and waits for the end of the work that follows from it.
func (s *Server) Ask(ctx context.Context, a ask.Ask) (compare.Answer, error) {
	status, header, body, err := s.do(ctx, a)
	if err != nil {
		return compare.Answer{}, fmt.Errorf("%s %s: %w", a.Method, a.Path, err)
	}
	if status == http.StatusCreated && a.Method == http.MethodPost {
		var made struct{ UUID string }
		if json.Unmarshal(body, &made) == nil && made.UUID != "" {
			s.made = append(s.made, collection(a)+"/"+made.UUID)
		}
	}
	if n := len(s.made); status == http.StatusCreated && n > 0 && strings.HasPrefix(s.made[n-1], "/v1/allocations/") {
		s.allocated(ctx, s.made[n-1])
	}
	if a.Wait != "" {
		s.wait(ctx, "/v1/nodes/"+a.Wait)
	}
	return compare.Normal(a, s.Base, s.Projects, status, header, body), nil
}

// collection is where a request that makes something puts it, in the usual form of the address.
func collection(a ask.Ask) string {
	_, path, _ := strings.Cut(a.Card.Route.String(), " ")
	if path == "" {
		path = a.Path
	}
	path, _, _ = strings.Cut(strings.NewReplacer("%2f", "/", "//", "/").Replace(path), "?")
	return "/v1/" + strings.TrimPrefix(strings.TrimSuffix(strings.Trim(path, "/"), ".json"), "v1/")
}

// undo removes what only one of two servers made, so that what follows can be compared.
func (s *Server) undo(ctx context.Context, a ask.Ask) bool {
	var sent struct{ UUID string }
	if a.Method != http.MethodPost || json.Unmarshal([]byte(a.Body), &sent) != nil {
		return false
	}
	uuids := []string{sent.UUID}
	if sent.UUID == "" {
		uuids = s.strays(ctx, collection(a))
	}
	done := len(uuids) > 0
	for _, uuid := range uuids {
		status, _ := s.newest(ctx, "DELETE", collection(a)+"/"+uuid, "")
		done = done && status == http.StatusNoContent
	}
	return done
}

// strays are the objects of a collection that no answer has named.
func (s *Server) strays(ctx context.Context, collection string) (uuids []string) {
	_, b := s.newest(ctx, "GET", collection, "")
	var list map[string]json.RawMessage
	var all []struct{ UUID string }
	if json.Unmarshal(b, &list) != nil || json.Unmarshal(list[path.Base(collection)], &all) != nil {
		return nil
	}
	for _, o := range all {
		if !slices.Contains(s.made, collection+"/"+o.UUID) {
			uuids = append(uuids, o.UUID)
		}
	}
	return uuids
}

// patience is how long the work of a node may take; what takes longer is a difference in what follows.
const patience = 20 * time.Second

func (s *Server) newest(ctx context.Context, method, path, body string) (int, []byte) {
	status, _, b, err := s.do(ctx,
		ask.Ask{Method: method, Path: path, Body: body, Version: fmt.Sprint("1.", ask.Newest),
			Header: map[string]string{"Content-Type": "application/json"}})
	if err != nil {
		return 0, nil
	}
	return status, b
}

// wait waits until a node does nothing.
func (s *Server) wait(ctx context.Context, node string) {
	s.until(ctx, node+"?fields=provision_state,target_power_state,reservation", func(n *states) bool {
		return n.Power == nil && n.Locked == nil && !slices.Contains(working, n.Provision)
	})
}

// allocated waits until an allocation has found a node, or has not.
func (s *Server) allocated(ctx context.Context, path string) {
	s.until(ctx, path, func(n *states) bool { return n.State != "allocating" })
}

// states are those of an object.
type states struct {
	State     string
	Provision string  `json:"provision_state"`
	Power     *string `json:"target_power_state"`
	Locked    *string `json:"reservation"`
}

// until asks again and again until an object is done, is not there, or patience ends.
func (s *Server) until(ctx context.Context, path string, done func(*states) bool) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		status, b := s.newest(ctx, "GET", path, "")
		var now states
		if status != http.StatusOK || json.Unmarshal(b, &now) != nil || done(&now) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// working are the states that end by themselves.
var working = []string{"verifying", "cleaning", "deploying", "deleting", "inspecting", "adopting", "rescuing",
	"unrescuing"}

// Clear removes what a scene made, and says what could not be removed. What hangs on a node may go only with it.
func (s *Server) Clear(ctx context.Context) (left []string) {
	var again []string
	for _, path := range slices.Backward(s.made) {
		if strings.HasPrefix(path, "/v1/nodes/") {
			s.newest(ctx, "PATCH", path, `[{"op":"replace","path":"/protected","value":false}]`)
			s.newest(ctx, "PUT", path+"/states/console", `{"enabled":false}`)
			s.wait(ctx, path)
			s.newest(ctx, "PUT", path+"/maintenance", "{}")
			s.newest(ctx, "DELETE", path+"/allocation", "")
		}
		if status, _ := s.newest(ctx, "DELETE", path, ""); status != http.StatusNoContent &&
			status != http.StatusNotFound {
			again = append(again, path)
		}
	}
	for _, path := range again {
		if status, b := s.newest(ctx, "DELETE", path, ""); status != http.StatusNoContent &&
			status != http.StatusNotFound {
			left = append(left, fmt.Sprintf("%s (%d %.300s)", path, status, b))
		}
	}
	s.made = nil
	return left
}

// Found is a difference.
type Found struct {
	Ask        ask.Ask
	Difference compare.Difference
	Before     []ask.Ask // of its scene
}

// Report is the result of comparing.
type Report struct {
	Compared, Accepted, Skipped int
	Found                       []Found
	Left                        []string
}

// Add adds what another report has.
func (r *Report) Add(o *Report) {
	r.Compared, r.Accepted, r.Skipped = r.Compared+o.Compared, r.Accepted+o.Accepted, r.Skipped+o.Skipped
	r.Found, r.Left = append(r.Found, o.Found...), append(r.Left, o.Left...)
}

// Judge compares answers. tainted is that of the scene: after a write that only one of them took, and that undo cannot
// take back, the rest says nothing more. Ironic's faults may leave half of what was asked for, which is removed.
func (r *Report) Judge(l accept.List, a ask.Ask, before []ask.Ask, want, got compare.Answer, undo func(first bool) bool,
	tainted *bool) {
	if want.Status == http.StatusInternalServerError {
		defer undo(true)
	}
	if *tainted {
		r.Skipped++
		return
	}
	r.Compared++
	for _, d := range compare.Answers(want, got) {
		if l.Match(a, d) != nil {
			r.Accepted++
		} else {
			r.Found = append(r.Found, Found{a, d, before})
		}
		if d.Field == "status" && a.Method != http.MethodGet && a.Method != http.MethodHead &&
			(want.Status < 300) != (got.Status < 300) {
			*tainted = !undo(want.Status < 300)
		}
	}
}

// Both asks both the same, and gives the answers of the first. again has what is left of a scene after a write that
// only one of them took asked in a new one, which begins as the scene did, so that all of it is compared.
func (r *Report) Both(ctx context.Context, l accept.List, first, second *Server, scene []ask.Ask,
	again bool) ([]record.Exchange, error) {
	es, rest, err := r.both(ctx, l, first, second, scene, again)
	for err == nil && len(rest) > 0 {
		_, rest, err = r.both(ctx, l, first, second, slices.Concat(beginning(scene), rest), true)
	}
	return es, err
}

// beginning is the part of a scene that makes what its requests are about.
func beginning(scene []ask.Ask) []ask.Ask {
	return scene[:max(0, slices.IndexFunc(scene, func(a ask.Ask) bool { return a.Card.Class != "" }))]
}

// both asks a scene, or, with stop, the part up to a write that only one of them took; it gives the rest.
func (r *Report) both(ctx context.Context, l accept.List, first, second *Server, scene []ask.Ask,
	stop bool) (es []record.Exchange, rest []ask.Ask, err error) {
	tainted := false
	for i, a := range scene {
		var want, got compare.Answer
		var err1, err2 error
		done := make(chan struct{})
		go func() { defer close(done); want, err1 = first.Ask(ctx, a) }()
		got, err2 = second.Ask(ctx, a)
		<-done
		if err := errors.Join(err1, err2); err != nil {
			return nil, nil, err
		}
		r.Judge(l, a, scene[:i], want, got, func(one bool) bool {
			if one {
				return first.undo(ctx, a)
			}
			return second.undo(ctx, a)
		}, &tainted)
		es = append(es, record.Exchange{Ask: a, Answer: want})
		if tainted && stop && i >= len(beginning(scene)) {
			rest = scene[i+1:]
			break
		}
	}
	if left := append(first.Clear(ctx), second.Clear(ctx)...); ctx.Err() == nil { // else it was not removed in time
		r.Left = append(r.Left, left...)
	}
	return es, rest, nil
}

// Replay sends recorded requests to one server, and compares.
func (r *Report) Replay(ctx context.Context, l accept.List, s *Server, es []record.Exchange) error {
	tainted := false
	var before []ask.Ask
	for i, e := range es {
		if i > 0 && es[i-1].Ask.Scene != e.Ask.Scene {
			r.Left = append(r.Left, s.Clear(ctx)...)
			tainted, before = false, nil
		}
		got, err := s.Ask(ctx, e.Ask)
		if err != nil {
			return err
		}
		// The recorded answer went through JSON.
		var same compare.Answer
		b, err := json.Marshal(got)
		if err == nil {
			d := json.NewDecoder(bytes.NewReader(b))
			err = d.Decode(&same)
		}
		if err != nil {
			return err
		}
		r.Judge(l, e.Ask, before, e.Answer, same, func(one bool) bool { return one || s.undo(ctx, e.Ask) }, &tainted)
		before = append(before, e.Ask)
	}
	r.Left = append(r.Left, s.Clear(ctx)...)
	return nil
}
