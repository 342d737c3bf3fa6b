package redact

import (
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestSecretsAreHiddenHoweverDeep(t *testing.T) {
	in := map[string]any{
		"ipmi_username": "admin", "ipmi_password": "canary", "ipmi_hex_kg_key": "00", "empty_password": "",
		"none_password": nil,
		"accounts": []any{map[string]any{"user": "a", "password": "canary"},
			[]any{map[string]any{"token": "canary"}}},
		"inner":   map[string]any{"snmp_community": "canary", "port": 161.0},
		"secrets": []any{"canary"}, "credentials": map[string]any{"a": "canary"},
		"image_source": "https://user:canary@images/x.img?sig=canary&v=2#top", "plain": "https://images/x.img?v=2",
		"odd": "http://u:can@ary:canary@h", "configdrive": "canary",
	}
	got := Map(in, "configdrive")
	want := map[string]any{
		"ipmi_username": "admin", "ipmi_password": Stars, "ipmi_hex_kg_key": Stars, "empty_password": "",
		"none_password": nil,
		"accounts":      []any{map[string]any{"user": "a", "password": Stars}, []any{map[string]any{"token": Stars}}},
		"inner":         map[string]any{"snmp_community": Stars, "port": 161.0},
		"secrets":       Stars, "credentials": Stars,
		"image_source": "https://user:******@images/x.img?sig=******&v=2#top", "plain": "https://images/x.img?v=2",
		"odd": "http://u:******@h", "configdrive": Stars,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Map = %v, want %v", got, want)
	}
	if in["ipmi_password"] != "canary" {
		t.Error("Map changed what it was given")
	}
	Restore(got, in)
	if !reflect.DeepEqual(got, in) {
		t.Errorf("Restore = %v, want %v", got, in)
	}
}

func TestRestoreKeepsWhatIsNew(t *testing.T) {
	sent := map[string]any{"a": "new", "l": []any{Stars, "y", "z"}, "password": Stars}
	Restore(sent, map[string]any{"a": "old", "l": []any{"x"}})
	if want := (map[string]any{"a": "new", "l": []any{"x", "y", "z"}, "password": Stars}); !reflect.DeepEqual(sent,
		want) {
		t.Errorf("Restore = %v, want %v", sent, want)
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "",
		"write image to /dev/sda: EOF":      "write image to /dev/sda: EOF",
		"see https://docs/a.html.":          "see https://docs/a.html.",
		"get https://u:canary@h/a?b=canary": "get https://h/a",
		`Get "http://h/a?X=canary": refused (http://u:canary@h).`:         `Get "http://h/a": refused (http://h).`,
		"http://u:canary%zz@h is none":                                    "http://****** is none",
		"login with password=canary, user=a":                              "login with password=******, user=a",
		`{"ipmi_password": "can\"ary", "a": "b"}`:                         `{"ipmi_password": ******, "a": "b"}`,
		`{'auth_token': 'canary', 'a': 1}`:                                `{'auth_token': ******, 'a': 1}`,
		`Post "https://h:5000/v3/auth/tokens": context deadline exceeded`: `Post "https://h:5000/v3/auth/tokens": context deadline exceeded`,
		`Post \"https://h/v3/auth/tokens\": EOF (password=canary)`:        `Post \"https://h/v3/auth/tokens\": EOF (password=******)`,
		`get "http://h/tokens": password=canary`:                          `get "http://h/tokens": password=******`,
		`{"http://h/token": "canary", "/v3/auth/tokens": 1234}`:           `{"http://h/token": ******, "/v3/auth/tokens": ******}`,
		"Invalid or missing agent token received.":                        "Invalid or missing agent token received.",
		"driver_info has no ipmi_password: give it one":                   "driver_info has no ipmi_password: give it one",
		"ipa-api-token=canary root=/dev/sda":                              "ipa-api-token=****** root=/dev/sda",
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestAttr(t *testing.T) {
	var b strings.Builder
	log := slog.New(
		slog.NewTextHandler(&b,
			&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { return Attr(a) }}))
	log.Info("get http://u:canary@h/", "err", errors.New("get http://u:canary@h/?a=canary: EOF"), "token", "canary",
		"node", "n1", "took", time.Second)
	if got := b.String(); strings.Contains(got, "canary") || !strings.Contains(got, "node=n1 took=1s") ||
		!strings.Contains(got, `err="get http://h/: EOF"`) {
		t.Errorf("the line is %s", got)
	}
}

func TestURL(t *testing.T) {
	for in, want := range map[string]string{"http://u:p@h/i?token=x#f": "http://h/i", "debian.raw": "debian.raw"} {
		if got := URL(in); got != want {
			t.Errorf("URL(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("get ", " from there")
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before, "canary") || strings.Contains(after, "canary") || before != "" &&
			!strings.HasSuffix(before, " ") {
			return
		}
		if got := Text(before + "http://u:canary@h/ password=canary " + after); strings.Contains(got, "canary") {
			t.Errorf("Text kept it: %q", got)
		}
	})
}
