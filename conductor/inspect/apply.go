package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Masking says from which rules secrets in inventory and plugin data are kept.
type Masking string

// Maskings, with Ironic's names.
const (
	MaskAlways    Masking = "always"    // from all
	MaskNever     Masking = "never"     // from none
	MaskSensitive Masking = "sensitive" // from those that are not sensitive themselves
)

// Options is how inspections are treated.
type Options struct {
	Hooks   *hook.Settings // nil: none
	BuiltIn []*node.InspectionRule
	Mask    Masking // "": always
	// LLDPTimeout is how long the agent waits for switches to be heard.
	LLDPTimeout time.Duration
	// Call makes the requests of api-call; nil refuses them.
	Call func(Call) error
}

// Call is a request that a rule wants to be made: a GET whose answer has a status below 400.
type Call struct {
	Rule    string // UUID
	URL     string
	Headers map[string]string
	Proxies map[string]string // by scheme
	Timeout time.Duration
	Retries int
	Backoff time.Duration // before the second retry; doubled each time
}

// RuleError says which rule failed, where, and why. For a sensitive rule its text names the rule alone.
type RuleError struct {
	Rule *node.InspectionRule
	Part string // "condition 1 (eq)", "action 2 (fail)"
	Err  error
}

func (e *RuleError) Error() string {
	if e.Rule.Sensitive {
		return title(e.Rule) + " failed; it is sensitive, so how is not shown"
	}
	return fmt.Sprintf("%s: %s: %v", title(e.Rule), e.Part, e.Err)
}

func (e *RuleError) Unwrap() error { return e.Err }

// title names a rule in a sentence.
func title(r *node.InspectionRule) string {
	if r.Description == "" {
		return "inspection rule " + r.UUID
	}
	return fmt.Sprintf("inspection rule %s (%s)", r.UUID, strings.TrimSuffix(r.Description, "."))
}

// Run applies an inspection's results: the hooks, the BMC's address of a machine that enrolled itself, and then the
// rules, those given and the built-in ones, by their priorities. After an error f is half done; its inventory is
// unchanged.
func Run(f *hook.Found, rules []*node.InspectionRule, o Options) error {
	if !f.Node.DiscoveredAt.IsZero() {
		f.PluginData["auto_discovered"] = true
	}
	if o.Hooks != nil {
		if err := hook.Run(f, o.Hooks); err != nil {
			return err
		}
	}
	if !f.Node.DiscoveredAt.IsZero() && f.Node.Provision == node.Enroll {
		setAddress(f)
	}
	all := slices.Concat(rules, o.BuiltIn)
	Order(all)
	for _, r := range all {
		if r.Phase != PhaseMain && r.Phase != "" {
			continue
		}
		if err := apply(f, r, &o, nil); err != nil {
			return err
		}
	}
	return nil
}

// setAddress records the address of the node's BMC, as the machine reports it, in the words of its driver. It is never
// a credential.
func setAddress(f *hook.Found) {
	var addr netip.Addr
	for _, key := range []string{"bmc_address", "bmc_v6address"} {
		text, _ := f.Inventory[key].(string)
		text, _, _ = strings.Cut(text, "/")
		a, err := netip.ParseAddr(text)
		if err == nil && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !addr.IsValid() {
			addr = a
		}
	}
	if !addr.IsValid() {
		f.Notes = append(f.Notes,
			hook.Note{Severity: "WARNING", Text: "the machine does not tell the address of its BMC"})
		return
	}
	key, value := "", addr.String()
	switch f.Node.Driver {
	case "ipmi":
		key = "ipmi_address"
	case "redfish", "idrac":
		key = "redfish_address"
		if addr.Is6() {
			value = "[" + value + "]"
		}
		value = "https://" + value
	default:
		return
	}
	if now, ok := f.Node.DriverInfo[key]; ok && now != "" {
		return
	}
	f.Node.DriverInfo = node.With(f.Node.DriverInfo, key, any(value))
}

// outcome records the results of a rule's parts; nil records nothing.
type outcome struct {
	conditions []bool // as far as they were looked at
	matched    bool
}

// apply applies one rule.
func apply(f *hook.Found, r *node.InspectionRule, o *Options, out *outcome) error {
	sc := &scope{found: f, mask: o.Mask != MaskNever && (o.Mask != MaskSensitive || !r.Sensitive)}
	part := ""
	sc.lacking = func(text string, err error) {
		if r.Sensitive {
			text, err = "a text", errors.New("the rule is sensitive, so which is not shown")
		} else {
			text = strconv.Quote(text)
		}
		f.Notes = append(f.Notes,
			hook.Note{Severity: "WARNING",
				Text: fmt.Sprintf("%s: %s: %s stays as it is, since it can't be filled in: %v", title(r), part, text,
					err)})
	}
	name := func(kind string, i int, p map[string]any) string {
		if r.Sensitive {
			return kind + " " + strconv.Itoa(i+1)
		}
		return fmt.Sprintf("%s %d (%v)", kind, i+1, p["op"])
	}
	for i, c := range r.Conditions {
		part = name("condition", i, c)
		ok, err := sc.holds(c)
		if err != nil {
			return &RuleError{r, part, err}
		}
		if out != nil {
			out.conditions = append(out.conditions, ok)
		}
		if !ok {
			return nil
		}
	}
	if out != nil {
		out.matched = true
	}
	for i, a := range r.Actions {
		part = name("action", i, a)
		notes := len(f.Notes)
		if err := sc.act(a, &Options{Call: func(c Call) error {
			c.Rule = r.UUID
			if o.Call == nil {
				return errors.New("requests are not made here")
			}
			return o.Call(c)
		}}); err != nil {
			return &RuleError{r, part, err}
		}
		if r.Sensitive && a["op"] == "log" {
			for j := notes; j < len(f.Notes); j++ {
				f.Notes[j].Text = title(r) + " logged something; it is sensitive, so that is not shown"
			}
		}
	}
	return nil
}

// call reads the arguments of api-call.
func (sc *scope) call(args map[string]any, o *Options) error {
	c := Call{URL: pyString(args["url"]), Timeout: 5 * time.Second, Retries: 3, Backoff: 300 * time.Millisecond}
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("url is not an http or https URL")
	}
	seconds := func(name string, into *time.Duration, least float64) error {
		if args[name] == nil {
			return nil
		}
		n, err := numeric(args[name])
		if err != nil || n < least || n > 60 {
			return fmt.Errorf("%s is not a number of seconds up to 60", name)
		}
		*into = time.Duration(n * float64(time.Second))
		return nil
	}
	if err := cmp.Or(seconds("timeout", &c.Timeout, 0.001), seconds("backoff_factor", &c.Backoff, 0)); err != nil {
		return err
	}
	if args["retries"] != nil {
		n, err := numeric(args["retries"])
		if err != nil || n < 0 || n > 10 || n != float64(int(n)) {
			return errors.New("retries is not a whole number up to 10")
		}
		c.Retries = int(n)
	}
	for name, into := range map[string]*map[string]string{"headers": &c.Headers, "proxies": &c.Proxies} {
		if args[name] == nil {
			continue
		}
		m, ok := args[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s is not an object", name)
		}
		*into = map[string]string{}
		for k, v := range m {
			(*into)[k] = pyString(v)
		}
	}
	return o.Call(c)
}

// Calls reports whether any of the rules makes requests.
func Calls(rules []*node.InspectionRule) bool {
	return slices.ContainsFunc(rules, func(r *node.InspectionRule) bool {
		return slices.ContainsFunc(r.Actions, func(a map[string]any) bool { return a["op"] == "api-call" })
	})
}
