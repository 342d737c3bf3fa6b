package index

import (
	"bytes"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/test/kit"
)

// signed is an index with a signature of each kind, made by the programs that people make them with.
type signed struct {
	index []byte
	keys  map[string]Key
	sigs  map[string][]byte
}

func sign(t *testing.T) signed {
	t.Helper()
	kit.NeedPrograms(t, "minisign", "openssl")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	read := func(name string) []byte {
		b, err := os.ReadFile(in(name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	s := signed{index: sample().Marshal(), keys: map[string]Key{}, sigs: map[string][]byte{}}
	if err := os.WriteFile(in("x.ingot"), s.index, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"", "2"} {
		kit.Run(t, "minisign", "-G", "-W", "-p", in("mini"+who+".pub"), "-s", in("mini"+who+".key"))
		kit.Run(t, "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", in("ec"+who+".key"))
		kit.Run(t, "openssl", "ec", "-in", in("ec"+who+".key"), "-pubout", "-out", in("ec"+who+".pub"))
		for _, k := range []string{"mini", "ec"} {
			var err error
			if s.keys[k+who], err = ParseKey(string(read(k + who + ".pub"))); err != nil {
				t.Fatal(err)
			}
		}
	}
	kit.Run(t, "minisign", "-S", "-s", in("mini.key"), "-m", in("x.ingot"), "-x", in("hashed"), "-t",
		"a trusted comment")
	kit.Run(t, "minisign", "-S", "-l", "-s", in("mini.key"), "-m", in("x.ingot"), "-x", in("legacy"))
	kit.Run(t, "openssl", "dgst", "-sha256", "-sign", in("ec.key"), "-out", in("der"), in("x.ingot"))
	s.sigs["hashed"], s.sigs["legacy"] = read("hashed"), read("legacy")
	s.sigs["cosign"] = []byte(base64.StdEncoding.EncodeToString(read("der")))
	if bytes.Equal(bytes.Split(s.sigs["hashed"], []byte("\n"))[1][:4],
		bytes.Split(s.sigs["legacy"], []byte("\n"))[1][:4]) {
		t.Fatal("the two signatures of minisign are of one kind")
	}
	return s
}

func TestSignatures(t *testing.T) {
	s := sign(t)
	mini, ec, both := []Key{s.keys["mini2"], s.keys["mini"]}, []Key{s.keys["ec2"], s.keys["ec"]},
		[]Key{s.keys["ec"], s.keys["mini"]}
	for kind, sig := range s.sigs {
		right, wrong, other := mini, []Key{s.keys["mini2"]}, ec
		if kind == "cosign" {
			right, wrong, other = ec, []Key{s.keys["ec2"]}, mini
		}
		for _, keys := range [][]Key{right, both} {
			if err := VerifySignature(s.index, sig, keys); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		if err := VerifySignature(s.index, append(bytes.Clone(sig), '\n'), right); err != nil {
			t.Errorf("%s with a line end more: %v", kind, err)
		}
		for _, c := range []struct {
			keys []Key
			want string
		}{{wrong, "trusted"}, {other, "none of the trusted keys"}, {nil, "no trusted keys"},
			{[]Key{{}}, "none of the trusted keys"}} {
			err := VerifySignature(s.index, sig, c.keys)
			var refused *images.Error
			if !errors.As(err, &refused) || refused.Remedy == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, keys %v: %v, want %q", kind, c.keys, err, c.want)
			}
		}
		for i := range s.index {
			if i%11 == 0 || i > len(s.index)-3 {
				b := bytes.Clone(s.index)
				b[i] ^= 4
				if VerifySignature(b, sig, right) == nil {
					t.Errorf("%s: byte %d of the index was changed", kind, i)
				}
			}
		}
		// The untrusted comment is not verified. Everything after it is.
		from := bytes.IndexByte(sig, '\n') + 1
		for i := from; i < len(sig)-1; i++ {
			for _, bit := range []byte{1, 0x20} {
				b := bytes.Clone(sig)
				b[i] ^= bit
				if VerifySignature(s.index, b, right) == nil {
					t.Errorf("%s: byte %d of the signature, %q, was changed to %q", kind, i, sig[i], b[i])
				}
			}
		}
		for i := range len(sig) - 1 {
			if VerifySignature(s.index, sig[:i], right) == nil {
				t.Errorf("%s: the first %d bytes of %d are enough", kind, i, len(sig))
			}
		}
	}
	if err := VerifySignature(s.index, make([]byte, MaxSignature+1), both); err == nil ||
		!strings.Contains(err.Error(), "no signature is") {
		t.Errorf("a huge one: %v", err)
	}
	if n := s.keys["mini"].String(); !strings.HasPrefix(n, "minisign key ") || len(n) != 13+16 ||
		!strings.HasPrefix(s.keys["ec"].String(), "cosign key ") {
		t.Errorf("names of keys: %v", s.keys)
	}
}

// TestSeveralSignatures: a file may hold several signatures, of which one has to hold.
func TestSeveralSignatures(t *testing.T) {
	s := sign(t)
	other := append(bytes.Clone(s.index), 0)
	for _, c := range []struct{ sig, key string }{{"hashed", "mini"}, {"legacy", "mini"}, {"cosign", "ec"}} {
		for _, with := range []string{"hashed", "legacy", "cosign"} {
			for _, file := range [][]byte{JoinSignatures(s.sigs[c.sig], s.sigs[with]),
				JoinSignatures(s.sigs[with], s.sigs[c.sig]), JoinSignatures([]byte("what is that?"), s.sigs[c.sig])} {
				for _, text := range [][]byte{file, bytes.ReplaceAll(file, []byte("\n"), []byte("\r\n"))} {
					if err := VerifySignature(s.index, text, []Key{s.keys[c.key]}); err != nil {
						t.Errorf("%s with %s: %v", c.sig, with, err)
					}
					if err := VerifySignature(other, text, []Key{s.keys[c.key]}); err == nil ||
						!strings.Contains(err.Error(), "hold") {
						t.Errorf("%s with %s, for another index: %v", c.sig, with, err)
					}
				}
			}
		}
	}
	// A repeated signature is included once, and joining joined files adds nothing.
	both := JoinSignatures(s.sigs["hashed"], s.sigs["cosign"], s.sigs["hashed"])
	if again := JoinSignatures(both, s.sigs["cosign"]); !bytes.Equal(again, both) || len(apart(both)) != 2 {
		t.Errorf("joined again:\n%s\nand before:\n%s", again, both)
	}
	var many [][]byte
	for i := range maxSignatures + 1 {
		many = append(many, []byte{'a' + byte(i)})
	}
	if b := JoinSignatures(many[1:]...); b == nil {
		t.Error("as many as may be are too many")
	}
	for what, files := range map[string][][]byte{"none": {nil, []byte("\n")}, "too many": many,
		"too long": {make([]byte, MaxSignature), s.sigs["hashed"]}} {
		if b := JoinSignatures(files...); b != nil {
			t.Errorf("%s: %q", what, b)
		}
	}
	if err := VerifySignature(s.index,
		append(bytes.Join(many, []byte("\n\n")), append([]byte("\n\n"), s.sigs["cosign"]...)...),
		[]Key{s.keys["ec"]}); err == nil || !strings.Contains(err.Error(), "10 parts") {
		t.Errorf("too many: %v", err)
	}
}

func TestParseKeyRefuses(t *testing.T) {
	kit.NeedPrograms(t, "openssl")
	run := func(args ...string) string { return kit.Run(t, "openssl", args...) }
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	run("ecparam", "-name", "secp384r1", "-genkey", "-noout", "-out", file("p384"))
	run("genrsa", "-out", file("rsa"), "2048")
	for name, text := range map[string]string{
		"nothing":       "",
		"a word":        "RWhello",
		"another curve": run("ec", "-in", file("p384"), "-pubout"),
		"RSA":           run("rsa", "-in", file("rsa"), "-pubout"),
		"a secret key":  run("ec", "-in", file("p384")),
		"two keys":      run("ec", "-in", file("p384"), "-pubout") + run("ec", "-in", file("p384"), "-pubout"),
		"half a key":    "-----BEGIN PUBLIC KEY-----\nabc",
	} {
		_, err := ParseKey(text)
		var refused *images.Error
		if !errors.As(err, &refused) || refused.Remedy == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzVerifySignature(f *testing.F) {
	key, err := ParseKey("RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3")
	if err != nil {
		f.Fatal(err)
	}
	ec, err := ParseKey(
		"-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE8nXRh950IZbRj8Ra/N9sbqOPZrfM\n5/KAQN0/KjHcorm/J5yctVd7iEcnessRQjU917hmKO6JWVGHpDguIyakZA==\n-----END PUBLIC KEY-----\n")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("untrusted comment: x\nRUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\ntrusted comment: y\nQtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==\n"))
	f.Add([]byte("MEUCIQDx"))
	f.Add([]byte("MEUCIQDx\n\nuntrusted comment: x\nRUQf\n\n"))
	f.Fuzz(func(t *testing.T, sig []byte) {
		if VerifySignature([]byte("index"), sig, []Key{key, ec}) == nil {
			t.Fatal("somebody has signed something without a key")
		}
	})
}
