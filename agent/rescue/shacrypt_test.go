package rescue

import (
	"strings"
	"testing"
)

// TestSHACrypt compares with hashes that OpenSSL made.
func TestSHACrypt(t *testing.T) {
	for text, word := range map[string]string{
		"$5$abcd1234$7MvqD7QnusiUSpouyK6JYktNWIErSKLpFboybjozi72":                                                                "correct horse",
		"$6$abcd1234$UZoSj8deY/TFG/ZzsZIJnjBViMN5zGhOfVL9v93Es6se3ejV0guUbB63Vhx5eKp36RMQRrgdyXhuulpDggIH6/":                     "correct horse",
		"$6$rounds=1000$saltst$pTq1p6WdcOthzpbYD1/HaHycjLBJov19w5vlsRldoS0aMxrhf1vhFAZMa/ZXgEa16sIj2HZNdbz1LlBii7ilX/":           "x",
		"$5$rounds=1400$anotherlongsalts$Rx.j8H.h8HjEDGomFU8bDkXm3XIUnzyxf12oP84Bnq1":                                            "a very much longer text to encrypt.  This one even stretches over morethan one line.",
		"$6$rounds=1400$anotherlongsalts$POfYwTEok97VWcjxIiSOjiykti.o/pQs.wPvMxQ6Fm7I6IoYN3CmLs66x9t0oSwbtEW7o7UmJEiDwGqd8p4ur1": "a very much longer text to encrypt.  This one even stretches over morethan one line.",
	} {
		if err := checkHash(text); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if !matches(text, []byte(word)) {
			t.Errorf("%s is not the hash of %q", text, word)
		}
		for _, other := range []string{"", word + "x", word[1:], strings.ToUpper(word) + " "} {
			if matches(text, []byte(other)) {
				t.Errorf("%s is the hash of %q", text, other)
			}
		}
	}
}

func TestSHACryptRefused(t *testing.T) {
	for text, want := range map[string]string{
		"$6$abcd1234$short": "damaged", "$5$": "damaged", "$6$rounds=": "rounds", "$6$rounds=x$a$b": "rounds",
		"$6$rounds=999$a$" + strings.Repeat("a", 86):       "rounds",
		"$6$rounds=999999999$a$" + strings.Repeat("a", 86): "may have",
		"$6$abcdefghijklmnopq$" + strings.Repeat("a", 86):  "damaged",
		"$1$abcd1234$" + strings.Repeat("a", 22):           "bcrypt or SHA-crypt",
	} {
		if err := checkHash(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzSHACrypt(f *testing.F) {
	f.Add("$6$rounds=1000$saltst$pTq1p6WdcOthzpbYD1/HaHycjLBJov19w5vlsRldoS0aMxrhf1vhFAZMa/ZXgEa16sIj2HZNdbz1LlBii7ilX/")
	f.Add("$5$$")
	f.Fuzz(func(t *testing.T, text string) {
		if isSHA(text) && checkHash(text) == nil {
			h, err := parseSHA(text)
			if err != nil {
				t.Fatal(err)
			}
			if h.rounds = 1; h.matches([]byte("x")) && h.sum == "" {
				t.Error("an empty hash fits")
			}
		}
	})
}
