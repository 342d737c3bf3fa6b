package access

import (
	"bytes"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// Hashes of "secret" as htpasswd -B makes them, and of "other" in the spelling of other tools.
const (
	hashSecret = "$2y$04$0CGs9zuFZsXVeNVGCpHlQ.ICpOKqcGP9ITkMxbWeFK/FZJg2tU/c2"
)

func hashed(t testing.TB, password, version string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return "$" + version + string(h[3:])
}

// basicFixture is a file with users, and a clock that the test moves.
func basicFixture(t *testing.T, text string) (b *Basic, path string, log *bytes.Buffer, pass func(time.Duration)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log = &bytes.Buffer{}
	b, err := OpenBasic(path, nil, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	b.now = func() time.Time { return now }
	return b, path, log, func(d time.Duration) { now = now.Add(d) }
}

func login(b *Basic, header ...string) (*Actor, *Refusal) {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header["Authorization"] = header
	a, err := b.Authenticate(r)
	var refusal *Refusal
	errors.As(err, &refusal)
	return a, refusal
}

func pair(name, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))
}

func TestBasicLogin(t *testing.T) {
	b, _, log, _ := basicFixture(t, "# users\n\nalice:"+hashed(t, "secret", "2y")+"\r\nbob:"+hashed(t, "a:b", "2b")+
		"\n  carol:"+hashed(t, "pässword", "2a")+"  \n")
	for _, c := range []struct{ name, password string }{{"alice", "secret"}, {"bob", "a:b"}, {"carol", "pässword"},
		{"alice", "secret"}} {
		a, refusal := login(b, pair(c.name, c.password))
		if refusal != nil || a.String() != c.name || !a.All {
			t.Errorf("%s = %+v, %v", c.name, a, refusal)
		}
	}
	for _, c := range []struct {
		header []string
		status int
		text   string
	}{
		{nil, 401, "Authorization required"},
		{[]string{pair("alice", "wrong")}, 401, "Incorrect username or password"},
		{[]string{pair("unknown", "secret")}, 401, "Incorrect username or password"},
		{[]string{pair("", "secret")}, 401, "Incorrect username or password"},
		{[]string{pair("alice", "")}, 401, "Incorrect username or password"},
		{[]string{""}, 400, "Could not parse"},
		{[]string{"Basic"}, 400, "Could not parse"},
		{[]string{"Bearer abc"}, 400, "Only Basic"},
		{[]string{"Basic !!!"}, 400, "Could not decode"},
		{[]string{"Basic " + base64.StdEncoding.EncodeToString([]byte("nocolon"))}, 400, "Could not decode"},
		{[]string{pair("\xff", "x")}, 400, "Could not decode"},
		{[]string{pair("alice", "secret"), pair("alice", "secret")}, 400, "Could not parse"},
		{[]string{"Basic " + strings.Repeat("A", 10_000)}, 400, "Could not parse"},
	} {
		a, refusal := login(b, c.header...)
		if refusal == nil || refusal.Status != c.status || !strings.Contains(refusal.Message, c.text) ||
			(refusal.Challenge == `Basic realm="Baremetal API"`) != (c.status == 401) {
			t.Errorf("%.40q = %+v, %+v, want %d %s", c.header, a, refusal, c.status, c.text)
		}
	}
	if !strings.Contains(log.String(), "user=unknown") || strings.Contains(log.String(), "secret") {
		t.Errorf("log = %s", log)
	}
}

func TestUsersAreReadAgain(t *testing.T) {
	b, path, log, pass := basicFixture(t, "alice:"+hashed(t, "one", "2y")+"\n")
	in := func(name, password string, want bool) {
		t.Helper()
		if _, refusal := login(b, pair(name, password)); (refusal == nil) != want {
			t.Errorf("login of %s with %s: %v, want %v", name, password, refusal, want)
		}
	}
	in("alice", "one", true)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
	}
	write("alice:" + hashed(t, "two", "2y") + "\nbob:" + hashed(t, "three", "2y") + "\n")
	in("alice", "one", false) // although it was verified a moment ago
	in("alice", "two", true)
	in("bob", "three", true)
	for _, broken := range []string{"", "alice:" + hashed(t, "evil", "2y")[:40], "alice:" + hashed(t, "evil", "2y") +
		"\nbob", "alice:{SHA}abc\n",
		"alice:" + hashed(t, "evil", "2y") + "\nalice:" + hashed(t, "evil", "2y") + "\n"} {
		log.Reset()
		write(broken)
		in("alice", "two", true)
		pass(2 * time.Second)
		in("alice", "evil", false)
		if n := strings.Count(log.String(), "those of before stay"); n != 1 {
			t.Errorf("file %q was told of %d times: %s", broken, n, log)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	pass(2 * time.Second)
	in("alice", "two", true)
	write("alice:" + hashed(t, "four", "2y") + "\n")
	in("alice", "four", true)
	in("bob", "three", false)

	// One that may still be being written is left alone for a moment.
	if err := os.WriteFile(path, []byte("carol:"+hashed(t, "five", "2y")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pass(2 * time.Second)
	soon := b.now().Add(-50 * time.Millisecond)
	if err := os.Chtimes(path, soon, soon); err != nil {
		t.Fatal(err)
	}
	in("carol", "five", false)
	pass(time.Second)
	in("carol", "five", true)
}

func TestVerifiedPasswordsAreRemembered(t *testing.T) {
	b, _, _, pass := basicFixture(t, "alice:"+hashed(t, "secret", "2y")+"\n")
	remembered := func() bool { _, _, _, ok := b.lookup("alice", "secret"); return ok }
	if remembered() {
		t.Error("it is remembered before it was verified")
	}
	login(b, pair("alice", "wrong"))
	login(b, pair("unknown", "secret"))
	if len(b.verified) != 0 {
		t.Errorf("wrong passwords are remembered: %d", len(b.verified))
	}
	login(b, pair("alice", "secret"))
	if !remembered() {
		t.Error("a verified password is not remembered")
	}
	for digest := range b.verified {
		if bytes.Contains(digest[:], []byte("secret")) {
			t.Error("the password itself is kept")
		}
	}
	pass(verifiedLife)
	if remembered() {
		t.Error("it is remembered for too long")
	}
	if _, refusal := login(b, pair("alice", "secret")); refusal != nil {
		t.Error(refusal)
	}
}

// TestUnknownUsersCostAsMuch: the time of an answer must not tell which names exist.
func TestUnknownUsersCostAsMuch(t *testing.T) {
	h, err := bcrypt.GenerateFromPassword([]byte("x"), 6)
	if err != nil {
		t.Fatal(err)
	}
	b, _, _, _ := basicFixture(t, "alice:"+string(h)+"\nbob:"+hashed(t, "y", "2y")+"\n")
	hash, known, _, _ := b.lookup("unknown", "x")
	if cost, err := bcrypt.Cost(hash); known || err != nil || cost != 6 {
		t.Errorf("an unknown name is compared with a hash of cost %d, %v, want that of the costliest user", cost, err)
	}
}

func TestManyLoginsAtOnce(t *testing.T) {
	b, _, _, _ := basicFixture(t, "alice:"+hashed(t, "secret", "2y")+"\n")
	b.log = slog.New(slog.DiscardHandler)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			password := "secret"
			if i%8 == 0 {
				password = "wrong"
			}
			if _, refusal := login(b, pair("alice", password)); (refusal == nil) != (password == "secret") {
				t.Errorf("%s: %v", password, refusal)
			}
		})
	}
	wg.Wait()
}

func TestHtpasswdFaultsAreNamed(t *testing.T) {
	good := hashed(t, "x", "2y")
	for text, want := range map[string]string{
		"":                                 "no users",
		"# nothing\n":                      "no users",
		"alice\n":                          "line 1 is not",
		"a:" + good + "\n:" + good:         "line 2 has no name",
		"alice:$apr1$x$y":                  "not bcrypt",
		"alice:" + good + "x":              "not whole",
		"alice:$2y$31" + good[6:]:          "cost 31",
		"alice:$2y$00" + good[6:]:          "the hash of alice",
		"al\x00ice:" + good:                "no name",
		"a:" + good + "\n\na:" + good + "": "line 3: a is there twice",
	} {
		if users, err := parseHtpasswd([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q = %v, %v, want %q", text, users, err, want)
		}
	}
	if _, err := OpenBasic(filepath.Join(t.TempDir(), "none"), nil, nil); err == nil {
		t.Error("a missing file is taken at the start")
	}
}

func FuzzHtpasswd(f *testing.F) {
	f.Add([]byte("alice:" + hashSecret + "\n"))
	f.Add([]byte("# x\r\n\r\na:b:c\n:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		users, err := parseHtpasswd(b)
		if (err == nil) != (len(users) > 0) {
			t.Fatalf("%d users and %v", len(users), err)
		}
		for name, hash := range users {
			if name == "" || strings.ContainsAny(name, ":\n") {
				t.Errorf("name %q", name)
			}
			if c, err := bcrypt.Cost(hash); err != nil || c > maxCost {
				t.Errorf("hash %q: %d, %v", hash, c, err)
			}
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add("Basic YTpi")
	f.Add("basic \t YTpi ")
	f.Add("Bearer x")
	f.Fuzz(func(t *testing.T, h string) {
		name, password, err := basicHeader([]string{h})
		var refusal *Refusal
		if err != nil {
			if !errors.As(err, &refusal) || refusal.Status != 400 && refusal.Status != 401 {
				t.Errorf("%q: %v", h, err)
			}
			return
		}
		if again, pw, err := basicHeader([]string{pair(name, password)}); err != nil || again != name ||
			pw != password {
			t.Errorf("%q: %q %q, and read again %q %q %v", h, name, password, again, pw, err)
		}
		tokenText(h)
	})
}
