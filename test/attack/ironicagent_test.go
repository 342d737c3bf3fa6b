package attack

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/ipa/command"
)

const agentToken = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

// commandAPI starts what an agent under Ironic listens with, and counts the commands that get through.
func commandAPI(t *testing.T) (at string, ran *atomic.Int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ran = new(atomic.Int64)
	ctx, cancel := context.WithCancel(context.Background())
	s := command.New(ctx, command.Options{Token: agentToken, Commands: command.Table{"standby": {"sync": {
		Run: func(context.Context, command.Params) (any, error) {
			ran.Add(1)
			return nil, nil
		}}}}})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(ctx, ln, &tls.Config{MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return ln.Addr().String(), ran
}

var anyAgent = &tls.Config{InsecureSkipVerify: true} //nolint:gosec a made-up certificate

// TestStrangersToCommandsOfAnAgent: without the token no command of an agent under Ironic runs, wherever a stranger
// puts its guesses, and the body of its request is not even read.
func TestStrangersToCommandsOfAnAgent(t *testing.T) {
	at, ran := commandAPI(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: anyAgent, DisableKeepAlives: true}}
	const body = `{"name":"standby.sync","params":{}}`
	for _, q := range []string{"", "?agent_token=", "?agent_token=null", "?agent_token=******",
		"?agent_token=" + agentToken[:42], "?agent_token=" + agentToken + "x", "?token=" + agentToken,
		"?agent_token=wrong&agent_token=" + agentToken, "?AGENT_TOKEN=" + agentToken, "#agent_token=" + agentToken} {
		for _, path := range []string{"/v1/commands/", "/commands/", "/v1//commands/", "//v1/commands/",
			"/v1/commands/."} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+at+path+q,
				strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Auth-Token", agentToken)
			req.Header.Set("Authorization", "Bearer "+agentToken)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode < 400 {
				t.Errorf("POST %s%s: %d", path, q, resp.StatusCode)
			}
		}
	}
	if n := ran.Load(); n != 0 {
		t.Fatalf("%d commands ran without the token", n)
	}
	// A body without end: the answer comes before it, and the connection closes.
	c, err := tls.Dial("tcp", at, anyAgent)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST /v1/commands/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1099511627776\r\n\r\n{")
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !resp.Close {
		t.Errorf("a body without end: %v, %v", resp, err)
	}
	// With the token, more than the bound is refused too, and what is below is taken.
	big := `{"name":"standby.sync","params":{"x":"` + strings.Repeat("a", command.MaxBody) + `"}}`
	for b, want := range map[string]int{big: http.StatusRequestEntityTooLarge, body: http.StatusOK} {
		resp, err := client.Post("https://"+at+"/v1/commands/?agent_token="+agentToken, "application/json",
			strings.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("a body of %d bytes: %d, want %d", len(b), resp.StatusCode, want)
		}
	}
}

// TestFloodOfAnAgentUnderIronic: connections that say nothing, or too slowly, are closed, and from one address there
// are only a few; the conductor is answered meanwhile.
func TestFloodOfAnAgentUnderIronic(t *testing.T) {
	t.Parallel()
	at, ran := commandAPI(t)
	var kept []net.Conn
	for range 40 {
		c, err := net.DialTimeout("tcp", at, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		kept = append(kept, c)
	}
	closed := func(c net.Conn, within time.Duration) bool {
		_ = c.SetReadDeadline(time.Now().Add(within))
		_, err := c.Read(make([]byte, 1))
		var timeout net.Error
		return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
	}
	if !closed(kept[39], 5*time.Second) {
		t.Error("the fortieth connection from one address is not closed")
	}
	// The conductor's address is another one.
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 7)}}
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext, TLSClientConfig: anyAgent}}
	resp, err := client.Post("https://"+at+"/v1/commands/?agent_token="+agentToken, "application/json",
		strings.NewReader(`{"name":"standby.sync","params":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || ran.Load() != 1 {
		t.Errorf("the conductor meanwhile: %d", resp.StatusCode)
	}
	c, err := tls.DialWithDialer(d, "tcp", at, anyAgent)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /v1/status HTTP/1.1\r\nHost: a\r\nX-Slow: ")
	if !closed(kept[0], 15*time.Second) {
		t.Error("a connection that says nothing is kept open")
	}
	if !closed(c, 15*time.Second) {
		t.Error("a request that is sent for ever is kept open")
	}
}
