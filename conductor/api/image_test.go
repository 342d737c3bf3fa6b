package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/imagecheck"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/images/inspect"
)

// looks is a checker that answers as its address says.
type looks struct{ asked []string }

func (l *looks) Check(_ context.Context, address string) (*inspect.Report, error) {
	l.asked = append(l.asked, address)
	switch {
	case strings.HasSuffix(address, "busy"):
		return nil, imagecheck.ErrBusy
	case strings.HasSuffix(address, "oci"):
		return nil, imagecheck.ErrScheme
	case strings.HasSuffix(address, "refused"):
		return nil, errors.New("dial tcp 10.0.0.9:443: connect: connection refused")
	case strings.HasSuffix(address, "page"):
		return &inspect.Report{Reason: "it is a page of the site's wiki"}, nil
	}
	return &inspect.Report{Deployable: true, Format: "raw", Kind: "whole-disk", VirtualSize: 1 << 30}, nil
}

// TestImageCheck: who may deploy a node may look at an image before; what else answers inside the site is said to
// roles of the system alone.
func TestImageCheck(t *testing.T) {
	var l looks
	f := newFixture(t, Config{Images: &l},
		node.Node{Name: "n", Owner: "owner", Lessee: "lessee", Provision: node.Available})
	const at = "/ingot/v1/nodes/n/image_check"
	ask := func(want int, source string) string {
		t.Helper()
		return fmt.Sprint(f.want(want, "POST", at, `{"image_source":"http://u:hidden@images.example/`+source+`"}`))
	}
	f.as(access.Actor{System: true, Role: access.Member})
	if out := ask(200, "disk"); !strings.Contains(out, "whole-disk") {
		t.Errorf("an image: %s", out)
	}
	if out := ask(400, "refused"); !strings.Contains(out, "connection refused") || strings.Contains(out, "hidden") {
		t.Errorf("an address that nothing answers: %s", out)
	}
	ask(200, "page")
	ask(400, "oci")
	ask(503, "busy")
	f.want(400, "POST", at, `{}`)
	f.want(400, "POST", at, `{"image_source":"x","more":1}`)
	for _, who := range []access.Actor{{ProjectID: "owner", Role: access.Manager},
		{ProjectID: "lessee", Role: access.Manager}} {
		f.as(who)
		ask(200, "disk")
		refused, page := ask(400, "refused"), ask(400, "page")
		if strings.ReplaceAll(refused, "refused", "page") != page || strings.Contains(page, "wiki") {
			t.Errorf("%s can tell what answers inside:\n%s\n%s", who.ProjectID, refused, page)
		}
	}
	before := len(l.asked)
	for _, who := range []access.Actor{{System: true, Role: access.Reader},
		{ProjectID: "lessee", Role: access.Reader}} {
		f.as(who)
		ask(403, "disk")
	}
	f.as(access.Actor{ProjectID: "stranger", Role: access.Admin})
	ask(404, "disk")
	if len(l.asked) != before {
		t.Error("an image was looked at for who may not deploy")
	}
}
