package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/progress"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// running gathers how far running work is on this conductor, with its name, and on those between which requests are
// passed; between is nil where there is only this one.
func running(local func() map[string]node.Progress, between *peers, others *member.Conductors, self string,
	log *slog.Logger) *progress.Gather {
	src := progress.Source{Local: local, Log: log}
	if between != nil {
		src.Others = func() (names []string) {
			for _, m := range others.All() {
				if m.Alive && m.Name != self && m.Peer != "" {
					names = append(names, m.Name)
				}
			}
			return names
		}
		src.Ask = func(ctx context.Context, name string) (map[string]node.Progress, error) {
			return askRunning(ctx, between.client, name, self)
		}
	}
	return progress.New(src)
}

// askRunning asks another conductor how far the work of its nodes is. It asks in its own name, and shows the answer to
// clients only by their rights.
func askRunning(ctx context.Context, c *peer.Client, name, self string) (map[string]node.Progress, error) {
	a, err := c.Forward(ctx, name, &peer.Request{ID: "req-" + uuid.NewString(), Method: http.MethodGet,
		URL:    "/ingot/v1/progress?conductor=" + url.QueryEscape(name),
		Header: http.Header{http.CanonicalHeaderKey(rest.VersionHeader): {rest.NewestVersion.String()}},
		Actor:  &access.Actor{UserName: "conductor " + self, System: true, Role: access.Reader}})
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, fmt.Errorf("it answers with status %d", a.Status)
	}
	var got rest.Running
	if err := json.Unmarshal(a.Body, &got); err != nil {
		return nil, err
	}
	out := make(map[string]node.Progress, len(got.Progress))
	for _, p := range got.Progress {
		out[p.NodeUUID] = node.Progress{PlanID: p.PlanID, Step: p.Transfer.Step, Phase: p.Transfer.Phase,
			Bytes: p.Transfer.Bytes, Total: p.Transfer.Total, Rate: p.Transfer.Rate, At: p.Transfer.At.Time}
	}
	return out, nil
}
