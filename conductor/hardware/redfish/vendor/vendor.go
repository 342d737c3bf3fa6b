// Package vendor has the vendor methods of Ironic's interface redfish: subscriptions to the events of a node's
// controller, and the ejection of its virtual media.
//
// What a subscription holds besides its address may be a secret (HttpHeaders): it is passed on, and in no error.
package vendor

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	"github.com/ingot-metal/ingot/conductor/node"
)

// machines opens the controllers of nodes.
type machines interface {
	// With reads a node's machine at its controller and does something with it, in bounded time.
	With(ctx context.Context, n *node.Node, op string,
		f func(ctx context.Context, c *controller.Controller, s *controller.System) error) error
	// DetachMedia takes the media out of the drives of devices, by their names in Ironic's API; of all if none are
	// named.
	DetachMedia(ctx context.Context, n *node.Node, devices []string) error
}

// Vendor is the interface.
type Vendor struct{ m machines }

// New makes the interface.
func New(m machines) *Vendor { return &Vendor{m} }

// retryPolicy is the argument that Ironic lacks: some controllers drop subscribers that miss an event.
const retryPolicy = "DeliveryRetryPolicy"

// Methods are Ironic's.
func (v *Vendor) Methods(*node.Node) ([]hardware.Method, error) {
	method := func(name, verb, text string) hardware.Method {
		return hardware.Method{Name: name, HTTPMethods: []string{verb}, Exclusive: true, Description: text}
	}
	eject := method("eject_vmedia", http.MethodPost,
		"Eject a virtual media device. If no device is provided then all attached devices will be ejected. Optional arguments: 'boot_device' - the boot device to eject, either 'cd', 'dvd', 'usb', or 'floppy'")
	eject.Async = true
	return []hardware.Method{
		method("create_subscription", http.MethodPost,
			"Creates a subscription on a node. Required argument: a dictionary of {'Destination': 'destination_url'}"),
		method("delete_subscription", http.MethodDelete,
			"Delete a subscription on a node. Required argument: a dictionary of {'id': 'subscription_bmc_id'}"),
		eject,
		method("get_all_subscriptions", http.MethodGet, "Returns all subscriptions on the node."),
		method("get_subscription", http.MethodGet,
			"Get a subscription on the node. Required argument: a dictionary of {'id': 'subscription_bmc_id'}"),
	}, nil
}

// ejectable are the devices of eject_vmedia by Ironic's names, and what they are in the rest of its API. A drive for
// DVDs takes what is meant for one of CDs.
var ejectable = map[string][]string{"": nil, "cd": {"cdrom"}, "dvd": {"cdrom"}, "usb": {"disk"}, "usbstick": {"disk"},
	"floppy": {"floppy"}}

// Check looks at what can be seen without the controller.
func (v *Vendor) Check(_ *node.Node, method string, params map[string]any) error {
	switch method {
	case "eject_vmedia":
		given := params["boot_device"]
		device, isText := given.(string)
		if _, known := ejectable[strings.ToLower(device)]; given != nil && (!isText || !known) {
			return hardware.Invalidf("Boot device %v is not a valid value; valid are cd, dvd, usb and floppy.", given)
		}
	case "create_subscription":
		return checkSubscription(params)
	case "delete_subscription", "get_subscription":
		if id, _ := params["id"].(string); id == "" {
			return hardware.Invalidf("id can't be None: it is the Id of a subscription, a text.")
		}
	case "get_all_subscriptions":
	default:
		return hardware.Invalidf("No handler for method %s", method)
	}
	return nil
}

func checkSubscription(params map[string]any) error {
	for _, key := range []string{"Context", "Protocol", retryPolicy} {
		if given := params[key]; given != nil {
			if _, isText := given.(string); !isText {
				return hardware.Invalidf("%s %v is not a valid string", key, given)
			}
		}
	}
	if given := params["HttpHeaders"]; given != nil {
		if _, isList := given.([]any); !isList {
			return hardware.Invalidf("HttpHeaders is not a list of headers")
		}
	}
	if given := params["EventTypes"]; given != nil {
		if _, ok := texts(given); !ok {
			return hardware.Invalidf("EventTypes %v is not a valid value: it is a list of texts", given)
		}
	}
	destination, _ := params["Destination"].(string)
	if u, err := url.Parse(destination); err != nil || u.Scheme == "" || u.Host == "" || !plain(destination) {
		return hardware.Invalidf("Destination is not a valid URI: it needs a scheme and a host, such as https://192.0.2.1/events")
	}
	return nil
}

// texts reads a list of texts.
func texts(v any) (out []string, ok bool) {
	list, ok := v.([]any)
	for _, one := range list {
		text, isText := one.(string)
		if !isText {
			return nil, false
		}
		out = append(out, text)
	}
	return out, ok
}

// Call runs a method.
func (v *Vendor) Call(ctx context.Context, n *node.Node, method string, params map[string]any) (any, error) {
	if err := v.Check(n, method, params); err != nil {
		return nil, err
	}
	if method == "eject_vmedia" {
		device, _ := params["boot_device"].(string)
		return nil, v.m.DetachMedia(ctx, n, ejectable[strings.ToLower(device)])
	}
	var result any
	var invalid *hardware.InvalidError // a fault of the request, which only the controller's answers show
	err := v.m.With(ctx, n, strings.ReplaceAll(method, "_", " "),
		func(ctx context.Context, c *controller.Controller, s *controller.System) (err error) {
			id, _ := params["id"].(string)
			switch method {
			case "create_subscription":
				result, err = Subscribe(ctx, c, s, params)
			case "delete_subscription":
				err = unsubscribe(ctx, c, id)
			case "get_all_subscriptions":
				result, err = subscriptions(ctx, c)
			case "get_subscription":
				result, err = one(ctx, c, id)
			}
			errors.As(err, &invalid)
			return err
		})
	if invalid != nil {
		return nil, invalid
	}
	return result, err
}

// eventService has the used properties of the service of that name.
type eventService struct {
	EventTypesForSubscription []string
	Subscriptions             schemas.Link
}

var errNoEvents = &power.Error{Kind: power.Unsupported, Err: errors.New("the controller has no event service"),
	Hint: "poll it instead, or update its firmware"}

func eventsOf(ctx context.Context, c *controller.Controller) (eventService, error) {
	var root struct{ EventService schemas.Link }
	var e eventService
	if err := c.Root(ctx, &root); err != nil {
		return e, err
	}
	ok, err := c.Try(ctx, string(root.EventService), &e)
	if err == nil && (!ok || e.Subscriptions == "") {
		err = errNoEvents
	}
	return e, err
}

// Subscription is one in Ironic's form: the properties that all controllers have.
type Subscription struct {
	ID          string   `json:"Id"`
	Context     string   `json:"Context"`
	Protocol    string   `json:"Protocol"`
	Destination string   `json:"Destination"`
	EventTypes  []string `json:"EventTypes"`
}

// plain reports whether a text is of printable ASCII alone.
func plain(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }) < 0
}

func readSubscription(ctx context.Context, c *controller.Controller, at string) (*Subscription, error) {
	s := &Subscription{}
	if _, err := c.Read(ctx, at, s); err != nil {
		return nil, err
	}
	s.ID, s.Context, s.Protocol = c.Clean(s.ID), c.Clean(s.Context), c.Clean(s.Protocol)
	if !plain(s.Destination) { // else it is the caller's, paths and all
		s.Destination = c.Clean(s.Destination)
	}
	for i, kind := range s.EventTypes {
		s.EventTypes[i] = c.Clean(kind)
	}
	return s, nil
}

// Subscribe makes a subscription of the arguments, which Check has seen.
func Subscribe(ctx context.Context, c *controller.Controller, s *controller.System,
	params map[string]any) (*Subscription, error) {
	e, err := eventsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"Destination": params["Destination"], "Protocol": "Redfish", "Context": "",
		"EventTypes": []string{"Alert"}}
	for _, key := range []string{"Protocol", "Context", "EventTypes"} {
		if given := params[key]; given != nil {
			body[key] = given
		}
	}
	if kinds, _ := texts(params["EventTypes"]); len(e.EventTypesForSubscription) > 0 {
		for _, kind := range kinds {
			if !slices.Contains(e.EventTypesForSubscription, kind) {
				return nil, hardware.Invalidf("EventTypes %s is not a valid value, allowed values %s",
					strings.Join(kinds, ", "), c.Clean(strings.Join(e.EventTypesForSubscription, ", ")))
			}
		}
	}
	if headers, _ := params["HttpHeaders"].([]any); len(headers) > 0 {
		body["HttpHeaders"] = headers
	}
	if given := params[retryPolicy]; given != nil && !s.Quirks.Has(quirk.NoRetryPolicy) {
		body[retryPolicy] = given
	}
	at, err := c.Create(ctx, string(e.Subscriptions), body)
	if err != nil {
		return nil, err
	}
	if at == "" {
		return nil, &power.Error{Kind: power.Refused,
			Err:  errors.New("the controller took the subscription, and does not say which one it is"),
			Hint: "list all subscriptions"}
	}
	return readSubscription(ctx, c, at)
}

// find looks for a subscription by the last part of its path. An ID is no part of a path that is asked for: it is a
// user's.
func find(ctx context.Context, c *controller.Controller, id string) (string, error) {
	e, err := eventsOf(ctx, c)
	if err != nil {
		return "", err
	}
	all, err := c.Members(ctx, string(e.Subscriptions))
	if err != nil {
		return "", err
	}
	for _, m := range all {
		if path.Base(m.Path) == id {
			return m.Path, nil
		}
	}
	return "", &power.Error{Kind: power.Refused, Err: errors.New("the controller has no subscription of this id"),
		Hint: "list all subscriptions"}
}

func unsubscribe(ctx context.Context, c *controller.Controller, id string) error {
	at, err := find(ctx, c, id)
	if err != nil {
		return err
	}
	return c.Delete(ctx, at)
}

func one(ctx context.Context, c *controller.Controller, id string) (*Subscription, error) {
	at, err := find(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return readSubscription(ctx, c, at)
}

// subscriptions is the collection as the service has it, with all of its members.
func subscriptions(ctx context.Context, c *controller.Controller) (map[string]any, error) {
	e, err := eventsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	all, err := c.Members(ctx, string(e.Subscriptions))
	if err != nil {
		return nil, err
	}
	members := []map[string]string{}
	for _, m := range all {
		if plain(m.Path) {
			members = append(members, map[string]string{"@odata.id": m.Path})
		}
	}
	return map[string]any{"@odata.id": c.Clean(string(e.Subscriptions)), "@odata.type": "#EventDestinationCollection.EventDestinationCollection",
		"Name": "Event Subscriptions", "Members": members, "Members@odata.count": len(members)}, nil
}
