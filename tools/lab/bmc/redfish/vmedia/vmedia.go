// Package vmedia is the virtual drives of a controller's Redfish service: what they look like, how images are put in
// and taken out, and the certificates of the servers that images come from.
//
// A personality's drives and the parameters that its controller takes or declines are data (models, and the behaviours
// that Config.Has reports). The controller reads an image itself, by ranges (package media), and gives the machine a
// bmc.Medium. The machine has drives for discs only: what is put into a stick's slot is declined.
//
// An odata.Problem names a message of the registry; package redfish puts it into the standard's shape.
package vmedia

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
	"github.com/ingot-metal/ingot/tools/lab/bmc/media"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

// Bounds of virtual media, in bytes and numbers.
const (
	longestURL = 2048
	mostCerts  = 8
)

const (
	insertAction = "VirtualMedia.InsertMedia"
	ejectAction  = "VirtualMedia.EjectMedia"
)

type object = map[string]any

func link(path string) object { return object{"@odata.id": path} }

// Config describes the drives.
type Config struct {
	Personality string
	// Has reports whether the controller behaves in some way; nil is none.
	Has func(behaviour string) bool
	// System and Manager are the paths of these resources.
	System, Manager string
	// SetMedium changes the medium of a drive of the machine; nil leaves it empty.
	SetMedium func(drive int, m bmc.Medium) error
	// Media is how images are read; user, password and certificates are set for each.
	Media media.Options
	Log   *slog.Logger
}

// Shelf is the drives of a running controller.
type Shelf struct {
	cfg   Config
	model model
	top   string // path of the collection

	failures atomic.Int32 // insertions that failed by FailsFirst
	mu       sync.Mutex
	trays    []*tray // one for each slot
}

// failsFirst is how many insertions fail by FailsFirst.
const failsFirst = 2

// New makes the drives, empty.
func New(cfg Config) *Shelf {
	s := &Shelf{cfg: cfg, model: modelOf(cfg.Personality, cfg.Has), top: cfg.System + "/VirtualMedia"}
	if s.model.under == "Managers" {
		s.top = cfg.Manager + "/VirtualMedia"
	}
	for range s.model.slots {
		s.trays = append(s.trays, &tray{certs: map[int]*x509.Certificate{}})
	}
	return s
}

// tray has the state of a slot, under Shelf.mu.
type tray struct {
	change sync.Mutex // held while a change is under way; not under Shelf.mu

	file                            *media.File // nil when empty
	image, name, user, method, kind string
	inserted                        bool // as it is shown
	verify                          bool
	certs                           map[int]*x509.Certificate
	issued                          int
}

// request has what a client wants a slot to take.
type request struct {
	image, user, password, kind, method string
	sent                                map[string]bool
	attach                              bool
}

// Image returns what the controller reads for a slot; nil when it is empty or there is none.
func (s *Shelf) Image(slot string) *media.File {
	if i := s.slot(slot); i >= 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.trays[i].file
	}
	return nil
}

func (s *Shelf) slot(id string) int {
	return slices.IndexFunc(s.model.slots, func(x slot) bool { return x.id == id })
}

// Close ends all reading of images.
func (s *Shelf) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.trays {
		if t.file != nil {
			t.file.Close()
		}
	}
}

// Link adds the link to virtual media to a system or a manager, if it has one.
func (s *Shelf) Link(o map[string]any, path string) map[string]any {
	if s.model.linked || strings.HasPrefix(s.top, path+"/") {
		o["VirtualMedia"] = link(s.top)
	}
	return o
}

// find splits a path into the number of its slot and the rest; i is -1 if it belongs to none.
func (s *Shelf) find(path string) (i int, rest string) {
	rest, ok := strings.CutPrefix(path, s.top+"/")
	id, rest, _ := strings.Cut(rest, "/")
	if !ok {
		return -1, ""
	}
	return s.slot(id), rest
}

func collection(path, typ, name string, members []string) object {
	list := []object{}
	for _, m := range members {
		list = append(list, link(path+"/"+m))
	}
	return object{"@odata.id": path, "@odata.type": "#" + typ + "." + typ, "Name": name, "Members": list,
		"Members@odata.count": len(list)}
}

// Resource returns the resource at a path; nil if there is nothing.
func (s *Shelf) Resource(path string) map[string]any {
	if path == s.top {
		var ids []string
		for _, x := range s.model.slots {
			ids = append(ids, x.id)
		}
		return collection(path, "VirtualMediaCollection", "Virtual media", ids)
	}
	i, rest := s.find(path)
	if i < 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.trays[i]
	of, cert, _ := strings.Cut(rest, "/")
	switch {
	case rest == "":
		return s.mediumLocked(path, s.model.slots[i], t)
	case of != "Certificates" || !s.model.verify:
		return nil
	case rest == of:
		var ids []string
		for _, n := range slices.Sorted(maps.Keys(t.certs)) {
			ids = append(ids, strconv.Itoa(n))
		}
		return collection(path, "CertificateCollection", "Certificates of image servers", ids)
	}
	n, err := strconv.Atoi(cert)
	c := t.certs[n]
	if err != nil || c == nil || strconv.Itoa(n) != cert {
		return nil
	}
	sum := sha256.Sum256(c.Raw)
	return object{"@odata.id": path, "@odata.type": "#Certificate.v1_8_2.Certificate", "Id": cert,
		"Name": "Certificate", "CertificateType": "PEM", "CertificateString": string(pem.EncodeToMemory(&pem.Block{
			Type: "CERTIFICATE", Bytes: c.Raw})), "Subject": object{"CommonName": c.Subject.CommonName},
		"Issuer": object{"CommonName": c.Issuer.CommonName}, "SerialNumber": c.SerialNumber.Text(16),
		"ValidNotBefore": c.NotBefore.UTC().Format(time.RFC3339),
		"ValidNotAfter":  c.NotAfter.UTC().Format(time.RFC3339),
		"Fingerprint":    hex.EncodeToString(sum[:]), "FingerprintHashAlgorithm": "TPM_ALG_SHA256"}
}

func (s *Shelf) mediumLocked(path string, x slot, t *tray) object {
	text := func(v string) any {
		if v == "" {
			return nil
		}
		return v
	}
	via := "NotConnected"
	if t.file != nil {
		via = "URI"
	}
	o := object{"@odata.id": path, "@odata.type": "#VirtualMedia.v1_6_4.VirtualMedia", "Id": x.id,
		"Name": "Virtual drive " + x.id, "MediaTypes": x.types, "Image": text(t.image), "ImageName": text(t.name),
		"Inserted": t.inserted, "WriteProtected": true, "ConnectedVia": via, "TransferMethod": text(t.method),
		"TransferProtocolType": text(t.kind), "UserName": text(t.user), "Password": nil,
		"Status": object{"State": "Enabled", "Health": "OK"}}
	if x.acts() || x.takes == declined {
		o["Actions"] = object{"#" + insertAction: object{"target": path + "/Actions/" + insertAction},
			"#" + ejectAction: object{"target": path + "/Actions/" + ejectAction}}
	}
	if s.model.verify {
		o["VerifyCertificate"] = t.verify
		o["Certificates"] = link(path + "/Certificates")
	}
	return o
}

// Patchable reports whether what is at a path has properties that can be changed.
func (s *Shelf) Patchable(path string) bool {
	i, rest := s.find(path)
	return i >= 0 && rest == "" && (s.model.verify || s.model.slots[i].patched())
}

// Creates reports whether certificates can be added by POST to a path, Deletable whether there is one at it.
func (s *Shelf) Creates(path string) bool {
	_, rest := s.find(path)
	return rest == "Certificates" && s.model.verify
}

// Deletable is described at Creates.
func (s *Shelf) Deletable(path string) bool {
	_, rest := s.find(path)
	return strings.HasPrefix(rest, "Certificates/")
}

// Request is a change that a client wants: POST, PATCH or DELETE. Empty says that there was no body.
type Request struct {
	Method, Path string
	Body         map[string]any
	Empty        bool
}

// Do carries out a change; known is false if the path has none of this kind. location is the path of what was created.
// ctx ends an image's opening.
func (s *Shelf) Do(ctx context.Context, q Request) (known bool, location string, _ *odata.Problem) {
	i, rest := s.find(q.Path)
	if i < 0 {
		return false, "", nil
	}
	x, t := s.model.slots[i], s.trays[i]
	var do func() *odata.Problem
	switch what := q.Method + " " + rest; {
	case what == "POST Actions/"+insertAction && x.takes == declined:
		return true, "", odata.Fault("OperationNotAllowed")
	case what == "POST Actions/"+insertAction && x.acts():
		do = func() *odata.Problem { return s.insertByAction(ctx, i, q.Body) }
	case what == "POST Actions/"+ejectAction && x.acts():
		do = func() *odata.Problem { return s.ejectByAction(i, q) }
	case what == "PATCH " && s.Patchable(q.Path):
		do = func() *odata.Problem { return s.patch(ctx, i, q.Body) }
	case what == "POST Certificates" && s.model.verify:
		location, problem := s.addCertificate(q.Path, t, q.Body)
		return true, location, problem
	case strings.HasPrefix(what, "DELETE Certificates/") && s.Resource(q.Path) != nil:
		do = func() *odata.Problem {
			n, _ := strconv.Atoi(path.Base(rest)) // there is a resource of that number
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(t.certs, n)
			return nil
		}
	default:
		return false, "", nil
	}
	if !t.change.TryLock() {
		return true, "", odata.Fault("ResourceInUse")
	}
	defer t.change.Unlock()
	return true, "", do()
}

// complaint makes problems of a parameter of an action, or of a property when action is "".
// The registry "" is the usual one.
type complaint struct{ action, registry string }

func (s *Shelf) complaint(action string) complaint {
	c := complaint{action: action}
	if s.cfg.Has(WantsProtocol) || s.cfg.Has(WantsMethod) || s.cfg.Has(WantsCredentials) {
		c.registry = "Base.1.5." // an older one: clients find out by the message's name what they have to add
	}
	return c
}

func (c complaint) about(id string, args ...string) *odata.Problem {
	switch {
	case c.action != "" && id == "Unknown":
		return odata.Fault("ActionParameterUnknown", c.action, args[0])
	case c.action != "":
		return odata.Fault("ActionParameter"+id, append(args, c.action)...)
	case id == "NotSupported":
		id = "Unknown"
	}
	return odata.Fault("Property"+id, args...)
}

// missing says that a parameter or property is not there.
func (c complaint) missing(key string) *odata.Problem {
	p := odata.Fault("PropertyMissing", key)
	if c.action != "" {
		p = odata.Fault("ActionParameterMissing", c.action, key)
	}
	p.Registry, p.Property = c.registry, "#/"+key
	return p
}

// read checks what a client wants a slot to take.
func (s *Shelf) read(c complaint, body object) (q request, _ *odata.Problem) {
	q = request{sent: map[string]bool{}, attach: true, method: "Stream"}
	texts := map[string]*string{"Image": &q.image, "UserName": &q.user, "Password": &q.password,
		"TransferProtocolType": &q.kind, "TransferMethod": &q.method}
	protected := true
	flags := map[string]*bool{"Inserted": &q.attach, "WriteProtected": &protected}
	for _, key := range slices.Sorted(maps.Keys(body)) {
		v := body[key]
		q.sent[key] = true
		text, flag := texts[key], flags[key]
		if text == nil && flag == nil {
			return q, c.about("Unknown", key)
		}
		if key != "Image" && s.cfg.Has(OnlyImage) || flag != nil && c.action != "" && s.cfg.Has(NoInserted) {
			return q, c.about("NotSupported", key)
		}
		isNull, ok := v == nil, true
		switch {
		case text != nil && !isNull:
			*text, ok = v.(string)
		case flag != nil:
			*flag, ok = v.(bool)
		}
		if !ok {
			return q, c.about("ValueTypeError", fmt.Sprint(v), key)
		}
	}
	if !protected {
		return q, c.about("ValueNotInList", "false", "WriteProtected")
	}
	if c.action == "" {
		return q, nil
	}
	var all []*odata.Problem
	for _, need := range []struct {
		key  string
		when bool
	}{{"Image", true}, {"TransferProtocolType", s.cfg.Has(WantsProtocol)}, {"TransferMethod", s.cfg.Has(WantsMethod)},
		{"UserName", s.cfg.Has(WantsCredentials)}, {"Password", s.cfg.Has(WantsCredentials)}} {
		if need.when && (!q.sent[need.key] || need.key == "Image" && q.image == "") {
			all = append(all, c.missing(need.key))
		}
	}
	switch {
	case len(all) == 0:
		return q, nil
	case s.cfg.Has(WantsMethod):
		return q, &odata.Problem{ID: "GeneralError", Registry: "Base.1.4.0.", Status: http.StatusBadRequest,
			Text: "The body lacks the property '" + strings.TrimPrefix(all[0].Property, "#/") + "', which is mandatory."}
	case s.cfg.Has(WantsCredentials):
		all[0].Also = all[1:]
	}
	return q, all[0]
}

// checkAddress declines addresses and kinds of transfer that the controller does not take.
func (s *Shelf) checkAddress(c complaint, q *request) *odata.Problem {
	u, err := url.Parse(q.image)
	switch {
	case err != nil || len(q.image) > longestURL || u.Host == "" || u.User != nil || u.Fragment != "",
		s.cfg.Has(PlainURL) && strings.ContainsAny(q.image, "?&"),
		s.cfg.Has(NoIPv6) && strings.HasPrefix(u.Host, "["):
		return c.about("ValueFormatError", printable(q.image), "Image")
	case q.kind != "" && q.kind != "HTTP" && q.kind != "HTTPS":
		return c.about("ValueNotInList", printable(q.kind), "TransferProtocolType")
	case u.Scheme != "http" && u.Scheme != "https":
		return c.about("ValueNotInList", printable(u.Scheme), "Image")
	case q.kind != "" && q.kind != strings.ToUpper(u.Scheme):
		return c.about("ValueNotInList", q.kind, "TransferProtocolType")
	case q.method != "Stream":
		return c.about("ValueNotInList", printable(q.method), "TransferMethod")
	}
	q.kind = strings.ToUpper(u.Scheme)
	return nil
}

// printable is a client's text, fit for an answer: without an address's password, and not endless.
func printable(text string) string {
	if u, err := url.Parse(text); err == nil {
		text = u.Redacted()
	}
	return text[:min(len(text), 200)]
}

func (s *Shelf) insertByAction(ctx context.Context, i int, body object) *odata.Problem {
	c := s.complaint(insertAction)
	q, problem := s.read(c, body)
	if problem != nil {
		return problem
	}
	return s.insert(ctx, c, i, q)
}

// insert puts an image into a slot, under tray.change.
func (s *Shelf) insert(ctx context.Context, c complaint, i int, q request) *odata.Problem {
	t := s.trays[i]
	drive, fits := s.model.drive(i)
	switch {
	case s.cfg.Has(FailsFirst) && s.failures.Add(1) <= failsFirst:
		return odata.Fault("InternalError")
	case s.cfg.Has(NoMediaLicence):
		return &odata.Problem{ID: "OemLicenseNotPassed", Args: []string{"virtual media"}, Registry: "SMC.1.0."}
	case !fits:
		// The machine has drives for discs and no others.
		return odata.Fault("ActionNotSupported", insertAction)
	}
	if problem := s.checkAddress(c, &q); problem != nil {
		return problem
	}
	o := s.cfg.Media
	o.User, o.Password = q.user, q.password
	s.mu.Lock()
	taken := t.file != nil
	if t.verify {
		o.Roots = x509.NewCertPool()
		for _, cert := range t.certs {
			o.Roots.AddCert(cert)
		}
	}
	s.mu.Unlock()
	if taken {
		return odata.Fault("ResourceInUse")
	}
	var file *media.File
	if q.attach {
		var err error
		if file, err = media.Open(ctx, q.image, o); err != nil {
			s.cfg.Log.Info("image can't be read", "image", printable(q.image), "err", err)
			return unreadable(q.image, err)
		}
		if err := s.cfg.SetMedium(drive, file); err != nil {
			s.cfg.Log.Error("insert medium", "err", err)
			file.Close()
			return odata.Fault("InternalError")
		}
	}
	s.cfg.Log.Debug("medium inserted", "slot", s.model.slots[i].id, "image", printable(q.image))
	u, _ := url.Parse(q.image) // checked
	s.mu.Lock()
	defer s.mu.Unlock()
	t.file, t.inserted = file, q.attach
	t.image, t.name, t.user, t.method, t.kind = q.image, path.Base(u.Path), q.user, q.method, q.kind
	return nil
}

// unreadable says why an image was not inserted.
func unreadable(image string, err error) *odata.Problem {
	image = printable(image)
	switch {
	case errors.Is(err, media.ErrDenied):
		return odata.Fault("AccessDenied", image)
	case errors.Is(err, media.ErrMissing):
		return &odata.Problem{ID: "ResourceMissingAtURI", Args: []string{image}, Status: http.StatusBadRequest}
	case errors.Is(err, media.ErrFormat):
		return odata.Fault("ResourceAtUriInUnknownFormat", image)
	}
	return odata.Fault("CouldNotEstablishConnection", image)
}

func (s *Shelf) ejectByAction(i int, q Request) *odata.Problem {
	if q.Empty && s.cfg.Has(EjectWantsBody) {
		return odata.Fault("MalformedJSON")
	}
	for key := range q.Body {
		return odata.Fault("ActionParameterUnknown", ejectAction, key)
	}
	return s.eject(i)
}

// eject empties a slot, under tray.change. What the machine is reading fails.
func (s *Shelf) eject(i int) *odata.Problem {
	t := s.trays[i]
	s.mu.Lock()
	file := t.file
	s.mu.Unlock()
	if file != nil {
		file.Close() // before the drive: it waits for reads that are under way
		drive, _ := s.model.drive(i)
		if err := s.cfg.SetMedium(drive, nil); err != nil {
			s.cfg.Log.Error("eject medium", "err", err)
			return odata.Fault("InternalError")
		}
		s.cfg.Log.Debug("medium ejected", "slot", s.model.slots[i].id, "requests", file.Stats().Requests, "bytes",
			file.Stats().Fetched)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name, inserted := t.name, t.inserted
	t.file, t.image, t.name, t.user, t.method, t.kind, t.inserted = nil, "", "", "", "", "", false
	if s.cfg.Has(NameStays) {
		t.name = name
	}
	if s.cfg.Has(StaysInserted) {
		t.inserted = inserted
	}
	return nil
}

// patch changes the properties of a slot: an Image inserts, none ejects, where the slot takes that.
func (s *Shelf) patch(ctx context.Context, i int, body object) *odata.Problem {
	t, x := s.trays[i], s.model.slots[i]
	if v, sent := body["VerifyCertificate"]; sent && s.model.verify {
		on, ok := v.(bool)
		if !ok {
			return odata.Fault("PropertyValueTypeError", fmt.Sprint(v), "VerifyCertificate")
		}
		delete(body, "VerifyCertificate")
		s.mu.Lock()
		t.verify = on
		s.mu.Unlock()
	}
	if len(body) == 0 {
		return nil
	}
	if !x.patched() {
		key := slices.Min(slices.Collect(maps.Keys(body)))
		return odata.Fault("PropertyNotWritable", key)
	}
	c := s.complaint("")
	q, problem := s.read(c, body)
	s.mu.Lock()
	before := t.image
	attached := t.file != nil
	s.mu.Unlock()
	switch {
	case problem != nil:
		return problem
	case q.sent["Image"] && q.image == "" || q.sent["Inserted"] && !q.attach && !q.sent["Image"]:
		return s.eject(i)
	case !q.sent["Image"] && q.sent["Inserted"] && before != "" && !attached:
		q.image = before // which was set without being attached
	case !q.sent["Image"]:
		return c.missing("Image")
	case !q.sent["Inserted"] && s.cfg.Has(WantsInserted):
		q.attach = false
	}
	return s.insert(ctx, c, i, q)
}

// addCertificate takes a certificate that may sign those of image servers.
func (s *Shelf) addCertificate(path string, t *tray, body object) (location string, _ *odata.Problem) {
	text, isText := body["CertificateString"].(string)
	kind, _ := body["CertificateType"].(string)
	block, _ := pem.Decode([]byte(text))
	switch {
	case !isText:
		return "", odata.Fault("PropertyMissing", "CertificateString")
	case kind != "PEM":
		return "", odata.Fault("PropertyValueNotInList", printable(cmp.Or(kind, "null")), "CertificateType")
	case block == nil || block.Type != "CERTIFICATE":
		return "", odata.Fault("PropertyValueFormatError", "...", "CertificateString")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", odata.Fault("PropertyValueFormatError", "...", "CertificateString")
	}
	s.mu.Lock()
	full := len(t.certs) >= mostCerts
	if !full {
		t.issued++
		t.certs[t.issued] = cert
		path += "/" + strconv.Itoa(t.issued)
	}
	s.mu.Unlock()
	if full {
		return "", odata.Fault("CreateLimitReachedForResource")
	}
	return path, nil
}
