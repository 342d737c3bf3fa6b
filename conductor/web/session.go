package web

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
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

	mu    sync.Mutex
	ended map[[sha256.Size]byte]time.Time // sessions that were signed out, until they would have ended
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
	return &vault{aead: aead, mode: mode, now: now, ended: map[[sha256.Size]byte]time.Time{}}, nil
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

// open returns the session of a request; nil without a valid one.
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
	if !now.Before(s.end()) || s.Used.After(now.Add(limit.SessionIdle)) || v.hasEnded(s) {
		return nil
	}
	return s
}

// forget has a session end now, at this conductor. Others learn nothing of it: what ends a login everywhere is
// Keystone's revocation of its token, or a changed password.
func (v *vault) forget(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.now()
	maps.DeleteFunc(v.ended, func(_ [sha256.Size]byte, until time.Time) bool { return !now.Before(until) })
	if len(v.ended) >= limit.SessionsEnded {
		clear(v.ended)
	}
	v.ended[sha256.Sum256(s.ID)] = s.Began.Add(limit.SessionLife)
}

func (v *vault) hasEnded(s *session) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ended := v.ended[sha256.Sum256(s.ID)]
	return ended
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
