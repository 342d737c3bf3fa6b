package redfish

import (
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// managed carries out a step of the management interface.
func (b *bench) managed(name string, args map[string]any) error {
	b.Helper()
	_, err := b.carryOut(b.node(), b.management().Steps(nil), name, args, false)
	return err
}

// The keys of Secure Boot are cleared and restored from the next start on, on every personality.
func TestSecureBootKeys(t *testing.T) {
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name))
			for _, tt := range [][2]string{{"clear_secure_boot_keys", "none"}, {"reset_secure_boot_keys_to_default", "default"}} {
				was := b.Service.SecureBootKeys()
				if err := b.managed(tt[0], nil); err != nil || b.Service.SecureBootKeys() != was {
					t.Errorf("%s: %v, the keys are %s", tt[0], err, b.Service.SecureBootKeys())
				}
				b.Machine.Stop()
				b.Service.SecureBootKeys() // it sees that the machine is off
				b.Machine.Start()
				if got := b.Service.SecureBootKeys(); got != tt[1] {
					t.Errorf("%s: the keys are %s", tt[0], got)
				}
			}
		})
	}
}

// A controller that does not show Secure Boot for lack of a licence is inspected all the same; what needs it says so.
func TestSecureBootWithoutLicence(t *testing.T) {
	b := newBench(t, kit.Personality(t, "supermicro", service.SecureBootLicence), withCards)
	if found, err := b.inspect(t.Context()); err != nil || strings.Contains(found, "secure_boot") {
		t.Errorf("%s, %v", found, err)
	}
	if err := b.management().SetBootMode(t.Context(), b.node(), "uefi"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"keys": b.managed("clear_secure_boot_keys", nil),
		"on": b.management().SetSecureBoot(t.Context(), b.node(), true)} {
		if power.KindOf(err) != power.Unsupported || !strings.Contains(err.Error(), "licence") {
			t.Errorf("%s: %v", what, err)
		}
	}
	n := lacking(t)
	if _, err := b.carryOut(n, b.management().Steps(nil), "clear_secure_boot_keys", nil, false); power.KindOf(err) !=
		power.Unsupported {
		t.Errorf("without Secure Boot: %v", err)
	}
}

// The clock of every personality is set to a time, and to the conductor's; one that stays as it is fails the step.
func TestClock(t *testing.T) {
	for _, name := range service.Personalities() {
		b := newBench(t, kit.Personality(t, name, service.OddClock))
		want := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
		for _, target := range []string{"2031-02-03T04:05:06Z", "2031-02-03T05:05:06+01:00",
			"2031-02-03T05:05:06.25+0100", "2031-02-03T04:05:06"} {
			if err := b.managed("set_bmc_clock", map[string]any{"target_datetime": target,
				"datetime_local_offset": "+02:00"}); err != nil || b.Service.Clock().Sub(want).Abs() > time.Minute {
				t.Errorf("%s: set to %s: %v, it is %s", name, target, err, b.Service.Clock())
			}
		}
		if err := b.managed("set_bmc_clock", nil); err != nil || time.Since(b.Service.Clock()).Abs() > time.Minute {
			t.Errorf("%s: set to now: %v, it is %s", name, err, b.Service.Clock())
		}
		if b.Service.Sessions() > 1 {
			t.Errorf("%s: %d sessions", name, b.Service.Sessions())
		}
	}
	b := newBench(t, kit.Personality(t, "generic", service.ForgetsClock))
	err := b.managed("set_bmc_clock", map[string]any{"target_datetime": "2031-02-03T04:05:06Z"})
	if power.KindOf(err) != power.Refused || !strings.Contains(err.Error(), "NTP") {
		t.Errorf("a clock that stays: %v", err)
	}
	for _, args := range []map[string]any{{"target_datetime": "tomorrow"}, {"target_datetime": 5},
		{"datetime_local_offset": "CET"}, {"datetime_local_offset": "+25:00"}, {"datetime": "2031-02-03T04:05:06Z"}} {
		if err := b.managed("set_bmc_clock", args); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
