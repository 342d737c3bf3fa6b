// Package redact takes secrets out of everything that is shown, recorded or logged. It alone defines what a secret is.
//
// Map and Value work on JSON values (objects and lists alike) and leave their argument unchanged; Restore undoes them
// in a client's request. Text works on sentences, where a secret can stand in a URL or after the name of a key. An
// empty secret stays empty, so that an operator sees that it is missing.
package redact

import (
	"encoding/json"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Stars stand for a secret.
const Stars = "******"

// words mark the keys whose values are never shown.
var words = []string{"password", "passwd", "pswd", "passphrase", "secret", "token", "private_key", "priv_key",
	"auth_key", "kg_key", "api_key", "community", "adminpass", "admin_pass", "new_pass", "credential"}

// Secret reports whether a key's value is a secret.
func Secret(key string) bool {
	key = strings.ToLower(key)
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(key, word) })
}

// Map copies an object with its secrets replaced, and the values of the keys in names.
func Map(m map[string]any, names ...string) map[string]any {
	return object(m, Stars, names)
}

// Value copies a JSON value with the secrets in it replaced, and the values of the keys in names.
func Value(v any, names ...string) any { return With(v, Stars, names...) }

// With is Value with a text of the caller's own in place of secrets.
func With(v any, stars string, names ...string) any {
	switch x := v.(type) {
	case map[string]any:
		return object(x, stars, names)
	case []any:
		c := make([]any, len(x))
		for i := range x {
			c[i] = With(x[i], stars, names...)
		}
		return c
	case string:
		return address(x)
	}
	return v
}

func object(m map[string]any, stars string, names []string) map[string]any {
	c := make(map[string]any, len(m))
	for k, v := range m {
		if v != nil && v != "" && (Secret(k) || slices.Contains(names, k)) {
			c[k] = stars
		} else {
			c[k] = With(v, stars, names...)
		}
	}
	return c
}

// JSON is Value for a document; one that can't be read becomes nil.
func JSON(doc json.RawMessage, names ...string) json.RawMessage {
	var v any
	if len(doc) == 0 || exact.Unmarshal(doc, &v) != nil {
		return nil
	}
	b, err := json.Marshal(Value(v, names...))
	if err != nil {
		return nil
	}
	return b
}

// Restore puts the stored secrets back where a client sent what Map shows instead: one that reads an object, changes
// something else and writes it back must not lose the password. Items of a list are those of the same place.
func Restore(sent, stored map[string]any) {
	for k, v := range sent {
		if old, ok := stored[k]; ok {
			sent[k] = restored(v, old)
		}
	}
}

func restored(sent, stored any) any {
	switch x := sent.(type) {
	case string:
		if s, text := stored.(string); x == Stars || text && x != s && x == address(s) {
			return stored
		}
	case map[string]any:
		if was, ok := stored.(map[string]any); ok {
			Restore(x, was)
		}
	case []any:
		was, _ := stored.([]any)
		for i := range min(len(x), len(was)) {
			x[i] = restored(x[i], was[i])
		}
	}
	return sent
}

// address hides the password and the secret parameters of a URL, and leaves other texts as they are.
func address(s string) string {
	if !strings.Contains(s, "://") || !strings.ContainsAny(s, "@?") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return s
	}
	if scheme, rest, _ := strings.Cut(s, "://"); u.User != nil {
		at := strings.LastIndexByte(rest[:len(rest)-len(afterAuthority(rest))], '@')
		if name, _, hasPassword := strings.Cut(rest[:at], ":"); hasPassword {
			s = scheme + "://" + name + ":" + Stars + rest[at:]
		}
	}
	front, query, ok := strings.Cut(s, "?")
	if !ok {
		return s
	}
	query, fragment, _ := strings.Cut(query, "#")
	parts := strings.Split(query, "&")
	for i, p := range parts {
		name, value, _ := strings.Cut(p, "=")
		if lower := strings.ToLower(name); value != "" &&
			(Secret(lower) || strings.Contains(lower, "sig") || strings.HasSuffix(lower, "key")) {
			parts[i] = name + "=" + Stars
		}
	}
	if s = front + "?" + strings.Join(parts, "&"); fragment != "" {
		s += "#" + fragment
	}
	return s
}

// afterAuthority returns the part of a URL without its scheme that follows user, host and port.
func afterAuthority(rest string) string {
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		return rest[i:]
	}
	return ""
}

// URL takes credentials, query and fragment out of a URL; other text stays unchanged.
func URL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return s
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

var (
	inText = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>\\]+`)
	// pairs are key=value, and "key": "value" as JSON and Python write it.
	pairs = regexp.MustCompile(`(?i)([\w.-]*(?:` + strings.Join(words, "|") +
		`)[\w-]*)(=|\\?["']\s*:\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\\"[^"\\]*\\"|[^\s,;&'"}\])]+)`)
)

// Text takes the secrets out of a sentence: credentials and queries of the URLs in it, and the values of secret keys.
func Text(s string) string {
	if strings.Contains(s, "://") {
		s = inText.ReplaceAllStringFunc(s, func(found string) string {
			core := strings.TrimRight(found, ".,;:!?)]}")
			return bare(core) + found[len(core):]
		})
	}
	if strings.ContainsAny(s, `="'`) && Secret(s) { // the expression is slow, and most texts name no such key
		s = withoutValues(s)
	}
	return s
}

// withoutValues replaces the values of secret keys. The end of a quoted address, such as that of Keystone's tokens, is
// no key of the words that follow it.
func withoutValues(s string) string {
	var b strings.Builder
	for {
		m := pairs.FindStringSubmatchIndex(s)
		switch {
		case m == nil && b.Len() == 0:
			return s
		case m == nil:
			return b.String() + s
		}
		key, value := s[:m[3]], s[m[6]:m[7]]
		b.WriteString(s[:m[6]])
		if rest := s[m[6]:]; s[m[4]] != '=' && strings.Trim(value[:1], `"'\`) != "" && endsAddress(key) {
			s = rest
			continue
		}
		b.WriteString(Stars)
		s = s[m[7]:]
	}
}

// endsAddress reports whether a text ends in an address.
func endsAddress(s string) bool {
	return strings.Contains(s[strings.LastIndexAny(s, " \t\n\"'<>\\")+1:], "://")
}

// Attr is a member of a log line without the secrets in it.
func Attr(a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		if text := a.Value.String(); Secret(a.Key) && text != "" {
			a.Value = slog.StringValue(Stars)
		} else if shown := Text(text); shown != text {
			a.Value = slog.StringValue(shown)
		}
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(Text(err.Error()))
		}
	}
	return a
}

// bare is URL, without its way of writing what needs no change anew. One that can't be read loses all after its scheme.
func bare(s string) string {
	if !strings.ContainsAny(s, "@?#") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		scheme, _, _ := strings.Cut(s, "://")
		return scheme + "://" + Stars
	}
	if u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		return s
	}
	return URL(s)
}
