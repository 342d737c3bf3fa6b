package controller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

const (
	hintAuth      = "check redfish_username and redfish_password, and that the account is enabled"
	hintPrivilege = "give the account the privileges of an administrator"
	hintSilent    = "check redfish_address, that Redfish is switched on in the controller, and that no firewall is between"
	hintBusy      = "wait for the controller to finish what it does; if it stays so, reset it"
	hintTrust     = "set redfish_verify_ca to the certificate authority, or to false in a network that is trusted"
	hintAddress   = "check redfish_address: this is no Redfish service"
	hintQueue     = "a change waits for a restart of the machine: restart it, or delete the controller's jobs (step management.clear_job_queue of interface idrac-redfish)"
	hintSessions  = "set redfish_auth_type to auto or basic"
)

// message is one of an error of a service.
type message struct {
	MessageID string `json:"MessageId"`
	Message   string
}

// messagesOf reads the messages of an error's body; none when it is no error of the standard.
func messagesOf(body []byte) []message {
	var doc struct {
		Error struct {
			Code, Message string
			Info          []message `json:"@Message.ExtendedInfo"`
		}
	}
	if json.Unmarshal(body, &doc) != nil {
		return nil
	}
	if len(doc.Error.Info) == 0 && doc.Error.Code != "" {
		return []message{{doc.Error.Code, doc.Error.Message}}
	}
	return doc.Error.Info
}

// id is a message's name without registry and version.
func (m message) id() string { return m.MessageID[strings.LastIndex(m.MessageID, ".")+1:] }

// pendingMessages are Dell's, of a queue in which a job waits for a restart of the machine.
var pendingMessages = []string{"LC068", "SYS011"}

func saysBusy(all []message) bool {
	return slices.ContainsFunc(all, func(m message) bool { return slices.Contains(busyMessages, m.id()) })
}

// Message is one of the reasons that a service gave for declining.
type Message struct {
	ID string // without registry and version
	// said is its text with its arguments and the properties that it is about.
	said string
}

// Names reports whether a message is about a property or parameter.
func (m Message) Names(property string) bool { return strings.Contains(m.said, property) }

// Messages are the reasons that a service gave for an error; none when it gave no reasons.
func Messages(err error) (all []Message) {
	var answered *schemas.Error
	if !errors.As(err, &answered) {
		return nil
	}
	for _, m := range answered.ExtendedInfos {
		said := append([]string{m.Message}, m.MessageArgs...)
		all = append(all, Message{message{MessageID: m.MessageID}.id(),
			strings.Join(append(said, m.RelatedProperties...), " ")})
	}
	return all
}

// says are the words of a service: the texts of its messages, else only the status. What is not of the standard is not
// repeated: it may be anything.
func (c *Controller) says(status int, all []message) error {
	var texts []string
	for _, m := range all {
		if text := c.cleaned(m.Message); text != "" {
			texts = append(texts, text)
		} else if m.MessageID != "" {
			texts = append(texts, c.cleaned(m.MessageID))
		}
	}
	s := fmt.Sprintf("the controller answered %d", status)
	if name := http.StatusText(status); name != "" {
		s += " " + name
	}
	if len(texts) > 0 {
		texts = texts[:min(len(texts), 3)]
		s += ": " + strings.Join(texts, " ")
	}
	return errors.New(s)
}

// locations are addresses in texts of a service. It may repeat that of an image, whose path is a secret.
var locations = regexp.MustCompile(`(?i)(https?://[^/\s'"]*)/[^\s'"]*`)

// cleaned is a text of a service, bounded, without what a terminal would obey, without the paths of addresses and the
// account's password.
func (c *Controller) cleaned(s string) string {
	s = locations.ReplaceAllString(s, "$1/...")
	if c.access.Password != "" {
		s = strings.ReplaceAll(s, c.access.Password, "******")
	}
	runes := []rune(strings.ToValidUTF8(s, "?"))
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = ' '
		}
	}
	return strings.Join(strings.Fields(string(runes[:min(len(runes), 300)])), " ")
}

// Error turns an error of a call into one that the engine and an operator can act on; nil stays nil.
func (c *Controller) Error(op string, err error) error {
	if err == nil {
		return nil
	}
	pe := c.classify(err)
	pe.Op, pe.Addr = op, c.access.Base.Host
	return pe
}

func (c *Controller) classify(err error) *power.Error {
	var pe *power.Error
	var answered *schemas.Error
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	var ne net.Error
	var guarded *dial.RefusedError
	switch {
	case errors.As(err, &pe):
		known := *pe
		return &known
	case errors.As(err, &answered):
		return c.fromStatus(answered)
	case errors.Is(err, errPassword):
		return &power.Error{Kind: power.Auth, Err: errPassword, Hint: hintAuth}
	case errors.Is(err, errNoSessions):
		return &power.Error{Kind: power.Config, Err: cause(err), Hint: hintSessions}
	case errors.Is(err, errElsewhere), errors.Is(err, errTooLarge), errors.Is(err, errBudget):
		return &power.Error{Kind: power.Refused, Err: cause(err), Hint: hintAddress}
	case errors.As(err, &guarded):
		return &power.Error{Kind: power.Config, Err: guarded, Hint: "correct redfish_address"}
	case errors.Is(err, errCrowd):
		return &power.Error{Kind: power.Busy, Err: errCrowd, Hint: hintBusy}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &power.Error{Kind: power.Unreachable, Err: fmt.Errorf("no answer in time: %w", cause(err)),
			Hint: hintSilent}
	case errors.As(err, &authority), errors.As(err, &invalid), errors.As(err, &name), errors.As(err, &verify):
		return &power.Error{Kind: power.Config, Err: fmt.Errorf("the certificate is not trusted: %w", cause(err)),
			Hint: hintTrust}
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return &power.Error{Kind: power.Config, Err: errors.New("the service does not speak TLS"),
			Hint: "begin redfish_address with http:// if that is meant"}
	case errors.As(err, &syntax), errors.As(err, &typ):
		return &power.Error{Kind: power.Refused, Err: errors.New("the answer is not Redfish"), Hint: hintAddress}
	case errors.As(err, &dns):
		return &power.Error{Kind: power.Unreachable, Err: fmt.Errorf("look up host name: %w", dns),
			Hint: "correct redfish_address or the name server"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &power.Error{Kind: power.Unreachable, Err: errors.New("nothing listens on this port"), Hint: hintSilent}
	case closed(err):
		return &power.Error{Kind: power.Unreachable, Err: errors.New("the controller closed the connection"),
			Hint: hintBusy}
	case errors.As(err, &ne):
		return &power.Error{Kind: power.Unreachable, Err: cause(err), Hint: hintSilent}
	}
	return &power.Error{Kind: power.Refused, Err: errors.New(c.cleaned(cause(err).Error())), Hint: hintAddress}
}

// cause is an error without the method and URL that http.Client puts before it.
func cause(err error) error {
	var wrapped *url.Error
	for errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return err
}

// HasJob reports whether an error says that the controller's queue has a job that has to end first.
func HasJob(err error) bool {
	return slices.ContainsFunc(Messages(err), func(m Message) bool { return slices.Contains(pendingMessages, m.ID) })
}

func (c *Controller) fromStatus(e *schemas.Error) *power.Error {
	all := []message{}
	for _, m := range e.ExtendedInfos {
		all = append(all, message{m.MessageID, m.Message})
	}
	if len(all) == 0 && e.Code != "" {
		all = append(all, message{e.Code, e.Message})
	}
	status := e.HTTPReturnedStatusCode
	said := c.says(status, all)
	switch {
	case saysBusy(all), status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests,
		status == http.StatusGatewayTimeout, status == http.StatusBadGateway:
		return &power.Error{Kind: power.Busy, Err: said, Hint: hintBusy}
	case slices.ContainsFunc(all, func(m message) bool { return slices.Contains(pendingMessages, m.id()) }):
		return &power.Error{Kind: power.Refused, Err: said, Hint: hintQueue}
	case slices.ContainsFunc(all, func(m message) bool { return strings.Contains(m.id(), "License") }):
		return &power.Error{Kind: power.Unsupported, Err: said, Hint: "the controller lacks a licence for it: install one"}
	case status == http.StatusUnauthorized:
		return &power.Error{Kind: power.Auth, Err: said, Hint: hintAuth}
	case status == http.StatusForbidden:
		return &power.Error{Kind: power.Auth, Err: said, Hint: hintPrivilege}
	case status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented:
		return &power.Error{Kind: power.Unsupported, Err: said, Hint: "this controller can't do it"}
	case len(all) == 0:
		return &power.Error{Kind: power.Refused, Err: said, Hint: hintAddress}
	}
	return &power.Error{Kind: power.Refused, Err: said,
		Hint: "the machine may be in a state where this can't be done; the controller's log may say why"}
}

// Status is the HTTP status with which a service declined; 0 when it did not.
func Status(err error) int {
	var answered *schemas.Error
	if errors.As(err, &answered) {
		return answered.HTTPReturnedStatusCode
	}
	return 0
}
