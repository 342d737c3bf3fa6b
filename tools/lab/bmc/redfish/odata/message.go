// Package odata has the forms of answers of a Redfish service: links, collections, and errors of the registry Base.
package odata

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Root is the path of the service root.
const Root = "/redfish/v1"

// Object is a JSON object.
type Object = map[string]any

// Link is a reference to a resource.
func Link(path string) Object { return Object{"@odata.id": path} }

// Collection is a collection of resources whose paths are the members below its own.
func Collection(path, typ, name string, members ...string) Object {
	list := []Object{}
	for _, m := range members {
		list = append(list, Link(path+"/"+m))
	}
	return Object{"@odata.id": path, "@odata.type": "#" + typ + "." + typ, "Name": name, "Members": list,
		"Members@odata.count": len(list)}
}

// Numbered is a collection of n resources that are numbered from 1.
func Numbered(path, typ, name string, n int) Object {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(i + 1)
	}
	return Collection(path, typ, name, ids...)
}

// Number reads the number of a path below a folder, from 1 to n.
func Number(path, folder string, n int) (i int, ok bool) {
	rest, ok := strings.CutPrefix(path, folder+"/")
	for i = 1; ok && i <= n; i++ {
		if rest == fmt.Sprint(i) {
			return i, true
		}
	}
	return 0, false
}

// Versions of the registry of messages, and the schema of a message.
const (
	registryVersion = "1.18.0"
	registry        = "Base.1.18."
	MessageType     = "#Message.v1_1_1.Message"
)

// general is the message of errors that have other messages.
const general = "GeneralError"

// licence is the message of another registry, Supermicro's.
const licence = "OemLicenseNotPassed"

// messages of the registry Base that this service gives: status, text and what to do. %N stands for an argument.
var messages = map[string]struct {
	status           int
	text, resolution string
}{
	"Success": {http.StatusOK, "The request completed successfully.", "None."},
	general: {http.StatusConflict, "A general error has occurred.  See Resolution for information on how to resolve the error, or @Message.ExtendedInfo if Resolution is not provided.",
		"None."},
	"ResourceMissingAtURI": {http.StatusNotFound, "The resource at the URI '%1' was not found.",
		"Place a valid resource at the URI or correct the URI and resubmit the request."},
	"OperationNotAllowed": {http.StatusMethodNotAllowed, "The HTTP method is not allowed on this resource.",
		"None."},
	"NoValidSession": {http.StatusUnauthorized, "There is no valid session established with the implementation.",
		"Establish a session before attempting any operations."},
	"ResourceAtUriUnauthorized": {http.StatusUnauthorized, "While accessing the resource at '%1', the service received an authorization error '%2'.",
		"Ensure that the appropriate access is provided for the service in order for it to access the URI."},
	"SessionLimitExceeded": {http.StatusServiceUnavailable, "The session establishment failed due to the number of simultaneous sessions exceeding the limit of the implementation.",
		"Reduce the number of other sessions before trying to establish the session or increase the limit of simultaneous sessions, if supported."},
	"ServiceTemporarilyUnavailable": {http.StatusServiceUnavailable, "The service is temporarily unavailable.  Retry in %1 seconds.",
		"Wait for the indicated retry duration and retry the operation."},
	"MalformedJSON": {http.StatusBadRequest, "The request body submitted was malformed JSON and could not be parsed by the receiving service.",
		"Ensure that the request body is valid JSON and resubmit the request."},
	"PropertyUnknown": {http.StatusBadRequest, "The property %1 is not in the list of valid properties for the resource.",
		"Remove the unknown property from the request body and resubmit the request if the operation failed."},
	"PropertyMissing": {http.StatusBadRequest, "The property %1 is a required property and must be included in the request.",
		"Ensure that the property is in the request body and has a valid value and resubmit the request if the operation failed."},
	"PropertyNotWritable": {http.StatusBadRequest, "The property %1 is a read-only property and cannot be assigned a value.",
		"Remove the property from the request body and resubmit the request if the operation failed."},
	"PropertyValueNotInList": {http.StatusBadRequest, "The value '%1' for the property %2 is not in the list of acceptable values.",
		"Choose a value from the enumeration list that the implementation can support and resubmit the request if the operation failed."},
	"PropertyValueTypeError": {http.StatusBadRequest, "The value '%1' for the property %2 is not a type that the property can accept.",
		"Correct the value for the property in the request body and resubmit the request if the operation failed."},
	"ActionParameterMissing": {http.StatusBadRequest, "The action %1 requires the parameter %2 to be present in the request body.",
		"Supply the action with the required parameter in the request body when the request is resubmitted."},
	"ActionParameterNotSupported": {http.StatusBadRequest, "The parameter %1 for the action %2 is not supported on the target resource.",
		"Remove the parameter supplied and resubmit the request if the operation failed."},
	"ActionParameterValueNotInList": {http.StatusBadRequest, "The value '%1' for the parameter %2 in the action %3 is not in the list of acceptable values.",
		"Choose a value from the enumeration list that the implementation can support and resubmit the request if the operation failed."},
	"ActionParameterValueConflict": {http.StatusConflict, "The parameter '%1' with the requested value of '%2' does not meet the constraints of the implementation.",
		"Address the conflict in the request and resubmit the request."},
	"ActionParameterUnknown": {http.StatusBadRequest, "The action %1 was submitted with the invalid parameter %2.",
		"Correct the invalid parameter and resubmit the request if the operation failed."},
	"ActionParameterValueTypeError": {http.StatusBadRequest, "The value '%1' for the parameter %2 in the action %3 is not a type that the parameter can accept.",
		"Correct the value for the parameter in the request body and resubmit the request if the operation failed."},
	"ActionParameterValueFormatError": {http.StatusBadRequest, "The value '%1' for the parameter %2 in the action %3 is not a format that the parameter can accept.",
		"Correct the value for the parameter in the request body and resubmit the request if the operation failed."},
	"ActionNotSupported": {http.StatusBadRequest, "The action %1 is not supported by the resource.",
		"The action supplied cannot be resubmitted to the implementation.  Perhaps the action was invalid, the wrong resource was the target or the implementation documentation may be of assistance."},
	"PropertyValueFormatError": {http.StatusBadRequest, "The value '%1' for the property %2 is not a format that the property can accept.",
		"Correct the value for the property in the request body and resubmit the request if the operation failed."},
	"ResourceInUse": {http.StatusConflict, "The change to the requested resource failed because the resource is in use or in transition.",
		"Remove the condition and resubmit the request if the operation failed."},
	"CreateLimitReachedForResource": {http.StatusBadRequest, "The create operation failed because the resource has reached the limit of possible resources.",
		"Either delete resources and resubmit the request if the operation failed or do not resubmit the request."},
	"CouldNotEstablishConnection": {http.StatusBadRequest, "The service failed to establish a connection with the URI '%1'.",
		"Ensure that the URI contains a valid and reachable node name, protocol information and other URI components."},
	"UnableToModifyDuringSystemPOST": {http.StatusBadRequest, "Unable to modify the value while the system is in POST.",
		"Modify the value when the system is not in POST."},
	"AccessDenied": {http.StatusBadRequest, "While attempting to establish a connection to '%1', the service denied access.",
		"Attempt to ensure that the URI is correct and that the service has the appropriate credentials."},
	"ResourceAtUriInUnknownFormat": {http.StatusBadRequest, "The resource at '%1' is in a format not recognized by the service.",
		"Place an image or resource or file that is recognized by the service at the URI."},
	licence: {http.StatusForbidden, "Not licensed to perform this request. The following licenses %1 were needed.",
		"Activate the required license and resubmit the request."},
	"SYS518": {http.StatusServiceUnavailable, "iDRAC is currently not ready.",
		"Wait for the iDRAC to be ready, and retry the operation."},
	"RAC0679": {http.StatusBadRequest, "A job operation is already running. Retry the operation after the existing job is completed.",
		"Wait until the running job is completed or delete the scheduled job and retry the operation."},
	"SYS011": {http.StatusBadRequest, "Pending configuration values are already committed, unable to perform another set operation.",
		"Wait for the scheduled job to complete or delete the configuration job before attempting more set operations."},
	"LC068": {http.StatusBadRequest, "Pending configuration values are already committed, unable to perform another set operation.",
		"Wait for the scheduled job to complete or delete the configuration job before attempting more set operations."},
	"PreconditionFailed": {http.StatusPreconditionFailed, "The ETag supplied did not match the ETag required to change this resource.",
		"Try the operation again using the appropriate ETag."},
	"PreconditionRequired": {http.StatusPreconditionRequired, "A precondition header or annotation is required to change this resource.",
		"Try the operation again using an If-Match or If-None-Match header and appropriate ETag."},
	"InternalError": {http.StatusInternalServerError, "The request failed due to an internal service error.  The service is still operational.",
		"Resubmit the request.  If the problem persists, consider resetting the service."},
}

// Problem is why a request is declined: a message and its arguments. Registry, Property (that it is about), Status and
// Text are other than the usual when they are set; Also are more messages, with which the error's own is a general one.
type Problem struct {
	ID                       string
	Args                     []string
	Registry, Property, Text string
	Status                   int
	Also                     []*Problem
}

func (p Problem) Error() string { return p.ID }

// Fault is a problem by the name of its message.
func Fault(id string, args ...string) *Problem { return &Problem{ID: id, Args: args} }

// Write answers a request with the problem.
func (p *Problem) Write(w http.ResponseWriter) {
	info := p.info()
	code, text := info["MessageId"], info["Message"]
	all := []any{info}
	for _, more := range p.Also {
		all = append(all, more.info())
		code = cmp.Or(p.Registry, registry) + general
	}
	if p.Text != "" {
		text = messages[general].text // the error's own says nothing
	}
	status := cmp.Or(p.Status, messages[p.ID].status)
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="controller"`)
	}
	Write(w, status, map[string]any{"error": map[string]any{"code": code, "message": text,
		"@Message.ExtendedInfo": all}})
}

// info is the problem as a message.
func (p *Problem) info() map[string]any {
	m, ok := messages[p.ID]
	if !ok {
		panic("odata: no message " + p.ID)
	}
	text := cmp.Or(p.Text, m.text)
	for i, a := range p.Args {
		text = strings.ReplaceAll(text, fmt.Sprintf("%%%d", i+1), a)
	}
	args := p.Args
	if args == nil {
		args = []string{}
	}
	info := map[string]any{"@odata.type": MessageType, "MessageId": cmp.Or(p.Registry, registry) + p.ID,
		"Message": text, "MessageArgs": args, "Resolution": m.resolution, "MessageSeverity": "Warning"}
	if p.Text != "" {
		info["Severity"] = "Critical" // the older name, from which some clients find the message that counts
	}
	if p.Property != "" {
		info["RelatedProperties"] = []string{p.Property}
	}
	return info
}

// Registry is the registry Base as a resource: its file at this path, or what that leads to. It is nil for other paths.
func Registry(file, path string) Object {
	switch path {
	case file:
		return Object{"@odata.id": path, "@odata.type": "#MessageRegistryFile.v1_1_4.MessageRegistryFile", "Id": "Base",
			"Name": "Messages", "Registry": strings.TrimSuffix(registry, "."), "Languages": []string{"en"},
			"Location": []any{Object{"Language": "en", "Uri": file + "/en.json"}}}
	case file + "/en.json":
		all := Object{}
		for id, m := range messages {
			if id == licence {
				continue
			}
			params := make([]string, numberOfArgs(m.text))
			for i := range params {
				params[i] = "string"
			}
			all[id] = Object{"Description": m.text, "Message": m.text, "Severity": "Warning",
				"MessageSeverity": "Warning", "NumberOfArgs": len(params), "ParamTypes": params,
				"Resolution": m.resolution}
		}
		return Object{"@odata.id": path, "@odata.type": "#MessageRegistry.v1_6_3.MessageRegistry", "Id": "Base",
			"Name": "Messages", "Language": "en", "RegistryPrefix": "Base", "RegistryVersion": registryVersion,
			"OwningEntity": "DMTF", "Messages": all}
	}
	return nil
}

// numberOfArgs is the highest N of %N in a text.
func numberOfArgs(text string) (n int) {
	for strings.Contains(text, fmt.Sprint("%", n+1)) {
		n++
	}
	return n
}

// Write answers a request.
func Write(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // maps, texts and numbers
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that went away misses it
}
