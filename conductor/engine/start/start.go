// Package start decides how the system of an instance is started, by the machine's firmware or by kexec, and by which
// signs of life it is known to have come up.
//
// The decision is made with the request for a deployment, and kept as the arguments of the step boot_instance, from
// which all later code reads it. Errors are *node.InvalidError.
package start

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// How the installed system is started.
const (
	Reboot = "reboot" // by the machine's firmware
	Kexec  = "kexec"  // by the agent's kernel, without firmware
)

// Keys of instance_info and driver_info, the first of which goes before the second, and both before the configuration.
const (
	KeyMethod      = "boot_instance"
	KeySigns       = "sign_of_life"
	keySignTimeout = "sign_of_life_timeout"
)

// Options are the configuration's settings, and the features of a node's controller.
type Options struct {
	Method       string   // Reboot, which is the default, or Kexec; unless the node says otherwise
	Signs        []string // see signoflife.Parse; unless the node says otherwise
	PhoneHomeURL string   // where deployed systems reach this conductor; "": phone_home can't be requested
	PhoneHomeKey []byte   // makes the tokens of phone_home
	Drivers      drivers
	Log          *slog.Logger
}

// drivers reports the features of a node's controller.
type drivers interface {
	Open(n *node.Node) (power.Driver, error)
	Interface(n *node.Node, kind string) string
}

// Args says how a deployment starts its system, as decided at its request: the arguments of the step boot_instance. The
// zero value is a reboot without waiting for a sign.
type Args struct {
	Method  string   `json:"method,omitempty"`
	Signs   []string `json:"sign_of_life,omitempty"`
	Seconds int      `json:"sign_of_life_timeout,omitempty"` // 0: as configured
}

// Limits of sign_of_life_timeout.
const (
	minSignTimeout = 10 * time.Second
	maxSignTimeout = 24 * time.Hour
)

// Choose decides how a deployment starts its system. asked are the arguments with which the request names
// boot_instance, if it does.
func (o Options) Choose(n *node.Node, asked json.RawMessage) (Args, error) {
	var given struct {
		Method  *string `json:"method"`
		Signs   any     `json:"sign_of_life"`
		Timeout any     `json:"sign_of_life_timeout"`
	}
	if !catalog.NoArgs(asked) {
		dec := json.NewDecoder(bytes.NewReader(asked))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&given); err != nil {
			return Args{}, node.Invalidf(
				"step deploy.%s takes the arguments method, sign_of_life and sign_of_life_timeout: %v",
				catalog.StepBootInstance, err)
		}
	}
	a := Args{Method: o.Method}
	from := "the configuration's deploy.boot_instance"
	for _, info := range []struct {
		name   string
		values map[string]any
	}{{"driver_info", n.DriverInfo}, {"instance_info", n.InstanceInfo}} {
		if v := info.values[KeyMethod]; v != nil && v != "" {
			text, _ := v.(string)
			a.Method, from = text, info.name+"'s "+KeyMethod
			if text == "" {
				return a, node.Invalidf("%s is %v: use %s or %s", from, v, Reboot, Kexec)
			}
		}
	}
	if given.Method != nil {
		a.Method, from = *given.Method, "argument method of step deploy."+catalog.StepBootInstance
	}
	switch a.Method {
	case Kexec:
	case Reboot, "":
		a.Method = ""
	default:
		return a, node.Invalidf("%s is %q: use %s or %s", from, a.Method, Reboot, Kexec)
	}
	var err error
	if a.Signs, err = o.wantedSigns(n, given.Signs); err != nil || len(a.Signs) == 0 {
		return a, err
	}
	a.Seconds, err = signTimeout(first(given.Timeout, n.InstanceInfo[keySignTimeout], n.DriverInfo[keySignTimeout]))
	return a, err
}

func first(values ...any) any {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// wantedSigns are the signs of life that a deployment waits for.
func (o Options) wantedSigns(n *node.Node, given any) ([]string, error) {
	v := first(given, n.InstanceInfo[KeySigns], n.DriverInfo[KeySigns])
	if v == nil {
		v = o.Signs
	}
	signs, err := signoflife.Parse(v)
	if err != nil {
		return nil, node.Invalidf("%s: %v", KeySigns, err)
	}
	for _, s := range signs {
		switch s.Kind {
		case signoflife.PhoneHome:
			if o.PhoneHomeURL == "" || len(o.PhoneHomeKey) == 0 {
				return nil, node.Invalidf(
					"sign of life phone_home needs an address at which deployed systems reach this conductor: set deploy.phone_home_url, or ask for another sign")
			}
		case signoflife.Console:
			d, err := o.Drivers.Open(n)
			if err != nil {
				return nil, node.Invalidf("sign of life %s: %v", s, err)
			}
			_, ok := power.As[power.ConsoleWatcher](d)
			if err := d.Close(); err != nil {
				o.Log.Debug("close driver", "node", n.UUID, "err", err)
			}
			if !ok {
				return nil, node.Invalidf(
					"sign of life %s: the console of node %s can't be read (power interface %s): ask for another sign",
					s, n.UUID, cmp.Or(o.Drivers.Interface(n, "power"), "none"))
			}
		}
	}
	return signoflife.Texts(signs), nil
}

// signTimeout reads a number of seconds; nil is 0.
func signTimeout(v any) (int, error) {
	if v == nil || v == "" {
		return 0, nil
	}
	n, ok := instance.WholeNumber(v)
	if !ok || n < int64(minSignTimeout.Seconds()) || n > int64(min(maxSignTimeout.Seconds(), math.MaxInt32)) {
		return 0, node.Invalidf("%s is %v: it is a number of seconds from %d to %d", keySignTimeout, v,
			int(minSignTimeout.Seconds()), int(maxSignTimeout.Seconds()))
	}
	return int(n), nil
}

// JSON returns the stored form; nil for the zero value.
func (a Args) JSON() json.RawMessage {
	if a.Method == "" && len(a.Signs) == 0 {
		return nil
	}
	b, err := json.Marshal(a)
	if err != nil {
		return nil // of strings and a number: never
	}
	return b
}

// Wanted are the signs, read.
func (a Args) Wanted() []signoflife.Sign {
	signs, err := signoflife.Parse(a.Signs)
	if err != nil {
		return nil // they were checked when they were stored
	}
	return signs
}

// Of returns how a list of steps starts the installed system.
func Of(steps []node.JobStep) (a Args) {
	for _, s := range steps {
		if !s.InBand && !s.Plug && s.Interface == "deploy" && s.Name == catalog.StepBootInstance && len(s.Args) > 0 {
			if err := json.Unmarshal(s.Args, &a); err != nil {
				return Args{}
			}
		}
	}
	return a
}

// PhonesHome reports whether the system that these steps start is to call back, for which its config drive has to be
// made or completed.
func PhonesHome(steps []node.JobStep) bool {
	return signoflife.Has(Of(steps).Wanted(), signoflife.PhoneHome)
}

// Check refuses a deployment whose steps, once the request's are merged in, can't start the system in the requested
// way.
func Check(steps []node.JobStep) error {
	a := Of(steps)
	has := func(name string) bool {
		return slices.ContainsFunc(steps, func(s node.JobStep) bool {
			return s.InBand && s.Interface == "deploy" && s.Name == name && s.Priority > 0
		})
	}
	if a.Method == Kexec && !has(catalog.StepLoadKernel) {
		return node.Invalidf(
			"step deploy.%s can't be left out of a deployment that starts its system by kexec: set %s to %s, or give the step a priority", catalog.StepLoadKernel, KeyMethod, Reboot)
	}
	if PhonesHome(steps) && !has("write_configdrive") {
		return node.Invalidf(
			"step deploy.write_configdrive can't be left out while the sign of life phone_home is waited for: ask for another sign (%s), or give the step a priority", KeySigns)
	}
	return nil
}

// AddPhoneHome puts into the config drive among the arguments of the step write_configdrive what makes the system call
// back, if it is to.
func (o Options) AddPhoneHome(n *node.Node, j *node.Job, args json.RawMessage) (json.RawMessage, error) {
	if !PhonesHome(j.Steps) {
		return args, nil
	}
	const step = "write_configdrive"
	var a map[string]any
	if err := exact.Unmarshal(args, &a); err != nil {
		return nil, fmt.Errorf("read arguments of step %s: %w", step, err)
	}
	url := strings.TrimSuffix(o.PhoneHomeURL, "/") + signoflife.Path + signoflife.Token(o.PhoneHomeKey, n.UUID, j.ID)
	drive, err := signoflife.AddPhoneHome(a["configdrive"], url, cmp.Or(n.InstanceUUID, n.UUID))
	if err != nil {
		return nil, node.Invalidf("sign of life phone_home: %v", err)
	}
	a["configdrive"] = drive
	b, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("make arguments of step %s: %w", step, err)
	}
	return b, nil
}
