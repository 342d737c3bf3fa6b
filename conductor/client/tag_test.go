package client

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestIfMatchIsSent: an ETag that was read goes with what changes something, not with what reads, and a refusal is not
// tried again.
func TestIfMatchIsSent(t *testing.T) {
	var sent []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, fmt.Sprint(r.Method, r.Header["If-Match"]))
		if m := r.Header.Get("If-Match"); m != "" && m != `"2"` {
			fail(w, rest.Fault(http.StatusPreconditionFailed, "changed"))
			return
		}
		w.Header().Set("ETag", `"2"`)
		fmt.Fprint(w, `{"uuid":"n"}`)
	})
	ctx := t.Context()
	var tag string
	if _, err := c.Tag(&tag).Node(ctx, "n"); err != nil || tag != `"2"` {
		t.Fatalf("the node's ETag is %s, %v", tag, err)
	}
	if _, err := c.IfMatch(tag).UpdateNode(ctx, "n", nil); err != nil {
		t.Error(err)
	}
	old := c.IfMatch(`"1"`)
	if _, err := old.Node(ctx, "n"); err != nil {
		t.Error(err)
	}
	var answer *rest.Error
	if _, err := old.UpdateNode(ctx, "n", nil); !errors.As(err, &answer) ||
		answer.Status != http.StatusPreconditionFailed {
		t.Errorf("with an old ETag: %v", err)
	}
	if err := c.DeleteNode(ctx, "n"); err != nil {
		t.Error(err)
	}
	if got, want := fmt.Sprint(sent), `[GET[] PATCH["2"] GET[] PATCH["1"] DELETE[]]`; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
}
