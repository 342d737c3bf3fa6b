package redfish

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

const (
	registriesPath = odata.Root + "/Registries"
	documentPath   = odata.Root + "/odata"
	metadataPath   = odata.Root + "/$metadata"
	schemasPath    = odata.Root + "/JsonSchemas"
)

// types are those of resources that a service may have.
var types = strings.Fields(`AccountService AttributeRegistry Bios BootOption Certificate CertificateService Chassis
	ComputerSystem Drive EthernetInterface EventDestination EventService Fan Job JobService JsonSchemaFile License
	LicenseService LogEntry LogService Manager ManagerAccount ManagerNetworkProtocol Memory MessageRegistry
	MessageRegistryFile NetworkAdapter NetworkDeviceFunction NetworkInterface Port Power PowerSubsystem PowerSupply
	Processor Role SecureBoot SecureBootDatabase Sensor ServiceRoot Session SessionService Signature SoftwareInventory
	Storage StorageController Task TaskService Thermal ThermalMetrics ThermalSubsystem UpdateService VirtualMedia
	Volume`)

// open reports whether a path is for all, without credentials.
func open(path string) bool {
	return slices.Contains([]string{"/redfish", odata.Root, documentPath, metadataPath}, path)
}

// standard returns what services have beside their resources: the list of services, and the registries with the one of
// the messages in errors.
func (s *Service) standard(path string) object {
	switch path {
	case documentPath:
		var list []object
		root := s.everything(odata.Root)
		for _, name := range []string{"Systems", "Chassis", "Managers", "AccountService", "SessionService",
			"Registries"} {
			if l, has := root[name].(object); has {
				list = append(list, object{"name": name, "kind": "Singleton", "url": l["@odata.id"]})
			}
		}
		return object{"@odata.context": metadataPath, "value": list}
	case registriesPath:
		names := []string{"Base"}
		if settings := s.bios.Registry(); settings != "" {
			names = append(names, settings)
		}
		return odata.Collection(path, "MessageRegistryFileCollection", "Registries", names...)
	case schemasPath:
		return odata.Collection(path, "JsonSchemaFileCollection", "Schemas", types...)
	}
	if name, is := strings.CutPrefix(path, schemasPath+"/"); is && slices.Contains(types, name) {
		return object{"@odata.id": path, "@odata.type": "#JsonSchemaFile.v1_1_5.JsonSchemaFile", "Id": name,
			"Name": "Schema", "Schema": "#" + name + "." + name, "Languages": []string{"en"},
			"Location": []object{{"Language": "en", "PublicationUri": schemas + name + ".json"}}}
	}
	return odata.Registry(registriesPath+"/Base", path)
}

// metadata writes the document with the schemas of all types, which are the standard's.
func metadata(w http.ResponseWriter) *odata.Problem {
	w.Header().Set("Content-Type", "application/xml")
	type include struct {
		Namespace string `xml:",attr"`
	}
	type reference struct {
		URI     string  `xml:"Uri,attr"`
		Include include `xml:"edmx:Include"`
	}
	doc := struct {
		XMLName    xml.Name    `xml:"edmx:Edmx"`
		Space      string      `xml:"xmlns:edmx,attr"`
		Version    string      `xml:",attr"`
		References []reference `xml:"edmx:Reference"`
	}{Space: "http://docs.oasis-open.org/odata/ns/edmx", Version: "4.0"}
	for _, name := range types {
		doc.References = append(doc.References, reference{schemas + name + "_v1.xml", include{name}})
	}
	b, err := xml.Marshal(doc)
	if err != nil {
		panic(err) // texts
	}
	_, _ = w.Write(append([]byte(xml.Header), b...)) // as in write
	return nil
}

// schemas is where the standard's are.
const schemas = "http://redfish.dmtf.org/schemas/v1/"

// describe sets the headers that an answer about a resource has beside its ETag.
func (s *Service) describe(w http.ResponseWriter, path string, o object) {
	if typ, _ := o["@odata.type"].(string); typ != "" {
		name, _, _ := strings.Cut(strings.TrimPrefix(typ, "#"), ".")
		w.Header().Set("Link", fmt.Sprintf("<%s%s.json>; rel=describedby", schemas, name))
	}
	w.Header().Set("Allow", s.allow(path, o))
}

// allow lists the methods that a resource has.
func (s *Service) allow(path string, o object) string {
	list := "GET, HEAD" + s.events.Allow(path) + s.raid.Allow(path)
	sessions := odata.Root + "/SessionService/Sessions"
	if s.change(path, o) != nil || s.drives.Patchable(path) {
		list += ", PATCH"
	}
	if path == sessions || s.drives.Creates(path) {
		list += ", POST"
	}
	if strings.HasPrefix(path, sessions+"/") || s.drives.Deletable(path) {
		list += ", DELETE"
	}
	return list
}

// change returns what changes a resource by PATCH; nil if nothing of it can be changed.
func (s *Service) change(path string, o object) func(path string, body object) *odata.Problem {
	system := s.systemPath()
	switch {
	case strings.HasPrefix(path, accountsPath+"/"):
		return s.patchAccount
	case path == system, path == system+futureBoot:
		return s.patchSystem
	case path == system+"/SecureBoot":
		return s.patchSecureBoot
	case path == s.managerPath():
		return s.patchManager
	case s.bios.IsSettings(path):
		return func(path string, body object) *odata.Problem {
			return s.queued(func() *odata.Problem { return s.bios.Patch(path, body) })
		}
	case s.parts.HasLamp(o):
		return s.parts.SetLamp
	}
	return nil
}
