package glance

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Where Glance keeps its images in Swift, agents are led to Swift itself, by temporary URLs: signed addresses of one
// object that end soon, as in https://docs.openstack.org/swift/2.30.0/api/temporary_url_middleware.html. An agent that
// goes on with a broken transfer asks the conductor again, and is led to a new one.

// swiftLife is how long a temporary URL is good; what began by then goes on.
const swiftLife = 10 * time.Minute

// swiftFresh is how long this server uses what it knows of the cluster and the account.
const swiftFresh = 10 * time.Minute

// swift is the container with Glance's images.
type swift struct {
	container string // URL without a slash at its end
	root      string // of the cluster
	path      string // of the container
	account   string // URL
	keyFile   string

	mu     sync.Mutex
	key    []byte
	digest func() hash.Hash
	until  time.Time // when both are asked for again
}

// containerPath is an account and a container, with names that need no quoting.
var containerPath = regexp.MustCompile(`^/v1/[A-Za-z0-9_.~:-]+/[A-Za-z0-9_.~:-]+$`)

// newSwift checks the address of the container.
func newSwift(container, keyFile string) (*swift, error) {
	u, err := url.Parse(strings.TrimSuffix(container, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" ||
		!containerPath.MatchString(u.Path) {
		return nil, fmt.Errorf("the container %q is not an address such as https://swift.example/v1/AUTH_4ac0.../glance",
			container)
	}
	u.User, u.Fragment = nil, ""
	w := &swift{container: u.String(), path: u.Path, keyFile: keyFile}
	w.account = w.container[:strings.LastIndexByte(w.container, '/')]
	w.root = u.Scheme + "://" + u.Host
	return w, nil
}

// temporary returns an address at which a machine gets an image from Swift.
func (s *Service) temporary(ctx context.Context, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	for again := false; ; again = true {
		key, digest, err := s.signing(ctx, again)
		if err != nil {
			return "", err
		}
		at := s.swift.sign(id, key, digest, time.Now().Add(swiftLife))
		status, err := s.probe(ctx, at)
		switch {
		case err != nil:
			return "", err
		case status == http.StatusOK:
			return at, nil
		case status == http.StatusNotFound:
			return "", fmt.Errorf("the container in glance.swift_container has no object %s", id)
		case status == http.StatusUnauthorized && !again: // the account's key was changed
		case status == http.StatusUnauthorized:
			return "", errors.New("temporary URLs that are signed with this key are refused by Swift: see glance.swift_key_file")
		default:
			return "", fmt.Errorf("answer %d of Swift", status)
		}
	}
}

// sign makes a temporary URL for GET, which is good for HEAD, too.
func (w *swift) sign(id string, key []byte, digest func() hash.Hash, end time.Time) string {
	expires := strconv.FormatInt(end.Unix(), 10)
	h := hmac.New(digest, key)
	h.Write([]byte("GET\n" + expires + "\n" + w.path + "/" + id))
	return w.container + "/" + id + "?temp_url_sig=" + hex.EncodeToString(h.Sum(nil)) + "&temp_url_expires=" + expires
}

// signing returns the key, and the best digest that the cluster takes.
func (s *Service) signing(ctx context.Context, anew bool) ([]byte, func() hash.Hash, error) {
	w := s.swift
	w.mu.Lock()
	defer w.mu.Unlock()
	if !anew && time.Now().Before(w.until) {
		return w.key, w.digest, nil
	}
	digest, err := s.swiftDigest(ctx)
	if err != nil {
		return nil, nil, err
	}
	key, err := s.swiftKey(ctx)
	if err != nil {
		return nil, nil, err
	}
	w.key, w.digest, w.until = key, digest, time.Now().Add(swiftFresh)
	return key, digest, nil
}

// swiftKey is the key in the configured file, or the account's own.
func (s *Service) swiftKey(ctx context.Context) ([]byte, error) {
	if s.swift.keyFile != "" {
		b, err := keyfile.Read(s.swift.keyFile)
		if err == nil && len(strings.TrimSpace(string(b))) == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			return nil, fmt.Errorf("read the key in glance.swift_key_file: %w", err)
		}
		return []byte(strings.TrimSpace(string(b))), nil
	}
	resp, err := s.askAt(ctx, http.MethodHead, s.swift.account, nil)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("answer %d of Swift to a question for the account's key: set glance.swift_key_file",
			resp.StatusCode)
	}
	for _, name := range []string{"X-Account-Meta-Temp-Url-Key", "X-Account-Meta-Temp-Url-Key-2"} {
		if v := resp.Header.Get(name); v != "" {
			return []byte(v), nil
		}
	}
	return nil, errors.New("the account in Swift has no key for temporary URLs, or this server's user may not read it: set glance.swift_key_file")
}

// swiftDigest reads from the cluster's description what it takes.
func (s *Service) swiftDigest(ctx context.Context) (func() hash.Hash, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.swift.root+"/info", nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask Swift what it offers: %w", err)
	}
	defer resp.Body.Close()
	var info struct {
		TempURL *struct {
			Digests []string `json:"allowed_digests"`
		} `json:"tempurl"`
	}
	if resp.StatusCode == http.StatusOK {
		err = json.NewDecoder(io.LimitReader(resp.Body, limit.KeystoneBody)).Decode(&info)
	} else {
		err = fmt.Errorf("answer %d", resp.StatusCode)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask Swift what it offers: %w", err)
	case info.TempURL == nil:
		return nil, errors.New("this Swift offers no temporary URLs: have the middleware tempurl switched on")
	case slices.Contains(info.TempURL.Digests, "sha256"):
		return sha256.New, nil
	case len(info.TempURL.Digests) == 0, slices.Contains(info.TempURL.Digests, "sha1"): // a cluster of old names none
		return sha1.New, nil
	}
	return nil, fmt.Errorf("this Swift takes temporary URLs with %s, and Ingot makes those with sha256 and sha1",
		strings.Join(info.TempURL.Digests, ", "))
}

// probe asks for an object without its bytes.
func (s *Service) probe(ctx context.Context, at string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, at, nil)
	if err != nil {
		return 0, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address, which is signed
		}
		return 0, fmt.Errorf("ask Swift for the object: %w", err)
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}
