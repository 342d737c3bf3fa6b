// Package discover finds controllers with a Redfish service among addresses, and asks them which machines they have.
//
// It does so in two steps, because an address may be anybody's. Find asks for the service root, which needs no
// credentials, and notes the certificate. Machines logs in, and only if the certificate is still the one that was seen
// and accepted: user name and password go nowhere else.
package discover

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of what is asked of a controller.
const (
	atOnce       = 256 // controllers
	dialTime     = 3 * time.Second
	answerTime   = 15 * time.Second
	largest      = 256 << 10 // bytes of an answer
	mostMachines = 64        // of a controller
	longest      = 128       // characters of a text that is shown
)

const root = "/redfish/v1/"

// Controller is an address with a Redfish service, or the reason why it counts as none.
type Controller struct {
	Address     string `json:"address"` // HOST or HOST:PORT
	Fingerprint string `json:"fingerprint,omitempty"`
	Vendor      string `json:"vendor,omitempty"`
	Product     string `json:"product,omitempty"`
	Version     string `json:"version,omitempty"` // of Redfish
	Fault       string `json:"fault,omitempty"`

	// PEM is the certificate; Named is nil if it is made for the address.
	PEM   string `json:"-"`
	Named error  `json:"-"`
	// absent: nothing listens there.
	absent bool
}

// Absent reports whether there is no service of any kind at the address.
func (c *Controller) Absent() bool { return c.absent }

// Machine is one behind a controller.
type Machine struct {
	// SystemID is its path; "" if it is the only one.
	SystemID                          string
	UUID, Serial, Manufacturer, Model string
}

// Find asks all targets for their service root, some of them at once, and returns an answer for each, in order. A
// target that says which certificate it has, and has another, has a Fault.
func Find(ctx context.Context, targets []Target) []Controller {
	found := make([]Controller, len(targets))
	var running sync.WaitGroup
	slot := make(chan struct{}, atOnce)
	for i, t := range targets {
		select {
		case slot <- struct{}{}:
		case <-ctx.Done():
			found[i] = Controller{Address: t.Address, Fault: context.Cause(ctx).Error()}
			continue
		}
		running.Go(func() {
			defer func() { <-slot }()
			found[i] = find(ctx, t)
		})
	}
	running.Wait()
	return found
}

func find(ctx context.Context, t Target) Controller {
	c := Controller{Address: t.Address}
	s := &session{address: t.Address, want: t.Fingerprint, seen: func(cert *x509.Certificate) {
		c.Fingerprint = fingerprint(cert)
		c.PEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
		roots := x509.NewCertPool()
		roots.AddCert(cert)
		_, c.Named = cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: (&url.URL{Host: t.Address}).Hostname()})
	}}
	defer s.close()
	var r struct {
		RedfishVersion, Vendor, Product string
		Systems                         link
		Oem                             map[string]json.RawMessage
	}
	err := s.get(ctx, root, &r)
	var refused *net.OpError
	switch {
	case errors.As(err, &refused) && refused.Op == "dial", errors.Is(err, context.DeadlineExceeded):
		c.absent, c.Fault = true, "nothing answers"
	case err != nil:
		c.Fault = err.Error()
	case r.Systems.ID == "":
		c.Fault = "the answer is not that of a Redfish service"
	}
	if c.Fault != "" {
		return c
	}
	c.Vendor = short(cmp.Or(r.Vendor, strings.Join(slices.Sorted(maps.Keys(r.Oem)), ", ")))
	c.Product, c.Version = short(r.Product), short(r.RedfishVersion)
	return c
}

// Account is a user of controllers.
type Account struct{ User, Password string }

// Machines logs in to a controller that was found, and returns the machines that it has.
func Machines(ctx context.Context, c *Controller, a Account) ([]Machine, error) {
	if c.Fingerprint == "" {
		return nil, errors.New("it was not found, so it is not asked")
	}
	s := &session{address: c.Address, want: c.Fingerprint, account: &a}
	defer s.close()
	var list struct {
		Members []link
		Next    string `json:"Members@odata.nextLink"`
	}
	if err := s.get(ctx, root+"Systems", &list); err != nil {
		return nil, err
	}
	if len(list.Members) > mostMachines || list.Next != "" {
		return nil, fmt.Errorf("it has more than %d machines", min(mostMachines, max(len(list.Members), 1)))
	}
	var all []Machine
	for _, member := range list.Members {
		var sys struct {
			UUID, SerialNumber, SKU, Manufacturer, Model string
		}
		if err := s.get(ctx, member.ID, &sys); err != nil {
			return nil, err
		}
		m := Machine{UUID: strings.ToLower(short(sys.UUID)), Serial: short(cmp.Or(sys.SerialNumber, sys.SKU)),
			Manufacturer: short(sys.Manufacturer), Model: short(sys.Model)}
		if len(list.Members) > 1 {
			m.SystemID = member.ID
		}
		all = append(all, m)
	}
	return all, nil
}

type link struct {
	ID string `json:"@odata.id"`
}

// session is the connection to one controller.
type session struct {
	address string
	want    string // the certificate's fingerprint; "": any
	seen    func(*x509.Certificate)
	account *Account // nil: without credentials
	client  *http.Client
}

var errCertificate = errors.New("its certificate is another than the one that was accepted: find out why, and if the new one is right, discover again")

// get reads a resource.
func (s *session) get(ctx context.Context, path string, to any) error {
	status, b, err := s.ask(ctx, path)
	switch {
	case err != nil:
		return err
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return errors.New("wrong user name or password, or an account without the right to read")
	case status != http.StatusOK:
		return fmt.Errorf("it answers %d to a request for %s", status, path)
	}
	if err := json.Unmarshal(bytes.TrimSpace(b), to); err != nil {
		return errors.New("the answer is not that of a Redfish service")
	}
	return nil
}

// Reader reads what a controller has. It is for one goroutine.
type Reader struct{ s session }

// Open returns a reader of a controller that was found. Without an account only what the controller shows to anyone is
// read. Credentials go to the certificate that was seen alone.
func (c *Controller) Open(a *Account) (*Reader, error) {
	if c.Fingerprint == "" {
		return nil, errors.New("it was not found, so it is not asked")
	}
	return &Reader{session{address: c.Address, want: c.Fingerprint, account: a}}, nil
}

// Get asks for a path below /redfish/. It returns the status and the body, of 256 KiB at most.
func (r *Reader) Get(ctx context.Context, path string) (status int, body []byte, err error) {
	return r.s.ask(ctx, path)
}

// Close ends the connection.
func (r *Reader) Close() { r.s.close() }

// ask makes one request.
func (s *session) ask(ctx context.Context, path string) (status int, body []byte, err error) {
	if s.client == nil {
		s.client = &http.Client{Timeout: answerTime,
			// A redirect would lead credentials to an address that was not accepted.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{MaxIdleConnsPerHost: 1,
				DialContext:            (&net.Dialer{Timeout: dialTime}).DialContext,
				MaxResponseHeaderBytes: 64 << 10,
				TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true,
					VerifyConnection: func(st tls.ConnectionState) error {
						cert := st.PeerCertificates[0]
						if s.seen != nil {
							s.seen(cert)
						}
						if s.want != "" && s.want != fingerprint(cert) {
							return errCertificate
						}
						return nil
					}}}}
	}
	if !strings.HasPrefix(path, "/redfish/") {
		return 0, nil, errors.New("a link of the service leads elsewhere")
	}
	u := url.URL{Scheme: "https", Host: s.address, Path: path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("OData-Version", "4.0")
	if s.account != nil {
		req.SetBasicAuth(s.account.User, s.account.Password)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the address, which is beside it
		}
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, largest+1))
	if err != nil {
		return 0, nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(b) > largest {
		return 0, nil, fmt.Errorf("its answer is larger than %d KiB", largest>>10)
	}
	return resp.StatusCode, b, nil
}

func (s *session) close() {
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
}

// fingerprint is the SHA-256 of a certificate, in hexadecimal digits.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// short takes a text of a controller, which may be of any length.
func short(s string) string {
	r := []rune(strings.TrimSpace(s))
	return string(r[:min(len(r), longest)])
}
