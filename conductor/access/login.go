package access

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Login holds what a person gives for a token: a user with a password, and where the roles are held that the token
// has. An empty domain is the default one. Without a project and with System false, Keystone chooses.
type Login struct {
	User, Password, UserDomain string
	Project, ProjectDomain     string
	System                     bool
}

// maxLogin bounds each text of a Login, so that Keystone is sent nothing that it would not take.
const maxLogin = 1024

// request is the body that asks Keystone for a token.
func (l Login) request() ([]byte, error) {
	domain := func(name string) map[string]any {
		if name == "" || name == "default" {
			return map[string]any{"id": "default"}
		}
		return map[string]any{"name": name}
	}
	auth := map[string]any{"identity": map[string]any{"methods": []string{"password"},
		"password": map[string]any{
			"user": map[string]any{"name": l.User, "domain": domain(l.UserDomain), "password": l.Password}}}}
	switch {
	case l.System:
		auth["scope"] = map[string]any{"system": map[string]any{"all": true}}
	case l.Project != "":
		auth["scope"] = map[string]any{"project": map[string]any{"name": l.Project, "domain": domain(l.ProjectDomain)}}
	}
	b, err := json.Marshal(map[string]any{"auth": auth})
	if err != nil {
		return nil, fmt.Errorf("log in to Keystone: %w", err)
	}
	return b, nil
}

// Login gets a token for a person at an address. Wrong passwords are counted as those of http_basic. The error is a
// *Refusal.
func (k *Keystone) Login(ctx context.Context, from netip.Addr, l Login) (token string, err error) {
	for _, text := range []string{l.User, l.Password, l.UserDomain, l.Project, l.ProjectDomain} {
		if len(text) > maxLogin {
			return "", malformed(fmt.Sprintf("A name or a password is longer than %d bytes.", maxLogin))
		}
	}
	body, err := l.request()
	if err != nil {
		return "", err
	}
	status := 0
	var failed error
	_, err = k.guesses.check(ctx, guesser{limit.Owner(from), k.mac(l.UserDomain, l.User)}, func() (ok, learned bool) {
		var header http.Header
		status, _, header, failed = k.send(ctx, http.MethodPost, "/auth/tokens?nocatalog", nil, body)
		token = header.Get("X-Subject-Token")
		return status == http.StatusCreated, failed == nil && status < http.StatusInternalServerError
	})
	switch {
	case err != nil:
		return "", err
	case failed != nil:
		return "", k.unasked(failed)
	case status == http.StatusCreated && tokenText(token) && token != "" && len(token) <= maxToken:
		return token, nil
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound:
		k.log.Info("a login was refused", "user", l.User, "from", from)
		return "", &Refusal{Status: http.StatusUnauthorized, Challenge: k.unauthorized().Challenge,
			Message: "User, password, domain or project is wrong, or the user has no role there."}
	case status == http.StatusBadRequest:
		return "", malformed("Keystone does not understand this: check user, domain and project.")
	}
	return "", k.unasked(fmt.Errorf("log in for a user: Keystone at %s answered %d", k.base, status))
}

// unasked is the refusal while Keystone can't be asked.
func (k *Keystone) unasked(err error) error {
	k.log.Error("Keystone could not be asked for a token of a user", "err", err)
	return &Refusal{Status: http.StatusServiceUnavailable,
		Message: "Keystone, which knows who you are, can not be asked now: try again in a moment."}
}

// Logout revokes a token that Login got. It is no more than tried: the token ends by itself.
func (k *Keystone) Logout(ctx context.Context, token string) {
	id := sha256.Sum256([]byte(token))
	k.mu.Lock()
	delete(k.tokens, id)
	k.mu.Unlock()
	status, _, _, err := k.send(ctx, http.MethodDelete, "/auth/tokens",
		map[string]string{"X-Auth-Token": token, "X-Subject-Token": token}, nil)
	if err != nil || status >= http.StatusInternalServerError {
		k.log.Warn("a token could not be revoked at its user's sign-out; it ends by itself", "status", status, "err", err)
	}
}

// mac names a user in what is remembered of wrong passwords.
func (k *Keystone) mac(domain, user string) (sum [sha256.Size]byte) {
	mac := hmac.New(sha256.New, k.key[:])
	fmt.Fprintf(mac, "%d:%s%s", len(domain), cmp.Or(domain, "default"), user)
	mac.Sum(sum[:0])
	return sum
}
