// Package events is the event service of a virtual controller: subscriptions, and the delivery of what happens to the
// machine to their destinations.
//
// Delivery is that of small controllers: one event at a time, from a short queue whose oldest events give way,
// with a short time for each, once. An event that does not arrive is lost. Redirects are not followed.
package events

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

// NoRetryPolicy declines the property DeliveryRetryPolicy of a new subscription.
const NoRetryPolicy = "subscriptions have no DeliveryRetryPolicy"

// Bounds: subscriptions at a time, events that wait, the time for one delivery, the bytes read of its answer.
const (
	mostSubscriptions = 8
	queued            = 32
	deliveryTime      = 5 * time.Second
	longestURL        = 2048
)

const (
	home          = odata.Root + "/EventService"
	subscriptions = home + "/Subscriptions"
	testAction    = home + "/Actions/EventService.SubmitTestEvent"
)

// types are the kinds of event that can be subscribed to.
var types = []string{"Alert", "StatusChange", "ResourceUpdated", "ResourceAdded", "ResourceRemoved"}

type object = odata.Object

type subscription struct {
	shown   object
	address string
	kinds   []string
	context string
	header  http.Header
}

// Event is something that happened.
type Event struct {
	Kind, Message, Severity string
	Origin                  string // path of the resource
}

// Service has the subscriptions of one controller.
type Service struct {
	noPolicy bool
	log      *slog.Logger
	client   *http.Client
	queue    chan Event
	cancel   context.CancelFunc
	done     sync.WaitGroup

	mu     sync.Mutex
	subs   map[string]*subscription // by Id
	issued int
	sent   int
}

// New starts the service. Close ends it.
//
//nolint:contextcheck deliveries go on after the caller's context has ended
func New(has func(behaviour string) bool, log *slog.Logger) *Service {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Service{noPolicy: has(NoRetryPolicy), log: log, queue: make(chan Event, queued), cancel: cancel,
		subs: map[string]*subscription{}, client: &http.Client{Timeout: deliveryTime,
			// Real controllers do not check certificates of destinations unless told to.
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
				DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	s.done.Go(func() {
		for {
			select {
			case e := <-s.queue:
				s.deliver(ctx, e)
			case <-ctx.Done():
				return
			}
		}
	})
	return s
}

// Close ends deliveries.
func (s *Service) Close() {
	s.cancel()
	s.done.Wait()
}

// Extend adds the link to the service to the root.
func (s *Service) Extend(path string, o object) {
	if path == odata.Root {
		o["EventService"] = odata.Link(home)
	}
}

// Resource returns what is at a path; nil if there is nothing of this service.
func (s *Service) Resource(path string) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch path {
	case home:
		return object{"@odata.id": path, "@odata.type": "#EventService.v1_10_1.EventService", "Id": "EventService",
			"Name": "Event Service", "ServiceEnabled": true, "EventTypesForSubscription": types,
			"DeliveryRetryAttempts": 0, "DeliveryRetryIntervalSeconds": 0, "Subscriptions": odata.Link(subscriptions),
			"Status":  object{"State": "Enabled", "Health": "OK"},
			"Actions": object{"#EventService.SubmitTestEvent": object{"target": testAction}}}
	case subscriptions:
		return odata.Collection(path, "EventDestinationCollection", "Event subscriptions",
			slices.Sorted(maps.Keys(s.subs))...)
	}
	if id, is := strings.CutPrefix(path, subscriptions+"/"); is && s.subs[id] != nil {
		return maps.Clone(s.subs[id].shown)
	}
	return nil
}

// testParameters are those of the action that sends an event.
var testParameters = []string{"EventGroupId", "EventId", "EventTimestamp", "EventType", "Message", "MessageArgs",
	"MessageId", "MessageSeverity", "OriginOfCondition", "Severity"}

// Allow lists the methods, beside GET and HEAD, of a resource of this service.
func (s *Service) Allow(path string) string {
	switch {
	case path == subscriptions:
		return ", POST"
	case strings.HasPrefix(path, subscriptions+"/"):
		return ", DELETE"
	}
	return ""
}

// Do carries out a change; known is false if it is none of this service. location is the path of a new subscription.
func (s *Service) Do(method, path string, body object) (known bool, location string, problem *odata.Problem) {
	id, one := strings.CutPrefix(path, subscriptions+"/")
	switch {
	case method == http.MethodPost && path == subscriptions:
		location, problem = s.subscribe(body)
		return true, location, problem
	case method == http.MethodPost && path == testAction:
		for key := range body {
			if !slices.Contains(testParameters, key) {
				return true, "", odata.Fault("ActionParameterUnknown", "EventService.SubmitTestEvent", key)
			}
		}
		kind, _ := body["EventType"].(string)
		message, _ := body["Message"].(string)
		s.Notify(Event{Kind: kind, Message: message, Severity: "OK", Origin: home})
		return true, "", nil
	case method == http.MethodDelete && one:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.subs[id] == nil {
			return true, "", odata.Fault("ResourceMissingAtURI", path)
		}
		delete(s.subs, id)
		return true, "", nil
	}
	return false, "", nil
}

// subscribe makes a subscription.
func (s *Service) subscribe(body object) (string, *odata.Problem) {
	sub := &subscription{kinds: types, header: http.Header{}}
	protocol := ""
	for key, v := range body {
		text, isText := v.(string)
		switch key {
		case "Destination", "Context", "Protocol", "SubscriptionType", "DeliveryRetryPolicy":
			if !isText {
				return "", odata.Fault("PropertyValueTypeError", fmt.Sprint(v), key)
			}
		}
		switch key {
		case "Destination":
			sub.address = text
		case "Context":
			sub.context = text
		case "Protocol":
			protocol = text
		case "SubscriptionType":
			if text != "RedfishEvent" {
				return "", odata.Fault("PropertyValueNotInList", text, key)
			}
		case "DeliveryRetryPolicy":
			if s.noPolicy {
				p := odata.Fault("PropertyUnknown", key)
				p.Property = key
				return "", p
			}
			if !slices.Contains([]string{"TerminateAfterRetries", "SuspendRetries", "RetryForever"}, text) {
				return "", odata.Fault("PropertyValueNotInList", text, key)
			}
		case "EventTypes":
			if problem := sub.setKinds(v); problem != nil {
				return "", problem
			}
		case "HttpHeaders":
			if problem := sub.setHeaders(v); problem != nil {
				return "", problem
			}
		default:
			return "", odata.Fault("PropertyUnknown", key)
		}
	}
	switch u, err := url.Parse(sub.address); {
	case sub.address == "":
		return "", odata.Fault("PropertyMissing", "Destination")
	case protocol == "":
		return "", odata.Fault("PropertyMissing", "Protocol")
	case protocol != "Redfish":
		return "", odata.Fault("PropertyValueNotInList", protocol, "Protocol")
	case err != nil || len(sub.address) > longestURL || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", odata.Fault("PropertyValueFormatError", sub.address, "Destination")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.subs) >= mostSubscriptions {
		return "", odata.Fault("CreateLimitReachedForResource")
	}
	s.issued++
	id := fmt.Sprint(s.issued)
	location := subscriptions + "/" + id
	sub.shown = object{"@odata.id": location, "@odata.type": "#EventDestination.v1_15_0.EventDestination", "Id": id,
		"Name": "Event subscription " + id, "Destination": sub.address, "Context": sub.context, "Protocol": protocol,
		"SubscriptionType": "RedfishEvent", "EventTypes": sub.kinds, "HttpHeaders": []object{}}
	if policy, set := body["DeliveryRetryPolicy"]; set {
		sub.shown["DeliveryRetryPolicy"] = policy
	}
	s.subs[id] = sub
	return location, nil
}

func (sub *subscription) setKinds(v any) *odata.Problem {
	list, isList := v.([]any)
	if !isList {
		return odata.Fault("PropertyValueTypeError", fmt.Sprint(v), "EventTypes")
	}
	sub.kinds = []string{}
	for _, one := range list {
		kind, _ := one.(string)
		if !slices.Contains(types, kind) {
			return odata.Fault("PropertyValueNotInList", fmt.Sprint(one), "EventTypes")
		}
		sub.kinds = append(sub.kinds, kind)
	}
	return nil
}

// setHeaders reads headers in either of the forms of the standard: objects of names and values.
func (sub *subscription) setHeaders(v any) *odata.Problem {
	list, isList := v.([]any)
	if !isList {
		return odata.Fault("PropertyValueTypeError", "******", "HttpHeaders")
	}
	for _, one := range list {
		o, isObject := one.(object)
		if !isObject {
			return odata.Fault("PropertyValueTypeError", "******", "HttpHeaders")
		}
		for name, value := range o {
			sub.header.Set(name, fmt.Sprint(value))
		}
	}
	return nil
}

// Notify has an event delivered to those who subscribed to its kind.
func (s *Service) Notify(e Event) {
	for {
		select {
		case s.queue <- e:
			return
		default:
		}
		select {
		case <-s.queue: // the oldest
		default:
		}
	}
}

func (s *Service) deliver(ctx context.Context, e Event) {
	s.mu.Lock()
	s.sent++
	number := fmt.Sprint(s.sent)
	var to []*subscription
	for _, id := range slices.Sorted(maps.Keys(s.subs)) {
		if slices.Contains(s.subs[id].kinds, e.Kind) {
			to = append(to, s.subs[id])
		}
	}
	s.mu.Unlock()
	for _, sub := range to {
		if err := s.post(ctx, sub, e, number); err != nil {
			s.log.Info("an event was not delivered", "err", err)
		}
	}
}

func (s *Service) post(ctx context.Context, sub *subscription, e Event, number string) error {
	body, err := json.Marshal(object{"@odata.type": "#Event.v1_9_0.Event", "Id": number, "Name": "Event",
		"Context": sub.context, "Events": []object{{"MemberId": "0", "EventType": e.Kind, "EventId": number,
			"EventTimestamp": time.Now().UTC().Format(time.RFC3339), "Severity": e.Severity, "Message": e.Message,
			"MessageId": "Lab.1.0." + e.Kind, "OriginOfCondition": odata.Link(e.Origin)}}})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, sub.address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header = sub.header.Clone()
	r.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.CopyN(io.Discard, resp.Body, 4096)
	if err != nil && err != io.EOF {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %d", r.URL.Host, resp.StatusCode)
	}
	return nil
}
