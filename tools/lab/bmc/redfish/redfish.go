// Package redfish is the Redfish service of a virtual controller (package bmc): the same machine, power, boot choice
// and faults as over IPMI.
//
// It has the service root, systems with their parts, managers, chassis with readings and lamps, logs, network cards,
// BIOS settings, Secure Boot, accounts and sessions, with ETags, and errors of the registry Base; https with a
// certificate of its own, or plain HTTP. A Personality is the shape of the tree and the behaviour of some vendor's
// controller, as data: clients are tested against what controllers do, which is not always what the standard says. The
// vendors' identities are what such controllers report; nothing else of them is imitated.
package redfish

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
	"github.com/ingot-metal/ingot/tools/lab/bmc/media"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/bios"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/dell"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/events"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/parts"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/storage"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/tasks"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// Times and sizes of the service.
const (
	sessionIdle = 30 * time.Minute // then a session ends by itself
	settle      = time.Second      // of ConflictAfterOff
	largestBody = 1 << 20
)

// Config describes the service.
type Config struct {
	User, Password string
	Personality    Personality
	// MACs are the addresses of the machine's network cards.
	MACs []string
	// SecureBoot says that the machine has it: a setting that takes effect at the next start.
	SecureBoot bool
	// HTTPBoot says that the machine's firmware loads what HttpBootUri names.
	HTTPBoot bool
	// Plain serves HTTP without TLS.
	Plain bool
	// Media is how images of virtual media are read; user, password and certificates are set for each.
	Media media.Options
	// Elsewhere is the host that links lead to with LeadsElsewhere.
	Elsewhere string
	// POST is how long after its start the machine has made changes of its BIOS settings.
	POST time.Duration
	// Took is how long a stage of work in the background takes, Down how long a restart of the controller does.
	Took, Down time.Duration
	// Done is called when a request was carried out and its answer is not sent yet; nil does nothing.
	Done func(method, path string)
	Log  *slog.Logger
}

// Service is a running service.
type Service struct {
	cfg    Config
	bmc    *bmc.BMC
	log    *slog.Logger
	ln     net.Listener
	web    *http.Server
	served sync.WaitGroup
	cert   []byte // PEM
	drives *vmedia.Shelf
	parts  *parts.Machine
	bios   *bios.Machine
	tasks  *tasks.Service
	events *events.Service
	dell   *dell.Controller // nil at others
	raid   *storage.Machine

	firmware *update.Machine

	busy, most atomic.Int32 // requests under way, and the most there were
	total      atomic.Int32
	seen       sync.Map // net.Conn on which a request came

	inPOST    atomic.Int32 // changes that are still declined
	mu        sync.Mutex
	sessions  map[string]*session // by token
	issued    int
	secure    secureBoot
	clock     clock
	starts    bool // the machine was on when looked at last
	downUntil time.Time
	restarts  int
	offSince  time.Time
}

type session struct {
	id   string
	used time.Time
	left int // requests until it is dropped
}

// Start serves a controller's machine on ln until Close. It takes ln over.
func Start(ln net.Listener, b *bmc.BMC, cfg Config) (*Service, error) {
	if cfg.Personality.Name == "" {
		cfg.Personality, _ = ByName("")
	}
	cfg.Personality.Sessions = cmp.Or(cfg.Personality.Sessions, 16)
	s := &Service{cfg: cfg, bmc: b, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), ln: ln,
		sessions: map[string]*session{}, secure: secureBoot{keys: defaultKeys, keysNow: defaultKeys}}
	s.inPOST.Store(inPOST)
	s.parts = parts.New(cfg.Personality.Name, s.systemPath(), s.managerPath(), chassisPath)
	s.wireMedia()
	s.wireTasks()
	s.wireFirmware()
	s.bios = bios.New(cfg.Personality.Name, s.systemPath(), bios.Options{POST: cfg.POST, Starts: b.Starts,
		Forgets: cfg.Personality.Has(ForgetsBIOS), NoRegistry: cfg.Personality.Has(NoBIOSRegistry)})
	s.events = events.New(func(b string) bool { return cfg.Personality.Has(Behaviour(b)) }, s.log)
	s.wireRAID()
	if cfg.Personality.Vendor == "Dell" {
		s.dell = dell.New(dell.Options{Has: func(b string) bool { return s.cfg.Personality.Has(Behaviour(b)) },
			Manager: s.managerPath(), Tasks: s.tasks, Down: cfg.Down, Restart: s.Restart, Boot: s.bootVirtualDisc})
	}
	s.web = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(s.log.Handler(),
		slog.LevelDebug), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connection{}, c)
	}, ConnState: func(c net.Conn, to http.ConnState) {
		if to == http.StateClosed {
			s.seen.Delete(c)
		}
	}}
	if !cfg.Plain {
		cert, err := s.certificate()
		if err != nil {
			return nil, fmt.Errorf("make the controller's certificate: %w", err)
		}
		s.web.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	s.served.Go(func() {
		serve := func() error { return s.web.ServeTLS(ln, "", "") }
		if cfg.Plain {
			serve = func() error { return s.web.Serve(ln) }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("Redfish service stopped", "err", err)
		}
	})
	return s, nil
}

// connection is the key of a request's connection in its context.
type connection struct{}

// certificate makes a key, and a certificate signed with it.
func (s *Service) certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:   pkix.Name{CommonName: "Ingot lab controller"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{"localhost"}}
	if a, ok := s.ln.Addr().(*net.TCPAddr); ok {
		template.IPAddresses = []net.IP{a.IP}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	s.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// CertificatePEM is the certificate of the service, which signs itself; nil without TLS.
func (s *Service) CertificatePEM() []byte { return s.cert }

// URL is the address of the service.
func (s *Service) URL() string {
	if s.cfg.Plain {
		return "http://" + s.ln.Addr().String()
	}
	return "https://" + s.ln.Addr().String()
}

// BIOS is the settings of the machine's firmware.
func (s *Service) BIOS() *bios.Machine { return s.bios }

// Dell returns the parts that only Dell's controllers have; nil at others.
func (s *Service) Dell() *dell.Controller { return s.dell }

// RAID is the machine's RAID controller.
func (s *Service) RAID() *storage.Machine { return s.raid }

// wireRAID makes the RAID controller, on the drives that the machine's parts have for it.
func (s *Service) wireRAID() {
	path, drives, bytes := s.parts.RAID()
	opt := storage.Options{Personality: s.cfg.Personality.Name, Path: path, Tasks: s.tasks, On: s.bmc.On,
		Has: func(b string) bool { return s.cfg.Personality.Has(Behaviour(b)) }}
	for _, d := range drives {
		opt.Drives = append(opt.Drives, storage.Drive{Path: d, Bytes: bytes})
	}
	s.raid = storage.New(opt)
}

// bootVirtualDisc chooses the drive of the controller's media for the next start, or for all.
func (s *Service) bootVirtualDisc(persistent bool) {
	now, _ := s.bmc.Boot()
	s.bmc.SetBoot(bmc.Boot{Device: bmc.USBCD, UEFI: now.UEFI}, persistent)
}

// Parts is the parts of the machine.
func (s *Service) Parts() *parts.Machine { return s.parts }

// Sessions counts those that are open.
func (s *Service) Sessions() int { return len(s.sessionIDs()) }

// DropSessions forgets all sessions, as a restart of the controller does.
func (s *Service) DropSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
}

// MostAtOnce is how many requests were under way at one time.
func (s *Service) MostAtOnce() int { return int(s.most.Load()) }

// Requests counts all requests so far.
func (s *Service) Requests() int { return int(s.total.Load()) }

// Close stops the service. The machine stays as it is.
func (s *Service) Close() error {
	err := s.web.Close()
	s.served.Wait()
	s.tasks.Close()
	s.drives.Close()
	s.events.Close()
	return err
}

// sessionIDs are those of the open sessions, by token.
func (s *Service) sessionIDs() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for token, one := range s.sessions {
		if time.Since(one.used) > sessionIdle {
			delete(s.sessions, token)
			continue
		}
		out[token] = one.id
	}
	return out
}

// ServeHTTP answers a request.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.total.Add(1)
	now := s.busy.Add(1)
	defer s.busy.Add(-1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	f := s.bmc.Faults()
	if s.down() {
		panic(http.ErrAbortHandler)
	}
	if f.Silent {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	p := s.cfg.Personality
	if _, again := s.seen.LoadOrStore(r.Context().Value(connection{}), true); again && p.Has(ClosesAfterAnswer) {
		panic(http.ErrAbortHandler)
	}
	if late := p.Latency + f.Delay; late > 0 {
		t := time.NewTimer(late)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("OData-Version", "4.0")
	w.Header().Set("Cache-Control", "no-cache, no-store")
	s.log.Debug("request", "method", r.Method, "path", r.URL.Path)
	if p.Has(HTML) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!DOCTYPE html><html><body>Please log in</body></html>") // as in write
		return
	}
	s.turnOver()
	if problem := s.answer(w, r); problem != nil {
		problem.Write(w)
	} else if s.cfg.Done != nil {
		s.cfg.Done(r.Method, r.URL.Path)
	}
	if r.Method == http.MethodPost {
		s.turnOver()
	}
}

// turnOver notes that the machine was started or went off since it was looked at last.
func (s *Service) turnOver() {
	on := s.bmc.On()
	s.mu.Lock()
	defer s.mu.Unlock()
	if on && !s.starts {
		s.secure.onNow, s.secure.keysNow = s.secure.on, s.secure.keys
	}
	if !on && s.starts {
		s.offSince = time.Now()
	}
	if on != s.starts {
		s.events.Notify(events.Event{Kind: "Alert", Severity: "OK", Origin: s.systemPath(),
			Message: "The machine is " + map[bool]string{false: "off.", true: "on."}[on]})
	}
	s.starts = on
}

func (s *Service) answer(w http.ResponseWriter, r *http.Request) *odata.Problem {
	path := strings.TrimSuffix(r.URL.Path, "/")
	sessions := odata.Root + "/SessionService/Sessions"
	free := open(path) || path == sessions && r.Method == http.MethodPost
	if !free && !s.authenticated(r) {
		return odata.Fault("NoValidSession")
	}
	p := s.cfg.Personality
	if p.Has(Endless) && strings.HasPrefix(path, odata.Root+"/Systems/") {
		w.Header().Set("Content-Type", "application/json")
		for junk := []byte(strings.Repeat(" ", 64<<10)); ; {
			if _, err := w.Write(junk); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	}
	if p.Has(DeepAnswers) && !free {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.Repeat(`{"a":`, 100_000)) // as in write
		return nil
	}
	body, empty := object{}, false
	if r.Method == http.MethodPost || r.Method == http.MethodPatch || r.Method == http.MethodDelete {
		b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestBody))
		if empty = len(b) == 0; err != nil || !empty && json.Unmarshal(b, &body) != nil {
			return odata.Fault("MalformedJSON")
		}
	}
	if problem := s.dell.Unready(r.Method, path); problem != nil {
		return problem
	}
	if done, problem := s.answerMedia(w, r, path, body, empty); done {
		return problem
	}
	if known, location, problem := s.events.Do(r.Method, path, body); known {
		return s.changed(w, location, problem)
	}
	if r.Method == http.MethodPost {
		if done, problem := s.dell.Answer(w, path, body); done {
			return problem
		}
	}
	if done, problem := s.answerSecureBoot(w, r.Method, path, body); done {
		return problem
	}
	if done, problem := s.raid.Do(w, r.Method, path, body); done {
		return problem
	}
	system := s.systemPath()
	switch {
	case r.Method == http.MethodPost && path == sessions && !p.Has(NoSessionService):
		return s.logIn(w, r, body)
	case r.Method == http.MethodPost && path == system+"/Actions/ComputerSystem.Reset":
		return s.reset(w, r, body)
	case r.Method == http.MethodPost && path == update.Target && s.everything(odata.Root+"/UpdateService") != nil:
		return s.simpleUpdate(w, body)
	case r.Method == http.MethodPost && s.bios.IsReset(path):
		if problem := s.queued(func() *odata.Problem { return s.bios.Reset(body) }); problem != nil {
			return problem
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if r.Method == http.MethodGet && s.tasks.Monitor(w, path) {
		return nil
	}
	if path == metadataPath && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return metadata(w)
	}
	o := s.everything(path)
	if o != nil {
		s.describe(w, path, o)
	}
	switch {
	case o == nil:
		return odata.Fault("ResourceMissingAtURI", r.URL.Path)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		if p.Has(NoIdentity) && s.bios.IsRegistry(path) && r.Header.Get("Accept-Encoding") == "identity" {
			return &odata.Problem{ID: "GeneralError", Status: http.StatusNotAcceptable}
		}
		tag := s.etag(o)
		if !open(path) {
			o["@odata.etag"] = tag
		}
		w.Header().Set("ETag", tag)
		odata.Write(w, http.StatusOK, o)
		return nil
	case r.Method == http.MethodDelete && strings.HasPrefix(path, sessions+"/"):
		s.mu.Lock()
		for token, one := range s.sessions {
			if sessions+"/"+one.id == path {
				delete(s.sessions, token)
			}
		}
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
		return nil
	case r.Method == http.MethodPatch:
		return s.patch(w, r, path, o, body)
	}
	return odata.Fault("OperationNotAllowed")
}

// changed answers a change that was carried out, with the resource that it made, if any.
func (s *Service) changed(w http.ResponseWriter, location string, problem *odata.Problem) *odata.Problem {
	switch {
	case problem != nil:
		return problem
	case location != "":
		w.Header().Set("Location", location)
		odata.Write(w, http.StatusCreated, s.everything(location))
	default:
		w.WriteHeader(http.StatusNoContent)
	}
	return nil
}

// patch changes a resource.
func (s *Service) patch(w http.ResponseWriter, r *http.Request, path string, o, body object) *odata.Problem {
	if s.cfg.Personality.Has(InPOST) && s.inPOST.Add(-1) >= 0 {
		return &odata.Problem{ID: "UnableToModifyDuringSystemPOST", Registry: "iLO.2.24."}
	}
	change := s.change(path, o)
	if change == nil {
		return odata.Fault("OperationNotAllowed")
	}
	if s.bmc.Faults().Busy {
		return odata.Fault("ServiceTemporarilyUnavailable", "1")
	}
	if problem := s.matched(o, r.Header); problem != nil {
		return problem
	}
	if problem := change(path, body); problem != nil {
		return problem
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Service) patchSystem(path string, body object) *odata.Problem {
	if s.parts.IsLamp(body) {
		return s.parts.SetLamp(path, body)
	}
	if s.cfg.Personality.Has(FutureBoot) && path == s.systemPath() {
		return odata.Fault("PropertyNotWritable", "Boot")
	}
	for key, v := range body {
		change, isObject := v.(object)
		if key != "Boot" || !isObject {
			return odata.Fault("PropertyUnknown", key)
		}
		if problem := s.patchBoot(change); problem != nil {
			return problem
		}
	}
	return nil
}

func (s *Service) patchSecureBoot(_ string, body object) *odata.Problem {
	for key, v := range body {
		on, isBool := v.(bool)
		switch {
		case key != "SecureBootEnable":
			return odata.Fault("PropertyUnknown", key)
		case !isBool:
			return odata.Fault("PropertyValueTypeError", fmt.Sprint(v), key)
		}
		if problem := s.queued(func() *odata.Problem {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.secure.on = on
			return nil
		}); problem != nil {
			return problem
		}
	}
	return nil
}

// authenticated reports whether a request has a session's token, or name and password.
func (s *Service) authenticated(r *http.Request) bool {
	if token := r.Header.Get("X-Auth-Token"); token != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		one, ok := s.sessions[token]
		if !ok || time.Since(one.used) > sessionIdle {
			return false
		}
		if one.left--; one.left == 0 && s.cfg.Personality.Has(DropsSessions) {
			delete(s.sessions, token)
		}
		one.used = time.Now()
		return true
	}
	user, password, ok := r.BasicAuth()
	return ok && s.knows(user, password)
}

func (s *Service) knows(user, password string) bool {
	return subtle.ConstantTimeCompare([]byte(user), []byte(s.cfg.User)) == 1 &&
		subtle.ConstantTimeCompare([]byte(password), []byte(s.Password())) == 1
}

func (s *Service) logIn(w http.ResponseWriter, r *http.Request, body object) *odata.Problem {
	user, _ := body["UserName"].(string)
	password, _ := body["Password"].(string)
	if !s.knows(user, password) {
		why := "invalid credentials"
		if s.cfg.Personality.Has(RepeatsPasswords) {
			why = "user " + user + " has not the password " + password
		}
		return odata.Fault("ResourceAtUriUnauthorized", r.URL.Path, why)
	}
	if s.Sessions() >= s.cfg.Personality.Sessions {
		return odata.Fault("SessionLimitExceeded")
	}
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	token := hex.EncodeToString(b)
	s.mu.Lock()
	s.issued++
	id := fmt.Sprint(s.issued)
	s.sessions[token] = &session{id: id, used: time.Now(), left: 3}
	s.mu.Unlock()
	path := odata.Root + "/SessionService/Sessions/" + id
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", path)
	odata.Write(w, http.StatusCreated, s.resource(path))
	return nil
}

// actions are the power actions of Redfish in the controller's own words.
var actions = map[string]bmc.Action{"On": bmc.TurnOn, "ForceOn": bmc.TurnOn, "ForceOff": bmc.TurnOff,
	"GracefulShutdown": bmc.Press, "ForceRestart": bmc.Reset, "PowerCycle": bmc.Cycle, "Nmi": bmc.NMI,
	"GracefulRestart": bmc.Reset, "PushPowerButton": bmc.Press}

func (s *Service) reset(w http.ResponseWriter, r *http.Request, body object) *odata.Problem {
	p := s.cfg.Personality
	typ, ok := body["ResetType"].(string)
	if !ok {
		return odata.Fault("ActionParameterMissing", "ComputerSystem.Reset", "ResetType")
	}
	action, known := actions[typ]
	if !known || len(p.Resets) > 0 && !slices.Contains(p.Resets, typ) {
		return odata.Fault("ActionParameterValueNotInList", typ, "ResetType", "ComputerSystem.Reset")
	}
	if r.Header.Get("If-Match") != "" && p.Has(NoIfMatch) {
		return odata.Fault("PreconditionFailed")
	}
	if p.Has(RestartHangs) && (action == bmc.Reset || action == bmc.Cycle) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	on := s.bmc.On()
	if typ == "PushPowerButton" && !on {
		action = bmc.TurnOn
	}
	s.mu.Lock()
	early := time.Since(s.offSince) < settle
	s.mu.Unlock()
	switch {
	case p.Has(SameStateConflict) && (typ == "On" && on || typ == "ForceOff" && !on):
		return odata.Fault("GeneralError")
	case p.Has(ConflictAfterOff) && typ == "On" && early:
		return odata.Fault("ActionParameterValueConflict", "ResetType", typ)
	}
	switch err := s.bmc.Act(action); {
	case errors.Is(err, bmc.ErrBusy):
		return odata.Fault("ServiceTemporarilyUnavailable", "1")
	case errors.Is(err, bmc.ErrOff):
		return odata.Fault("ActionParameterValueConflict", "ResetType", typ)
	case errors.Is(err, bmc.ErrLacking):
		return odata.Fault("ActionParameterNotSupported", "ResetType", "ComputerSystem.Reset")
	case err != nil:
		return odata.Fault("InternalError")
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
