package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

const (
	// busyLimit ends the waiting for a service that answers but says that it is busy.
	busyLimit = 20 * time.Second
	firstWait = 250 * time.Millisecond
	maxWait   = 5 * time.Second
	// basicTime is how long Basic is used when there was no free session.
	basicTime = 5 * time.Minute
	// logOutTime bounds the deletion of a session.
	logOutTime = 5 * time.Second
)

// answer is a whole answer of a service.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// Why a request is not sent, or its answer not read.
var (
	errElsewhere = errors.New("the service leads to another host, which is not asked")
	errTooLarge  = fmt.Errorf("the service sends more than %d MiB", limit.RedfishAnswer>>20)
	errPassword  = errors.New("wrong user name or password")
)

// harmless marks requests in a context that may be sent again although they may have been carried out.
type harmless struct{}

// RoundTrip sends a request of gofish, when it is its turn, as often as it takes. It implements http.RoundTripper.
func (c *Controller) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	base := c.access.Base
	// gofish appends what a service gives as a path to the address: what is no path may make it another host's.
	if r.URL.Scheme != base.Scheme || r.URL.Host != base.Host || r.URL.User != nil {
		return nil, errElsewhere
	}
	if err := spend(ctx); err != nil {
		return nil, err
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close() // of bytes in memory
	}
	if err := c.turn.take(ctx); err != nil {
		return nil, err
	}
	defer c.turn.give()
	a, err := c.exchange(ctx, r, body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: a.status, Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header, Request: r,
		Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body))}, nil
}

// exchange is called when it is the controller's turn.
func (c *Controller) exchange(ctx context.Context, r *http.Request, body []byte) (*answer, error) {
	atRoot := strings.TrimSuffix(r.URL.Path, "/") == serviceRoot
	path := r.URL.RequestURI()
	if atRoot {
		path = c.access.Base.Path // for services whose root is elsewhere
	}
	again := r.Method != http.MethodPost || ctx.Value(harmless{}) != nil
	begun, wait := time.Now(), firstWait
	lost, renewed := false, false
	for {
		header := http.Header{}
		for _, name := range []string{"Accept", "Content-Type", "If-Match"} {
			if v := r.Header.Get(name); v != "" {
				header.Set(name, v)
			}
		}
		if !atRoot || renewed { // the root is for everyone, by the standard
			if err := c.authorize(ctx, header, atRoot); err != nil {
				return nil, err
			}
		}
		a, err := c.send(ctx, r.Method, path, header, body)
		switch {
		case err == nil && a.status == http.StatusUnauthorized && !renewed && (c.token != "" || atRoot):
			c.log.Debug("the session is gone: logging in again")
			c.forget()
			renewed = true
			continue
		case err == nil && a.status == http.StatusUnauthorized:
			return nil, errPassword
		case err != nil && closed(err) && again && !lost && ctx.Err() == nil:
			lost, renewed = true, false // a controller that restarts has forgotten the new session, too
		case err == nil && notReady(a) && time.Since(begun) < busyLimit:
			if s, err := strconv.Atoi(a.header.Get("Retry-After")); err == nil && s >= 0 {
				wait = min(max(time.Duration(s)*time.Second, firstWait), maxWait)
			}
		default:
			if err == nil && atRoot && a.status == http.StatusOK {
				c.readRoot(a.body)
			}
			return a, err
		}
		c.log.Debug("trying again", "method", r.Method, "path", path, "err", err, "wait", wait)
		if !Sleep(ctx, wait) {
			return a, err // the newest answer says more than that the time was short
		}
		wait = min(2*wait, maxWait)
	}
}

// send makes one request and reads the whole answer.
func (c *Controller) send(ctx context.Context, method, path string, header http.Header, body []byte) (*answer, error) {
	if err := power.MaySend(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit.RedfishTime)
	defer cancel()
	u, err := url.Parse(path)
	if err != nil || u.Host != "" || !strings.HasPrefix(path, "/") {
		return nil, errElsewhere
	}
	u.Scheme, u.Host = c.access.Base.Scheme, c.access.Base.Host
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), in)
	if err != nil {
		return nil, err
	}
	r.Header = header
	r.Header.Set("User-Agent", "ingot")
	r.Header.Set("OData-Version", "4.0")
	r.Close = c.closeConnections.Load()
	resp, err := c.wire.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit.RedfishAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(b) > limit.RedfishAnswer {
		return nil, errTooLarge
	}
	return &answer{resp.StatusCode, resp.Header, b}, nil
}

// authorize puts credentials on a request, and logs in before when there is no session.
func (c *Controller) authorize(ctx context.Context, header http.Header, atRoot bool) error {
	a := c.access
	if a.User == "" && a.Password == "" {
		return nil
	}
	basic := a.Auth == Basic || atRoot || time.Now().Before(c.basicUntil)
	fresh := !basic && c.token == ""
	if fresh {
		if err := c.logIn(ctx); err != nil {
			return err
		}
		basic = c.token == ""
	}
	if basic {
		r := http.Request{Header: header}
		r.SetBasicAuth(a.User, a.Password)
	} else {
		header.Set("X-Auth-Token", c.token)
	}
	if fresh {
		c.endLeft(ctx, header)
	}
	return nil
}

// errNoSessions means that a session was insisted on where there are none.
var errNoSessions = errors.New("the service makes no session")

// logIn makes a session. Without one, Basic is used for a while, unless sessions are insisted on. A name and password
// that were refused are not tried a second time in another way: controllers lock accounts.
func (c *Controller) logIn(ctx context.Context) error {
	refused := func(why error) error {
		if c.access.Auth == Session {
			return why
		}
		c.log.Debug("no session: using Basic authentication", "err", why)
		c.basicUntil = time.Now().Add(basicTime)
		return nil
	}
	if c.sessions == "" {
		return refused(errNoSessions)
	}
	body, err := json.Marshal(map[string]string{"UserName": c.access.User, "Password": c.access.Password})
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	a, err := c.send(ctx, http.MethodPost, c.sessions, header, body)
	if err != nil && closed(err) && ctx.Err() == nil { // the connection was idle
		a, err = c.send(ctx, http.MethodPost, c.sessions, header, body)
	}
	switch {
	case err != nil:
		return err
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		return errPassword
	case a.status/100 != 2 || a.header.Get("X-Auth-Token") == "":
		return refused(fmt.Errorf("%w: status %d", errNoSessions, a.status))
	}
	c.token, c.session = a.header.Get("X-Auth-Token"), sessionPath(a)
	if err := c.pool.records.Note(c.own()); err != nil {
		c.log.Debug("record the session", "err", err)
	}
	return nil
}

// sessionPath is where a new session can be deleted.
func sessionPath(a *answer) string {
	if u, err := url.Parse(a.header.Get("Location")); err == nil && u.Path != "" {
		return u.Path
	}
	var made struct {
		ID string `json:"@odata.id"`
	}
	_ = json.Unmarshal(a.body, &made) // then it has to end by itself
	return made.ID
}

// logOut deletes the session. A service that can't be reached lets it end by itself.
func (c *Controller) logOut(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logOutTime)
	defer cancel()
	defer c.wire.CloseIdleConnections()
	if err := c.turn.take(ctx); err != nil {
		c.log.Warn("the session was not deleted", "err", err)
		return
	}
	defer c.turn.give()
	if c.token == "" || c.session == "" {
		return
	}
	for range 2 { // a connection that was idle may be closed by now
		_, err := c.send(ctx, http.MethodDelete, c.session, http.Header{"X-Auth-Token": {c.token}}, nil)
		if err == nil {
			c.forget()
			return
		}
		c.log.Debug("delete session", "err", err)
	}
	c.token, c.session = "", ""
}

// readRoot finds out where sessions are made.
func (c *Controller) readRoot(body []byte) {
	type link struct {
		ID string `json:"@odata.id"`
	}
	var root struct {
		Links          struct{ Sessions link }
		SessionService link
	}
	if json.Unmarshal(body, &root) != nil {
		return // gofish says so
	}
	c.sessions = root.Links.Sessions.ID
	if c.sessions == "" && root.SessionService.ID != "" {
		c.sessions = strings.TrimSuffix(root.SessionService.ID, "/") + "/Sessions"
	}
}

// closed reports whether the service ended the connection instead of answering.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || strings.Contains(err.Error(), "server closed idle connection")
}

// busyMessages are the messages of registries that ask for the same request again later, without version: the
// standard's, Dell's "not ready" and "a job is running", and HPE's "in POST".
var busyMessages = []string{"ServiceTemporarilyUnavailable", "ServiceInUnknownState", "ServiceShuttingDown",
	"ResourceInUse", "SYS518", "RAC0218", "RAC0679", "UnableToModifyDuringSystemPOST"}

func notReady(a *answer) bool {
	if a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests {
		return true
	}
	return a.status >= 400 && saysBusy(messagesOf(a.body))
}

// Sleep waits, and reports whether ctx goes on.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
