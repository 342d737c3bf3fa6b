// Package ironicsim is the part of Ironic that an agent sees: its three routes, and a conductor that calls the agent's
// command API, step by step as Ironic does it.
//
// It follows the recorded behaviour of Ironic 21.4 and the sources of the newest: the comparisons, the order of calls,
// the retries, and the consequence of a lost answer. It is strict where Ironic is: a result of another step than
// the node's current one is ignored, an error without a faultstring fails the test.
package ironicsim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Release is a version of Ironic.
type Release struct {
	Version    string // of the API
	TokenOnGet bool
	TLSMin     uint16
	Config     map[string]any // more of lookup's config
}

// Debian12 is Ironic 21.4, Newest the newest known one.
var (
	Debian12 = Release{Version: "1.82", TLSMin: tls.VersionTLS12, Config: map[string]any{
		"disable_deep_image_inspection": false, "permitted_image_formats": []string{"raw", "qcow2", "iso"},
		"enable_bios_bootloader_install": true}}
	Newest = Release{Version: "1.109", TokenOnGet: true, TLSMin: tls.VersionTLS13, Config: map[string]any{
		"disable_deep_image_inspection": false, "permitted_image_formats": []string{"raw", "gpt", "qcow2", "iso"},
		"enable_bios_bootloader_install": false, "agent_md5_checksum_enable": true, "agent_skip_bmc_detect": false,
		"tls_min_version": "1.3", "tls_cipher_suites": nil}}
)

// Step is a step of the conductor's plan, as it sends it.
type Step struct {
	Interface string         `json:"interface"`
	Step      string         `json:"step"`
	Priority  int            `json:"priority"`
	Args      map[string]any `json:"args,omitempty"`
}

// Result is a command's result.
type Result struct {
	ID     string          `json:"id"`
	Name   string          `json:"command_name"`
	Status string          `json:"command_status"`
	Error  json.RawMessage `json:"command_error"`
	Result json.RawMessage `json:"command_result"`
	Fault  *string         `json:"faultstring"`
}

// Ironic is the API and its conductor, with one node.
type Ironic struct {
	URL string

	t       testing.TB
	release Release
	srv     *httptest.Server

	mu        sync.Mutex
	node      map[string]any
	state     string // provision state
	phase     string // "deploy", "clean", "service"
	steps     []Step // not yet executed
	current   *Step
	available map[string]bool // steps that the agent lists
	version   json.RawMessage // hardware_manager_version
	uefi      bool
	token     string
	given     bool // the token was given out
	callback  string
	ca        string
	seconds   float64
	busy      bool // a worker handles a heartbeat
	down      bool // the conductor is restarting
	lastError string
	log       []string
	results   []Result // of executed steps
	beats     int
	posted    []json.RawMessage // inventories
	changed   chan struct{}
	workers   sync.WaitGroup

	// Limit is how long Wait and WaitState wait; zero: a minute.
	Limit time.Duration

	// Lose decides which requests to the agent lose their answer: the agent gets them, the conductor sees an error.
	Lose func(n int, method, name string) bool
	sent int
}

// Token is the one that the simulator makes.
const Token = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

// New starts an Ironic whose node has the address mac. Heartbeats come about every seconds.
func New(t testing.TB, r Release, mac string, seconds float64) *Ironic {
	s := &Ironic{t: t, release: r, token: Token, state: "available", seconds: seconds, changed: make(chan struct{}),
		node: map[string]any{"uuid": "1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "name": "sim", "driver": "fake-hardware",
			"driver_info": map[string]any{}, "driver_internal_info": map[string]any{},
			"instance_info": map[string]any{}, "properties": map[string]any{}, "extra": map[string]any{},
			"target_raid_config": map[string]any{}, "raid_config": map[string]any{}, "provision_state": "available"}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]any{"default_version": map[string]any{"id": "v1", "min_version": "1.1",
			"version": r.Version}})
	})
	mux.HandleFunc("GET /v1/lookup", func(w http.ResponseWriter, q *http.Request) { s.lookup(w, q, mac) })
	mux.HandleFunc("POST /v1/heartbeat/{uuid}", s.heartbeat)
	mux.HandleFunc("POST /v1/continue_inspection", func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		s.mu.Lock()
		s.posted = append(s.posted, b)
		s.tellLocked()
		s.mu.Unlock()
		reply(w, 202, map[string]any{"uuid": s.node["uuid"]})
	})
	s.srv = httptest.NewServer(mux)
	s.URL = s.srv.URL
	t.Cleanup(func() {
		s.srv.Close()
		s.workers.Wait()
	})
	return s
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code int, text string) {
	inner, _ := json.Marshal(map[string]any{"faultcode": "Client", "faultstring": text, "debuginfo": nil})
	reply(w, code, map[string]any{"error_message": string(inner)})
}

// tellLocked wakes those who wait for a change.
func (s *Ironic) tellLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Edit changes the node.
func (s *Ironic) Edit(f func(node map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.node)
}

// Begin puts the node into the wait state of a phase, with the steps that the conductor will execute. The first
// heartbeat begins it. Image steps come with uefi on a machine that boots so.
func (s *Ironic) Begin(phase string, uefi bool, steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.steps, s.current, s.uefi, s.available, s.version = phase, steps, nil, uefi, nil, nil
	s.lastError = ""
	s.state = map[string]string{"deploy": "wait call-back", "clean": "clean wait", "service": "service wait",
		"rescue": "rescue wait"}[phase]
	s.node["provision_state"] = s.state
}

// Reboot forgets what belongs to one boot, as at every change of the power by the conductor.
func (s *Ironic) Reboot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given, s.callback, s.ca = false, "", ""
}

// Restart makes the conductor unavailable while f runs; calls to the agent that are under way are forgotten.
func (s *Ironic) Restart(f func()) {
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	f()
	s.mu.Lock()
	s.down, s.busy = false, false
	s.mu.Unlock()
}

// Wait waits until ok, which is asked with the lock held, and fails the test after Limit.
func (s *Ironic) Wait(what string, ok func() bool) {
	s.t.Helper()
	limit := cmp.Or(s.Limit, time.Minute)
	deadline := time.After(limit)
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			s.t.Fatalf("%s: not within %s; state %q, error %q, calls:\n%s", what, limit, s.State(), s.Error(),
				strings.Join(s.Log(), "\n"))
		}
	}
}

// WaitState waits for a provision state.
func (s *Ironic) WaitState(state string) {
	s.t.Helper()
	s.Wait("state "+state, func() bool {
		if s.state != state && strings.HasSuffix(s.state, " failed") {
			s.t.Fatalf("state %q: %s; calls:\n%s", s.state, s.lastError, strings.Join(s.log, "\n"))
		}
		return s.state == state
	})
}

// State is the node's provision state, Error its last_error, Log the calls to the agent with their status.
func (s *Ironic) State() string { s.mu.Lock(); defer s.mu.Unlock(); return s.state }

// Error is the node's last_error.
func (s *Ironic) Error() string { s.mu.Lock(); defer s.mu.Unlock(); return s.lastError }

// Log lists the calls to the agent, with the status of each.
func (s *Ironic) Log() []string { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.log) }

// Results are those of the executed steps, in their order.
func (s *Ironic) Results() []Result { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.results) }

// Beats counts the heartbeats that were taken.
func (s *Ironic) Beats() int { s.mu.Lock(); defer s.mu.Unlock(); return s.beats }

// Posted are the inventories that were handed in.
func (s *Ironic) Posted() []json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.posted)
}

// Callback is the agent's URL and the certificate that it gave for it.
func (s *Ironic) Callback() (at, ca string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.callback, s.ca
}

var lookupStates = []string{"wait call-back", "clean wait", "service wait", "rescue wait", "deploying", "cleaning",
	"inspect wait"}

func (s *Ironic) lookup(w http.ResponseWriter, r *http.Request, mac string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	known := slices.Contains(strings.Split(q.Get("addresses"), ","), mac) || q.Get("node_uuid") == s.node["uuid"]
	switch {
	case s.down:
		refuse(w, 503, "Service unavailable")
		return
	case !known || !slices.Contains(lookupStates, s.state):
		refuse(w, 404, "Resource could not be found.")
		return
	}
	config := map[string]any{"heartbeat_timeout": s.seconds, "agent_token": "******", "agent_token_required": true,
		"metrics": map[string]any{"backend": "noop"}, "metrics_statsd": map[string]any{}}
	for k, v := range s.release.Config {
		config[k] = v
	}
	if !s.given {
		config["agent_token"] = s.token
		s.given = true
	}
	reply(w, 200, map[string]any{"node": map[string]any{"uuid": s.node["uuid"], "properties": s.node["properties"],
		"instance_info": s.node["instance_info"], "driver_internal_info": map[string]any{}, "links": []any{}},
		"config": config})
}

func (s *Ironic) heartbeat(w http.ResponseWriter, r *http.Request) {
	var b map[string]string
	if json.NewDecoder(r.Body).Decode(&b) != nil {
		refuse(w, 400, "no JSON")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.tellLocked()
	for k := range b {
		if !slices.Contains([]string{"callback_url", "agent_version", "agent_token", "agent_verify_ca"}, k) {
			refuse(w, 400, "Unexpected arguments: "+k)
			return
		}
	}
	switch {
	case s.down:
		refuse(w, 503, "No conductor is available")
	case r.PathValue("uuid") != s.node["uuid"]:
		refuse(w, 404, "Node could not be found.")
	case b["agent_token"] != s.token || !s.given:
		refuse(w, 400, "Invalid or missing agent token received.")
	case b["agent_version"] == "":
		refuse(w, 400, "Missing mandatory parameter agent_version")
	case !strings.HasPrefix(b["callback_url"], "https://") || strings.HasSuffix(b["callback_url"], "/"):
		refuse(w, 400, "TLS is required by configuration")
	case s.callback != "" && s.callback != b["callback_url"]:
		refuse(w, 400, `Detected change in ramdisk provided "callback_url"`)
	case s.ca != "" && s.ca != b["agent_verify_ca"]:
		refuse(w, 400, `Detected change in ramdisk provided "agent_verify_ca"`)
	default:
		s.callback, s.ca = b["callback_url"], b["agent_verify_ca"]
		s.beats++
		w.WriteHeader(202)
		if strings.HasSuffix(s.state, "wait") || s.state == "wait call-back" {
			if !s.busy { // else the node is locked, and the heartbeat is dropped silently
				s.busy = true
				s.workers.Go(s.work)
			}
		}
	}
}

// work does what a heartbeat in a wait state leads to.
func (s *Ironic) work() {
	defer func() {
		s.mu.Lock()
		s.busy = false
		s.tellLocked()
		s.mu.Unlock()
	}()
	s.mu.Lock()
	phase, current, available := s.phase, s.current, s.available
	s.mu.Unlock()
	if phase == "rescue" {
		s.finalizeRescue()
		return
	}
	if available == nil {
		if !s.listSteps(phase) {
			return
		}
		if phase != "deploy" {
			s.next(phase) // cleaning begins in the same heartbeat, with no look at the list between
			return
		}
	}
	list, ok := s.commands()
	if !ok {
		return
	}
	fresh := true
	for _, r := range list {
		fresh = fresh && strings.HasPrefix(r.Name, "get_")
	}
	if current == nil || fresh {
		s.next(phase)
		return
	}
	last := list[len(list)-1]
	switch {
	case last.Name != "execute_"+phase+"_step":
		// not yet executed, or of an earlier one
	case last.Status == "RUNNING":
	case last.Status == "FAILED":
		s.fail("Agent returned error for %s step %s: %s", phase, current.Step, last.Error)
	case last.Status == "CLEAN_VERSION_MISMATCH":
		s.mu.Lock()
		s.available = nil
		s.mu.Unlock()
		s.listSteps(phase)
	case last.Status == "SUCCEEDED":
		var got map[string]json.RawMessage
		var echoed Step
		_ = json.Unmarshal(last.Result, &got)
		_ = json.Unmarshal(got[phase+"_step"], &echoed)
		if echoed.Interface != current.Interface || echoed.Step != current.Step {
			return // ignored, for ever
		}
		s.mu.Lock()
		s.results = append(s.results, last)
		s.current = nil
		s.mu.Unlock()
		s.next(phase)
	}
}

func (s *Ironic) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastError = fmt.Sprintf(format, args...)
	s.state = s.phase + " failed"
	s.tellLocked()
}

// listSteps asks for the agent's steps.
func (s *Ironic) listSteps(phase string) bool {
	r, ok := s.command(phase+".get_"+phase+"_steps", true, nil)
	if !ok {
		return false
	}
	var got map[string]json.RawMessage
	if err := json.Unmarshal(r.Result, &got); err != nil {
		s.fail("get_%s_steps: %s", phase, r.Error)
		return false
	}
	var managers map[string][]map[string]any
	if err := json.Unmarshal(got[phase+"_steps"], &managers); err != nil {
		s.fail("get_%s_steps: %v", phase, err)
		return false
	}
	available := map[string]bool{}
	for _, steps := range managers {
		for _, one := range steps {
			for _, key := range []string{"interface", "step", "priority"} {
				if one[key] == nil {
					s.fail("a step without %s: %v", key, one)
					return false
				}
			}
			available[fmt.Sprint(one["step"])] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.available, s.version = available, got["hardware_manager_version"]
	return true
}

// next executes the next step, or what follows the last one.
func (s *Ironic) next(phase string) {
	s.mu.Lock()
	if s.current == nil && len(s.steps) > 0 {
		s.current, s.steps = &s.steps[0], s.steps[1:]
	}
	current, available := s.current, s.available
	s.mu.Unlock()
	if current == nil {
		s.finish(phase)
		return
	}
	if !available[current.Step] {
		s.fail("step %s is not one of the agent's", current.Step)
		return
	}
	s.command(phase+".execute_"+phase+"_step", false, map[string]any{"step": current, phase + "_version": s.version})
}

func (s *Ironic) finish(phase string) {
	if phase != "deploy" {
		s.done(map[string]string{"clean": "available", "service": "active"}[phase])
		return
	}
	if _, ok := s.command("standby.get_partition_uuids", true, nil); !ok {
		return
	}
	if s.uefi {
		if _, ok := s.command("image.install_bootloader", false, map[string]any{"root_uuid": nil,
			"efi_system_part_uuid": nil, "prep_boot_part_uuid": nil, "target_boot_mode": "uefi"}); !ok {
			return
		}
		for {
			list, ok := s.commands()
			if !ok {
				return
			}
			last := list[len(list)-1]
			if last.Status == "FAILED" {
				s.fail("install_bootloader: %s", last.Error)
				return
			}
			if last.Status != "RUNNING" {
				break
			}
			<-time.After(20 * time.Millisecond) // six seconds
		}
	}
	if _, ok := s.command("standby.power_off", false, nil); ok {
		s.done("active")
	}
}

func (s *Ironic) done(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	s.tellLocked()
}

func (s *Ironic) finalizeRescue() {
	s.mu.Lock()
	password := s.node["instance_info"].(map[string]any)["rescue_password"]
	s.mu.Unlock()
	r, ok := s.command("rescue.finalize_rescue", false, map[string]any{"rescue_password": password, "hashed": true})
	if ok && r.Status != "SUCCEEDED" {
		s.fail("finalize_rescue: %s %s", r.Status, r.Error)
	} else if ok {
		s.done("rescue")
	}
}

// Call sends a command as the conductor does, and returns its result or an error.
func (s *Ironic) Call(name string, wait bool, params map[string]any) (Result, bool) {
	return s.command(name, wait, params)
}

// command sends a command, three times if need be; one that runs already is taken for its own.
func (s *Ironic) command(name string, wait bool, params map[string]any) (Result, bool) {
	s.mu.Lock()
	all := map[string]any{"node": s.node, "ports": []any{}}
	if params != nil && !strings.Contains(name, "_step") {
		all = params
	}
	for k, v := range params {
		all[k] = v
	}
	if strings.HasPrefix(name, "standby.") || strings.HasPrefix(name, "log.") {
		all = map[string]any{}
	}
	body, err := json.Marshal(map[string]any{"name": name, "params": all})
	s.mu.Unlock()
	if err != nil {
		s.t.Errorf("%s: %v", name, err)
		return Result{}, false
	}
	_, bare, _ := strings.Cut(name, ".")
	var fault error
	for range 3 {
		var r Result
		code, err := s.send(http.MethodPost, name, fmt.Sprintf("wait=%v", wait), body, &r)
		if fault = err; err == nil {
			switch {
			case code >= 400 && r.Fault == nil:
				s.t.Errorf("%s was answered %d without a faultstring", name, code)
			case code == 409:
				return r, false // busy: tried again with a later heartbeat
			case code >= 400:
				s.fail("%s: %d %s", name, code, *r.Fault)
			}
			return r, code < 400
		}
		if list, ok := s.commands(); ok && len(list) > 0 {
			if last := list[len(list)-1]; last.Name == bare && last.Status == "RUNNING" {
				return last, true
			}
		}
	}
	s.fail("connect to the agent for %s: %v", name, fault)
	return Result{}, false
}

// commands reads the list.
func (s *Ironic) commands() ([]Result, bool) {
	var list struct {
		Commands []Result `json:"commands"`
	}
	for range 3 {
		code, err := s.send(http.MethodGet, "", "", nil, &list)
		if err == nil && code == 200 {
			return list.Commands, true
		}
		if err == nil {
			s.fail("GET commands: %d", code)
			return nil, false
		}
	}
	return nil, false
}

func (s *Ironic) send(method, name, query string, body []byte, v any) (int, error) {
	s.mu.Lock()
	at, ca, token := s.callback, s.ca, s.token
	s.sent++
	lose := s.Lose != nil && s.Lose(s.sent, method, name)
	s.mu.Unlock()
	if method == http.MethodPost || s.release.TokenOnGet {
		query += "&agent_token=" + url.QueryEscape(token)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca))
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: s.release.TLSMin}}}
	req, err := http.NewRequestWithContext(context.Background(), method,
		at+"/v1/commands/?"+strings.TrimPrefix(query, "&"), bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	code, status := 0, "lost"
	resp, err := client.Do(req)
	if err == nil {
		code = resp.StatusCode
		status = fmt.Sprint(code)
		err = json.NewDecoder(resp.Body).Decode(v)
		resp.Body.Close()
	}
	if lose {
		status, err = "lost", io.ErrUnexpectedEOF
	}
	s.mu.Lock()
	s.log = append(s.log, strings.TrimSpace(method+" "+name)+" "+status)
	s.tellLocked()
	s.mu.Unlock()
	return code, err
}
