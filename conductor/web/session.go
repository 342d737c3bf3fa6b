package web

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// session is one browser's login. It is kept by the browser alone, in a cookie that only conductors can read, so that
// each of several conductors behind one address knows it.
type session struct {
	ID       []byte    `json:"i"`
	CSRF     string    `json:"c"` // what scripts of our own pages send along, and other pages don't know
	Mode     string    `json:"m"` // how its user was authenticated
	User     string    `json:"u,omitempty"`
	Password string    `json:"p,omitempty"` // of http_basic
	Token    string    `json:"t,omitempty"` // of keystone
	Ours     bool      `json:"o,omitempty"` // the token was got for this session, and ends with it
	Whose    string    `json:"w,omitempty"` // stands for its user where its end is kept
	Began    time.Time `json:"b"`
	Used     time.Time `json:"s"`
}

// end is when a session ends if it is not used, and at the latest.
func (s *session) end() time.Time {
	end, last := s.Used.Add(limit.SessionIdle), s.Began.Add(limit.SessionLife)
	if last.Before(end) {
		return last
	}
	return end
}

// authorize puts the credentials of the session's user on a request.
func (s *session) authorize(r *http.Request) {
	switch {
	case s.Mode == Basic:
		r.SetBasicAuth(s.User, s.Password)
	case s.Mode == Keystone:
		r.Header.Set("X-Auth-Token", s.Token)
	}
}

// cookieName is the cookie's; cookiePath confines it to the dashboard: requests to the API never have it.
const (
	cookieName = "ingot_ui"
	cookiePath = "/ui"
)

// moved is how much later a session has to be used for its cookie to be set again.
const moved = time.Minute

// vault seals and opens cookies. Safe for concurrent use.
type vault struct {
	aead cipher.AEAD
	mode string
	now  func() time.Time
}

// bound is the purpose of a sealed cookie: nothing else that the key might seal is taken for one.
var bound = []byte("ingot dashboard session 1")

func newVault(key []byte, mode string, now func() time.Time) (*vault, error) {
	sum := sha256.Sum256(key)
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		return nil, fmt.Errorf("make the key of sessions: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("make the key of sessions: %w", err)
	}
	return &vault{aead: aead, mode: mode, now: now}, nil
}

// begin makes a session that begins now.
func (v *vault) begin() *session {
	id := make([]byte, 16)
	rand.Read(id)
	return &session{ID: id, CSRF: rand.Text(), Mode: v.mode, Began: v.now(), Used: v.now()}
}

// seal returns the value of a session's cookie; "" if it is too long for browsers.
func (v *vault) seal(s *session) string {
	text, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	nonce := make([]byte, v.aead.NonceSize())
	rand.Read(nonce)
	value := base64.RawURLEncoding.EncodeToString(v.aead.Seal(nonce, nonce, text, bound))
	if len(value) > limit.SessionCookie {
		return ""
	}
	return value
}

// open returns the session of a request; nil without a valid one. It does not know whether it was signed out.
func (v *vault) open(r *http.Request) *session {
	c, err := r.Cookie(cookieName)
	if err != nil || len(c.Value) > limit.SessionCookie {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(c.Value)
	if n := v.aead.NonceSize(); err == nil && len(b) > n {
		b, err = v.aead.Open(nil, b[:n], b[n:], bound)
	}
	s := new(session)
	if err != nil || json.Unmarshal(b, s) != nil || s.Mode != v.mode {
		return nil // of another installation, or from before its keys or its configuration changed
	}
	now := v.now()
	if !now.Before(s.end()) || s.Used.After(now.Add(limit.SessionIdle)) {
		return nil
	}
	return s
}

// key stands for a session where its end is kept.
func (s *session) key() string {
	sum := sha256.Sum256(s.ID)
	return hex.EncodeToString(sum[:])
}

// whose stands for a user, whose name may be long.
func whose(user string) string {
	sum := sha256.Sum256([]byte(user))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// open returns the session of a request; nil without a valid one, and where it was signed out, at whichever conductor.
// An error is the store's.
func (s *Server) open(r *http.Request) (*session, error) {
	ses := s.vault.open(r)
	if ses == nil || s.cfg.Ended == nil || s.cfg.Auth == None {
		return ses, nil
	}
	ended, err := s.cfg.Ended.SessionEnded(r.Context(), ses.key())
	if err != nil || ended {
		return nil, err
	}
	return ses, nil
}

// forget has a session end now, at all conductors. One without authentication proves nothing, and is not kept.
func (s *Server) forget(ctx context.Context, ses *session) error {
	if s.cfg.Ended == nil || s.cfg.Auth == None {
		return nil
	}
	return s.cfg.Ended.EndSession(ctx, ses.key(), ses.Whose, ses.Began.Add(limit.SessionLife), limit.SessionsEnded)
}

// ending returns a context that ends with a session: when it is too old, and soon after it was signed out. The function
// that it returns ends it, too.
func (s *Server) ending(ctx context.Context, ses *session) (context.Context, func()) {
	ctx, cancel := context.WithDeadline(ctx, ses.end())
	if s.cfg.Ended == nil || s.cfg.Auth == None {
		return ctx, cancel
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		look := time.NewTicker(limit.SessionLook)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			if ended, err := s.cfg.Ended.SessionEnded(ctx, ses.key()); err == nil && ended {
				cancel()
			}
		}
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}

// known reports whether a text is the session's word against forged requests.
func (s *session) known(text string) bool {
	return s.CSRF != "" && subtle.ConstantTimeCompare([]byte(text), []byte(s.CSRF)) == 1
}

// cookie makes the cookie with a value; "" takes it back.
func cookie(value string, secure bool, age time.Duration) *http.Cookie {
	c := &http.Cookie{Name: cookieName, Value: value, Path: cookiePath, HttpOnly: true, Secure: secure,
		SameSite: http.SameSiteStrictMode, MaxAge: int(age.Seconds())}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}
