package own

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestStreamsEndWithTheLogin: a stream lives longer than a token may.
func TestStreamsEndWithTheLogin(t *testing.T) {
	var who *access.Actor
	var refused *call.Reply
	var fault *rest.Error
	s := &Handlers{cfg: Config{
		Authenticate: func(*http.Request) (*access.Actor, *call.Reply, *rest.Error) { return who, refused, fault }}}
	st := &stream{s: s,
		c: &call.Call{Request: httptest.NewRequest("GET", "/ingot/v1/events", nil),
			Actor: &access.Actor{System: true, Role: access.Admin}}}
	who = &access.Actor{ProjectID: "p", Role: access.Reader}
	if !st.still() || st.c.Actor != who {
		t.Error("a reader whose role is another is not taken for what it is now")
	}
	who, fault = nil, rest.Fault(503, "Keystone is down")
	if !st.still() {
		t.Error("a stream ends because Keystone can't be asked")
	}
	refused, fault = &call.Reply{Status: 401}, nil
	if st.still() {
		t.Error("a stream goes on although its token is not good any more")
	}
	who, refused = &access.Actor{ProjectID: "p"}, nil
	if st.still() {
		t.Error("a stream goes on although its reader has no role any more")
	}
}
