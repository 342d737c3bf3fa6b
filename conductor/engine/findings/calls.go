package findings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Requests of rules are made before the transaction in which the rules are applied, because no transaction may wait for
// them. If the conductor dies in between, or the transaction fails, they are made again.

type callsKey struct{}

// calls are the outcomes of requests, in order.
type calls struct {
	made []inspect.Call
	errs []error
}

// CallOut makes the requests of the rules that will be applied to the result of an inspection, and keeps their outcomes
// in the context that it returns.
func (t Taker) CallOut(ctx context.Context, ev node.AgentEvent) (context.Context, error) {
	r := ev.StepFinished
	if r == nil || r.Name != "inspect" || r.Outcome != node.OutcomeDone {
		return ctx, nil
	}
	n, err := t.Store.Node(ctx, ev.NodeUUID)
	if err != nil || n.Job == nil || n.Job.PlanID != r.PlanID {
		return ctx, err
	}
	return t.CallOutFor(ctx, n, r.Result)
}

// CallOutFor is CallOut for an inspection that no agent made.
func (t Taker) CallOutFor(ctx context.Context, n *node.Node, result json.RawMessage) (context.Context, error) {
	rules, err := t.Store.Rules(ctx)
	if err != nil || !inspect.Calls(rules) && !inspect.Calls(t.Options.BuiltIn) {
		return ctx, err
	}
	f, err := t.found(ctx, n, result)
	var bad *unreadable
	if errors.As(err, &bad) {
		return ctx, nil // which fails the job later
	}
	if err != nil {
		return ctx, err
	}
	var c calls
	o := t.Options
	bounded, cancel := context.WithTimeout(ctx, limit.RuleCallTime)
	defer cancel()
	o.Call = func(want inspect.Call) error {
		err := get(bounded, t.Guard, want)
		c.made, c.errs = append(c.made, want), append(c.errs, err)
		return err
	}
	// A rule that fails here fails there as well, and is reported there.
	_ = inspect.Run(f, rules, o)
	return context.WithValue(ctx, callsKey{}, &c), ctx.Err()
}

// calledBefore returns the outcomes of requests that were made before, each once.
func calledBefore(ctx context.Context) func(inspect.Call) error {
	c, _ := ctx.Value(callsKey{}).(*calls)
	at := 0
	return func(want inspect.Call) error {
		if c == nil || at >= len(c.made) || !reflect.DeepEqual(c.made[at], want) {
			return errors.New(
				"the node was changed while it was inspected, and the request would be another one now; inspect it again")
		}
		at++
		return c.errs[at-1]
	}
}

// get makes a request of a rule, again when that may help.
func get(ctx context.Context, g *dial.Guard, c inspect.Call) error {
	var proxy func(*http.Request) (*url.URL, error)
	if len(c.Proxies) > 0 {
		proxy = func(r *http.Request) (*url.URL, error) {
			if p := c.Proxies[r.URL.Scheme]; p != "" {
				return url.Parse(p)
			}
			return nil, nil
		}
	}
	transport := g.Transport(proxy)
	transport.DisableKeepAlives = true
	transport.MaxResponseHeaderBytes = 64 << 10 // of the answer no more is read than how it went
	client := &http.Client{Transport: transport, Timeout: c.Timeout}
	pause := time.Duration(0) // before the first retry there is none, as in Ironic
	for try := 0; ; try++ {
		again, err := getOnce(ctx, client, c)
		if err == nil || !again || try >= c.Retries || ctx.Err() != nil {
			return err
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return err
		case <-wait.C:
		}
		pause = max(c.Backoff, 2*pause)
	}
}

func getOnce(ctx context.Context, client *http.Client, c inspect.Call) (again bool, err error) {
	shown := redact.URL(c.URL)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return false, fmt.Errorf("request to %s can't be made", shown)
	}
	for k, v := range c.Headers {
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may hold a secret
		}
		var refused *dial.RefusedError
		return !errors.As(err, &refused), fmt.Errorf("request to %s: %w", shown, err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode < 400:
		return false, nil
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500:
		again = true
	}
	return again, fmt.Errorf("request to %s: %s", shown, strings.TrimSpace(res.Status))
}
