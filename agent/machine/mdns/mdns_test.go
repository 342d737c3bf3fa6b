package mdns

import (
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// message is an answer with one text of one name.
func message(t testing.TB, name string, words ...string) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{Response: true}, Answers: []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeTXT,
			Class: dnsmessage.ClassINET},
		Body: &dnsmessage.TXTResource{TXT: words}}}}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnswer(t *testing.T) {
	question, err := question(Service, dnsmessage.TypeTXT)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		message []byte
		want    string
	}{
		"a conductor":   {message(t, Service, "path=", "ingot_agents=192.0.2.1:6386"), "192.0.2.1:6386"},
		"in capitals":   {message(t, strings.ToUpper(Service), "ingot_agents=[fd00::1]:6386"), "[fd00::1]:6386"},
		"an Ironic":     {message(t, Service, "path=/v1", "protocol=http"), ""},
		"other service": {message(t, "printer._ipp._tcp.local.", "ingot_agents=192.0.2.1:6386"), ""},
		"no address":    {message(t, Service, "ingot_agents=conductor"), ""},
		"no port":       {message(t, Service, "ingot_agents=192.0.2.1:0"), ""},
		"a group":       {message(t, Service, "ingot_agents=224.0.0.251:6386"), ""},
		"anywhere":      {message(t, Service, "ingot_agents=0.0.0.0:6386"), ""},
		"a question":    {question, ""},
		"nothing":       {nil, ""},
		"half":          {message(t, Service, "ingot_agents=192.0.2.1:6386")[:40], ""},
	} {
		got, err := Answer(tt.message)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
}

// FuzzAnswer: what a neighbour sends is an address or an error, and no end of the agent.
func FuzzAnswer(f *testing.F) {
	f.Add(message(f, Service, "ingot_agents=192.0.2.1:6386"))
	f.Add([]byte(strings.Repeat("\xc0\x0c", 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if at, err := Answer(b); (at == "") == (err == nil) {
			t.Errorf("%q, %v", at, err)
		}
	})
}
