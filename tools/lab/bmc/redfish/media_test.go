package redfish_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

type object = map[string]any

// client talks to a controller on its own, without Ingot's client.
type client struct {
	t    *testing.T
	b    *redfish.Bench
	http *http.Client
}

func controller(t *testing.T, personality string, more ...service.Behaviour) *client {
	t.Helper()
	b := redfish.Start(t, redfish.Personality(t, personality, more...))
	return &client{t, b, &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
}

// ask makes a request that must get a status; it returns the answer and its error code.
func (c *client) ask(want int, method, path string, body any) (object, string) {
	c.t.Helper()
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.b.Service.URL()+path, r)
	if err != nil {
		c.t.Fatal(err)
	}
	req.SetBasicAuth("admin", redfish.Password)
	if method == http.MethodPatch {
		req.Header.Set("If-Match", "*")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.StatusCode != want {
		c.t.Fatalf("%s %s %v = %d, want %d: %s", method, path, body, resp.StatusCode, want, text)
	}
	var o struct {
		Error struct{ Code string }
	}
	all := object{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &o); err != nil {
			c.t.Fatal(err)
		}
		if err := json.Unmarshal(text, &all); err != nil {
			c.t.Fatal(err)
		}
	}
	return all, o.Error.Code
}

func (c *client) get(path string) object {
	c.t.Helper()
	o, _ := c.ask(http.StatusOK, http.MethodGet, path, nil)
	return o
}

func linked(o object, key string) string {
	l, _ := o[key].(object)
	path, _ := l["@odata.id"].(string)
	return path
}

// slots follows the links of system and manager to the drives.
func (c *client) slots() (all []object) {
	c.t.Helper()
	seen := map[string]bool{}
	for _, of := range []string{"Systems", "Managers"} {
		members, _ := c.get("/redfish/v1/" + of)["Members"].([]any)
		media := linked(c.get(linked(object{"m": members[0]}, "m")), "VirtualMedia")
		if media == "" || seen[media] {
			continue
		}
		seen[media] = true
		drives, _ := c.get(media)["Members"].([]any)
		for _, d := range drives {
			all = append(all, c.get(linked(object{"d": d}, "d")))
		}
	}
	return all
}

func target(slot object, action string) string {
	actions, _ := slot["Actions"].(object)
	a, _ := actions["#VirtualMedia."+action].(object)
	path, _ := a["target"].(string)
	return path
}

func path(slot object) string { s, _ := slot["@odata.id"].(string); return s }

// images serves content by ranges with TLS or without, and counts requests.
func images(t *testing.T, content []byte, secure bool) (url string, certificate string, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Range") == "" || !strings.HasSuffix(r.URL.Path, ".iso") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "x.iso", time.Unix(1e9, 0), bytes.NewReader(content))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		s.StartTLS()
		certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.URL + "/token/node.iso", certificate, asked
}

func content() []byte {
	b := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b) // never fails
	return b
}

// TestEveryPersonalityTakesMedia inserts an image into each drive as its personality wants it: the machine then has the
// image's bytes in the drive of that number, and after the eject none.
func TestEveryPersonalityTakesMedia(t *testing.T) {
	want := content()
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			c := controller(t, name)
			url, _, _ := images(t, want, false)
			drives := 0
			for _, slot := range c.slots() {
				types, _ := json.Marshal(slot["MediaTypes"])
				insert, patch := target(slot, "InsertMedia"), object{"Image": url, "Inserted": true}
				switch {
				case insert == "" && (strings.HasPrefix(path(slot)[strings.LastIndex(path(slot), "/"):], "/R") ||
					slot["Id"] == "Slot_0"):
					c.ask(http.StatusMethodNotAllowed, "PATCH", path(slot), patch)
					continue
				case !strings.Contains(string(types), `"CD"`) && insert != "":
					_, code := c.ask(http.StatusBadRequest, "POST", insert, object{"Image": url})
					if !strings.HasSuffix(code, ".ActionNotSupported") {
						t.Errorf("a stick in %s: %s", path(slot), code)
					}
					continue
				case !strings.Contains(string(types), `"CD"`):
					c.ask(http.StatusBadRequest, "PATCH", path(slot), patch)
					continue
				case insert == "":
					c.ask(http.StatusNoContent, "PATCH", path(slot), patch)
				default:
					c.ask(http.StatusNoContent, "POST", insert, object{"Image": url})
				}
				now := c.get(path(slot))
				if now["Image"] != url || now["ImageName"] != "node.iso" || now["Inserted"] != true ||
					now["ConnectedVia"] != "URI" || now["WriteProtected"] != true ||
					now["TransferProtocolType"] != "HTTP" || now["TransferMethod"] != "Stream" {
					t.Errorf("with a medium: %v", now)
				}
				m := c.b.Machine.Medium(drives)
				if m == nil {
					t.Fatalf("drive %d is empty", drives)
				}
				got, err := io.ReadAll(io.NewSectionReader(m, 0, m.Size()))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("the machine reads other bytes than the image's: %d, %v", len(got), err)
				}
				if insert == "" {
					c.ask(http.StatusNoContent, "PATCH", path(slot), object{"Image": nil, "Inserted": false})
				} else {
					c.ask(http.StatusNoContent, "POST", target(slot, "EjectMedia"), object{})
				}
				if now := c.get(path(slot)); now["Image"] != nil || now["ConnectedVia"] != "NotConnected" ||
					(now["Inserted"] == true) != strings.HasPrefix(name, "dell") ||
					(now["ImageName"] != nil) != (name == "supermicro") {
					t.Errorf("after the eject: %v", now)
				}
				if c.b.Machine.Medium(drives) != nil {
					t.Errorf("drive %d has a medium after the eject", drives)
				}
				if _, err := m.ReadAt(make([]byte, 1), 0); err == nil {
					t.Error("the medium can be read after the eject")
				}
				drives++
			}
			if want := vmedia.Drives(name); drives != want || drives == 0 {
				t.Errorf("%d drives took media; the machine has %d", drives, want)
			}
		})
	}
}

// TestOnlySlot: an iDRAC10 has one drive, slot 1, which is the system's and no manager's.
func TestOnlySlot(t *testing.T) {
	c := controller(t, "dell-idrac10")
	all := c.slots()
	if len(all) != 1 || all[0]["Id"] != "1" || !strings.HasPrefix(path(all[0]), "/redfish/v1/Systems/") {
		t.Errorf("the drives are %v", all)
	}
	c.ask(http.StatusNotFound, "GET", path(all[0])[:len(path(all[0]))-1]+"2", nil)
}

// TestMediaBehaviours: what some controllers decline, in their words, and what they then take.
func TestMediaBehaviours(t *testing.T) {
	url, _, _ := images(t, content(), false)
	for name, tt := range map[string]struct {
		does     service.Behaviour
		declined object
		status   int
		code     string
		taken    object
	}{
		"protocol": {vmedia.WantsProtocol, object{"Image": url}, 400, "Base.1.5.ActionParameterMissing",
			object{"Image": url, "TransferProtocolType": "HTTP"}},
		"method": {vmedia.WantsMethod, object{"Image": url}, 400, "Base.1.4.0.GeneralError",
			object{"Image": url, "TransferMethod": "Stream"}},
		"credentials": {vmedia.WantsCredentials, object{"Image": url, "UserName": "none"}, 400,
			"Base.1.5.ActionParameterMissing", object{"Image": url, "UserName": "none", "Password": "none"}},
		"no Inserted": {vmedia.NoInserted, object{"Image": url, "Inserted": true}, 400,
			"Base.1.18.ActionParameterNotSupported", object{"Image": url}},
		"only image": {vmedia.OnlyImage, object{"Image": url, "TransferMethod": "Stream"}, 400,
			"Base.1.18.ActionParameterNotSupported", object{"Image": url}},
		"plain address": {vmedia.PlainURL, object{"Image": url + "?a=b"}, 400,
			"Base.1.18.ActionParameterValueFormatError", object{"Image": url}},
		"plain address, &": {vmedia.PlainURL, object{"Image": url + "&a=b"}, 400,
			"Base.1.18.ActionParameterValueFormatError", object{"Image": url}},
		"no IPv6": {vmedia.NoIPv6, object{"Image": "http://[::1]:80/a.iso"}, 400,
			"Base.1.18.ActionParameterValueFormatError", object{"Image": url}},
		"licence": {vmedia.NoMediaLicence, object{"Image": url}, 403, "SMC.1.0.OemLicenseNotPassed", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := controller(t, "generic", tt.does)
			slot := c.slots()[0]
			if _, code := c.ask(tt.status, "POST", target(slot, "InsertMedia"), tt.declined); code != tt.code {
				t.Errorf("declined with %s, want %s", code, tt.code)
			}
			if c.b.Machine.Medium(0) != nil {
				t.Error("declined, and there is a medium")
			}
			if tt.taken != nil {
				c.ask(http.StatusNoContent, "POST", target(slot, "InsertMedia"), tt.taken)
			}
		})
	}
	t.Run("eject", func(t *testing.T) {
		c := controller(t, "generic", vmedia.EjectWantsBody)
		eject := target(c.slots()[0], "EjectMedia")
		c.ask(http.StatusBadRequest, "POST", eject, nil)
		c.ask(http.StatusNoContent, "POST", eject, object{})
	})
	t.Run("internal slots", func(t *testing.T) {
		c := controller(t, "generic", vmedia.InternalSlots)
		slots := c.slots()
		c.ask(http.StatusMethodNotAllowed, "POST", target(slots[0], "InsertMedia"), object{"Image": url})
		if target(slots[1], "InsertMedia") != "" {
			t.Error("the second internal slot has the action")
		}
		c.ask(http.StatusNoContent, "POST", target(slots[2], "InsertMedia"), object{"Image": url})
		if c.b.Machine.Medium(0) == nil {
			t.Error("no medium in the first drive")
		}
	})
	t.Run("attach nothing", func(t *testing.T) {
		c := controller(t, "generic", vmedia.WantsInserted)
		slot := c.slots()[0]
		c.ask(http.StatusNoContent, "PATCH", path(slot), object{"Image": url})
		if now := c.get(path(slot)); now["Image"] != url || now["Inserted"] != false || c.b.Machine.Medium(0) != nil {
			t.Errorf("an image without Inserted: %v", now)
		}
		c.ask(http.StatusNoContent, "PATCH", path(slot), object{"Inserted": true})
		if c.b.Machine.Medium(0) == nil {
			t.Error("Inserted attaches nothing")
		}
	})
}

// TestBootFromMedia: the boot target of virtual media starts the machine from the drive, once or always; where Cd is
// the machine's own drive, it does not.
func TestBootFromMedia(t *testing.T) {
	for _, tt := range []struct {
		personality, target string
		more                []service.Behaviour
		want                bmc.Device
	}{{"generic", "Cd", nil, bmc.CDROM}, {"dell-idrac9", "Cd", nil, bmc.CDROM},
		{"supermicro", "UsbCd", nil, bmc.CDROM}, {"supermicro", "Cd", nil, bmc.Default},
		{"generic", "Cd", []service.Behaviour{vmedia.ListsUSBCD}, bmc.CDROM},
		{"generic", "UsbCd", []service.Behaviour{vmedia.ListsUSBCD}, bmc.Default},
		{"dell-idrac9", "Cd", []service.Behaviour{vmedia.CDIsOwnDrive}, bmc.Default}} {
		for _, enabled := range []string{"Once", "Continuous"} {
			c := controller(t, tt.personality, tt.more...)
			members, _ := c.get("/redfish/v1/Systems")["Members"].([]any)
			system := linked(object{"m": members[0]}, "m")
			c.ask(http.StatusNoContent, "PATCH", system, object{"Boot": object{"BootSourceOverrideTarget": tt.target,
				"BootSourceOverrideEnabled": enabled}})
			boot, _ := c.get(system)["Boot"].(object)
			if boot["BootSourceOverrideTarget"] != tt.target || boot["BootSourceOverrideEnabled"] != enabled {
				t.Errorf("%s: the boot choice is %v", tt.personality, boot)
			}
			for range 2 {
				c.ask(http.StatusNoContent, "POST", system+"/Actions/ComputerSystem.Reset", object{"ResetType": "On"})
				c.ask(http.StatusNoContent, "POST", system+"/Actions/ComputerSystem.Reset",
					object{"ResetType": "ForceOff"})
			}
			second := tt.want
			if enabled == "Once" {
				second = bmc.Default
			}
			if b := c.b.Machine.Boots(); len(b) != 2 || b[0].Device != tt.want || b[1].Device != second {
				t.Errorf("%s %s %s: the machine started with %v", tt.personality, tt.target, enabled, b)
			}
		}
	}
}

// TestCertificateOfImages: with VerifyCertificate an image comes only from a server that one of the drive's
// certificates vouches for.
func TestCertificateOfImages(t *testing.T) {
	url, certificate, asked := images(t, content(), true)
	c := controller(t, "generic")
	slot := c.slots()[0]
	insert := func(want int) {
		t.Helper()
		_, code := c.ask(want, "POST", target(slot, "InsertMedia"), object{"Image": url})
		if want != http.StatusNoContent && !strings.HasSuffix(code, ".CouldNotEstablishConnection") {
			t.Errorf("refused with %s", code)
		}
	}
	certificates := linked(slot, "Certificates")
	post := func(text string) object {
		t.Helper()
		o, _ := c.ask(http.StatusCreated, "POST", certificates, object{"CertificateString": text,
			"CertificateType": "PEM"})
		return o
	}
	if slot["VerifyCertificate"] != false {
		t.Errorf("VerifyCertificate is %v at first", slot["VerifyCertificate"])
	}
	insert(http.StatusNoContent)
	c.ask(http.StatusNoContent, "POST", target(slot, "EjectMedia"), nil)
	c.ask(http.StatusNoContent, "PATCH", path(slot), object{"VerifyCertificate": true})
	before := asked.Load()
	insert(http.StatusBadRequest)
	wrong := post(string(c.b.Service.CertificatePEM()))
	insert(http.StatusBadRequest)
	if asked.Load() != before {
		t.Error("a server that is not trusted was asked for the image")
	}
	right := post(certificate)
	insert(http.StatusNoContent)
	if c.b.Machine.Medium(0) == nil {
		t.Error("no medium")
	}
	c.ask(http.StatusNoContent, "POST", target(slot, "EjectMedia"), nil)
	if got := c.get(path(right)); got["CertificateString"] != certificate || got["CertificateType"] != "PEM" {
		t.Errorf("the certificate reads %v", got)
	}
	c.ask(http.StatusNoContent, "DELETE", path(right), nil)
	c.ask(http.StatusNotFound, "GET", path(right), nil)
	insert(http.StatusBadRequest)
	if n := c.get(certificates)["Members@odata.count"]; n != 1.0 || path(wrong) == "" {
		t.Errorf("%v certificates are left", n)
	}
	for range 7 {
		post(certificate)
	}
	c.ask(http.StatusBadRequest, "POST", certificates, object{"CertificateString": certificate,
		"CertificateType": "PEM"})
	for _, bad := range []object{{}, {"CertificateString": 5}, {"CertificateString": "x", "CertificateType": "PEM"},
		{"CertificateString": certificate, "CertificateType": "PKCS7"}} {
		c.ask(http.StatusBadRequest, "POST", certificates, bad)
	}
}

// TestHostileInsertions: what is no image, and no request, is declined in the standard's words, and nothing of it
// stays.
func TestHostileInsertions(t *testing.T) {
	url, _, _ := images(t, content(), false)
	c := controller(t, "generic")
	slot := c.slots()[0]
	for _, tt := range []struct {
		body object
		code string
	}{
		{object{}, "ActionParameterMissing"},
		{object{"Image": nil}, "ActionParameterMissing"},
		{object{"Image": 5}, "ActionParameterValueTypeError"},
		{object{"Image": url, "Inserted": "yes"}, "ActionParameterValueTypeError"},
		{object{"Image": url, "WriteProtected": false}, "ActionParameterValueNotInList"},
		{object{"Image": url, "TransferMethod": "Upload"}, "ActionParameterValueNotInList"},
		{object{"Image": url, "TransferProtocolType": "NFS"}, "ActionParameterValueNotInList"},
		{object{"Image": url, "TransferProtocolType": "HTTPS"}, "ActionParameterValueNotInList"},
		{object{"Image": "nfs://host/a.iso"}, "ActionParameterValueNotInList"},
		{object{"Image": "/etc/passwd"}, "ActionParameterValueFormatError"},
		{object{"Image": "file:///etc/passwd"}, "ActionParameterValueFormatError"},
		{object{"Image": "http://user:canary@127.0.0.1/a.iso"}, "ActionParameterValueFormatError"},
		{object{"Image": "http://127.0.0.1/" + strings.Repeat("a", 3000)}, "ActionParameterValueFormatError"},
		{object{"Image": url, "Elsewhere": true}, "ActionParameterUnknown"},
		{object{"Image": strings.TrimSuffix(url, ".iso")}, "ResourceMissingAtURI"},
		{object{"Image": "http://127.0.0.1:1/a.iso"}, "CouldNotEstablishConnection"},
	} {
		_, code := c.ask(http.StatusBadRequest, "POST", target(slot, "InsertMedia"), tt.body)
		if !strings.HasSuffix(code, "."+tt.code) {
			t.Errorf("%v: %s, want %s", tt.body, code, tt.code)
		}
	}
	if now := c.get(path(slot)); now["Image"] != nil || now["Inserted"] != false || c.b.Machine.Medium(0) != nil {
		t.Errorf("after declined insertions: %v", now)
	}
	c.ask(http.StatusNoContent, "POST", target(slot, "InsertMedia"), object{"Image": url, "UserName": "u",
		"Password": "canary"})
	if now := c.get(path(slot)); now["UserName"] != "u" || now["Password"] != nil {
		t.Errorf("credentials read back as %v, %v", now["UserName"], now["Password"])
	}
	_, code := c.ask(http.StatusConflict, "POST", target(slot, "InsertMedia"), object{"Image": url})
	if !strings.HasSuffix(code, ".ResourceInUse") {
		t.Errorf("a second medium: %s", code)
	}
	for method, at := range map[string]string{"DELETE": path(slot), "PUT": path(slot), "POST": path(slot),
		"PATCH": path(slot) + "/Certificates"} {
		c.ask(http.StatusMethodNotAllowed, method, at, object{})
	}
	c.ask(http.StatusNotFound, "GET", path(slot)+"/Certificates/1", nil)
	c.ask(http.StatusNotFound, "DELETE", path(slot)+"/Certificates/01", nil)
	c.ask(http.StatusNotFound, "POST", path(slot)+"/Actions/VirtualMedia.Other", object{})
}

// TestMediaFaults: a controller that is busy says so; one that forgets says that all is well.
func TestMediaFaults(t *testing.T) {
	url, _, _ := images(t, content(), false)
	c := controller(t, "generic")
	slot := c.slots()[0]
	c.b.BMC.SetFaults(bmc.Faults{Busy: true})
	c.ask(http.StatusServiceUnavailable, "POST", target(slot, "InsertMedia"), object{"Image": url})
	c.b.BMC.SetFaults(bmc.Faults{ForgetMedia: true})
	c.ask(http.StatusNoContent, "POST", target(slot, "InsertMedia"), object{"Image": url})
	if c.get(path(slot))["Inserted"] != true || c.b.Machine.Medium(0) != nil {
		t.Error("a controller that forgets media")
	}
}
