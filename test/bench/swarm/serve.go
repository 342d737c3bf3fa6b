package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	stdnet "net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

const (
	agentPort = "6386"
	imagePort = "8080"
)

// rack is the conductor's mind, as far as it is needed: it waits until all agents are there, gives all the same plan, and waits for the ends.
type rack struct {
	want int

	mu    sync.Mutex
	up    map[string]node.AgentState
	ended map[string]time.Time
	rep   int64
	plans int
	after ticks // when the last had the image
	ready chan struct{}
	done  chan error
}

func (*rack) Enrolled(context.Context, string)          {}
func (*rack) AgentProgress(string, node.Progress)       {}
func (*rack) AgentLost(context.Context, string, string) {}

// AgentStale does nothing: a rack has no boots that are over.
func (*rack) AgentStale(context.Context, string, string) {}
func (r *rack) AgentUp(_ context.Context, s node.AgentState) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, again := r.up[s.NodeUUID]
	r.up[s.NodeUUID] = s
	if len(r.up) == r.want && !again {
		close(r.ready)
	}
	return nil
}

func (r *rack) AgentEvent(_ context.Context, e node.AgentEvent) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.StepFinished != nil && e.StepFinished.Error != "":
		r.end(errors.New(e.StepFinished.Error))
	case e.PlanFinished != nil:
		if r.plans++; r.plans == r.want {
			r.end(nil)
		}
	case e.StepFinished != nil && e.StepFinished.Name == "write":
		r.ended[e.NodeUUID] = time.Now()
		if len(r.ended) == r.want {
			var err error
			if r.after, err = cpu(); err != nil {
				return err
			}
		}
		var res struct{ Repacked int64 }
		if err := json.Unmarshal(e.StepFinished.Result, &res); err == nil {
			r.rep += res.Repacked
		}
	}
	return nil
}

func (r *rack) end(err error) {
	select {
	case r.done <- err:
	default:
	}
}

// serve is the server's process: origin and conductor. It says who may come, then what was measured.
func serve(ctx context.Context, args []string, out io.Writer) error {
	dir, www, addr := args[0], args[1], args[2]
	nodes, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	var sent atomic.Int64
	files := http.FileServer(http.Dir(www))
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { files.ServeHTTP(counted{w, &sent}, q) }), ReadHeaderTimeout: time.Minute}
	l, err := stdnet.Listen("tcp", stdnet.JoinHostPort(addr, imagePort))
	if err != nil {
		return err
	}
	defer web.Close()
	go web.Serve(l)

	st, err := store.Open(ctx, store.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer st.Close()
	ca, err := agents.OpenCA(dir)
	if err != nil {
		return err
	}
	r := &rack{want: nodes, up: map[string]node.AgentState{}, ended: map[string]time.Time{}, ready: make(chan struct{}), done: make(chan error, 1)}
	cfg := agents.Config{Dir: dir, Names: []string{addr}, Hostname: "bench", NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) }}
	if args[4] == "true" {
		cfg.Swarm = &agents.Swarm{}
	}
	srv, err := agents.New(st, r, ca, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	al, err := stdnet.Listen("tcp", stdnet.JoinHostPort(addr, agentPort))
	if err != nil {
		return err
	}
	go srv.Serve(al)
	defer func() {
		last, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		srv.Stop(last)
	}()

	var who struct {
		CA     string
		Tokens []string
	}
	who.CA = ca.Fingerprint()
	for i := range nodes {
		n := &node.Node{Name: fmt.Sprintf("node-%d", i+1), Driver: "fake-hardware", Provision: node.DeployWait}
		if err := st.CreateNode(ctx, n); err != nil {
			return err
		}
		token := n.UUID + "." + strings.Repeat("A", 43)
		sum := sha256.Sum256([]byte(token))
		_, err := st.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
			n.Generation++
			n.Boot = &node.Boot{OpenedAt: time.Now(), ClosesAt: time.Now().Add(time.Hour), TokenHash: hex.EncodeToString(sum[:]),
				TokenExpires: time.Now().Add(time.Hour), Generation: n.Generation}
			return nil
		})
		if err != nil {
			return err
		}
		who.Tokens = append(who.Tokens, token)
	}
	if err := json.NewEncoder(out).Encode(who); err != nil {
		return err
	}
	select {
	case <-r.ready:
	case err := <-r.done:
		return err
	case <-time.After(2 * time.Minute):
		return errors.New("not all agents came")
	case <-ctx.Done():
		return ctx.Err()
	}

	before, err := cpu()
	if err != nil {
		return err
	}
	sent.Store(0)
	began := time.Now()
	planArgs, err := json.Marshal(stepArgs{URL: "http://" + stdnet.JoinHostPort(addr, imagePort) + "/" + imageName})
	if err != nil {
		return err
	}
	for uuid, s := range r.up {
		p := node.Plan{ID: "p-" + uuid, Generation: s.Generation, Phase: "deploy", Steps: []node.PlanStep{{Interface: "deploy", Name: "write", Args: planArgs}, {Interface: "deploy", Name: "rest"}}}
		if err := srv.SendPlan(ctx, uuid, p); err != nil {
			return err
		}
	}
	select {
	case err = <-r.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var took []float64
	for _, t := range r.ended {
		took = append(took, t.Sub(began).Seconds())
	}
	slices.Sort(took)
	stored, err := storedSize(www)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result{Nodes: nodes, StoredMB: float64(stored) / 1e6, Seconds: took[len(took)-1], Median: took[len(took)/2],
		EgressMB: float64(sent.Load()) / 1e6, CPU: before.until(r.after), Repacked: r.rep})
}

// counted counts the bytes of answers.
type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// ticks is what /proc/stat says of all processors.
type ticks struct{ idle, all uint64 }

func cpu() (t ticks, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line)[1:] {
		v, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return t, err
		}
		if i < 8 { // guests are in user time already
			t.all += v
		}
		if i == 3 || i == 4 {
			t.idle += v
		}
	}
	return t, nil
}

func (t ticks) until(end ticks) float64 {
	all := end.all - t.all
	if all == 0 {
		return 0
	}
	return 1 - float64(end.idle-t.idle)/float64(all)
}
