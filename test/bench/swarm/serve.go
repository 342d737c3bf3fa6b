package main

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/ingot-metal/ingot/test/kit/rack"
)

const (
	agentPort = "6386"
	imagePort = "8080"
)

// watch waits until all agents have the image, and for the ends of their plans.
type watch struct {
	want int

	mu    sync.Mutex
	ended map[string]time.Time
	rep   int64
	plans int
	after ticks // when the last had the image
	done  chan error
}

func (w *watch) event(e node.AgentEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.StepFinished != nil && e.StepFinished.Error != "":
		w.end(errors.New(e.StepFinished.Error))
	case e.PlanFinished != nil:
		if w.plans++; w.plans == w.want {
			w.end(nil)
		}
	case e.StepFinished != nil && e.StepFinished.Name == "write":
		w.ended[e.NodeUUID] = time.Now()
		if len(w.ended) == w.want {
			var err error
			if w.after, err = cpu(); err != nil {
				w.end(err)
			}
		}
		var res struct{ Repacked int64 }
		if err := json.Unmarshal(e.StepFinished.Result, &res); err == nil {
			w.rep += res.Repacked
		}
	}
}

func (w *watch) end(err error) {
	select {
	case w.done <- err:
	default:
	}
}

// serve is the server's process: origin and conductor. It prints the allowed nodes, then the measurements.
func serve(ctx context.Context, args []string, out io.Writer) error {
	dir, www, addr := args[0], args[1], args[2]
	nodes, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	var sent atomic.Int64
	files := http.FileServer(http.Dir(www))
	web := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			files.ServeHTTP(counted{w, &sent}, q)
		}), ReadHeaderTimeout: time.Minute}
	l, err := stdnet.Listen("tcp", stdnet.JoinHostPort(addr, imagePort))
	if err != nil {
		return err
	}
	defer web.Close()
	go web.Serve(l)

	w := &watch{want: nodes, ended: map[string]time.Time{}, done: make(chan error, 1)}
	o := rack.Options{Dir: dir, Nodes: nodes, Event: w.event,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if args[4] == "true" {
		o.Swarm = &agents.Swarm{}
	}
	al, err := stdnet.Listen("tcp", stdnet.JoinHostPort(addr, agentPort))
	if err != nil {
		return err
	}
	r, err := rack.Start(ctx, al, o)
	if err != nil {
		return err
	}
	defer r.Stop()
	if err := json.NewEncoder(out).Encode(rackSays{r.CA, r.Tokens}); err != nil {
		return err
	}
	select {
	case <-r.Ready():
	case err := <-w.done:
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
	for _, uuid := range r.Nodes {
		if err := r.Send(ctx, uuid, node.PlanStep{Interface: "deploy", Name: "write", Args: planArgs},
			node.PlanStep{Interface: "deploy", Name: "rest"}); err != nil {
			return err
		}
	}
	select {
	case err = <-w.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var took []float64
	for _, t := range w.ended {
		took = append(took, t.Sub(began).Seconds())
	}
	slices.Sort(took)
	stored, err := storedSize(www)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result{Nodes: nodes, StoredMB: float64(stored) / 1e6, Seconds: took[len(took)-1],
		Median: took[len(took)/2], EgressMB: float64(sent.Load()) / 1e6, CPU: before.until(w.after), Repacked: w.rep})
}

// rackSays is the server's first line.
type rackSays struct {
	CA     string
	Tokens []string
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

// ticks holds the times of all processors in /proc/stat.
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
