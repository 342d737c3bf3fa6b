package bootentry

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A parsed GRUB script: GRUB's manual, "Shell-like scripting". The language has no pipes, background jobs and
// redirections; while and until exist, but are refused: no generator writes them.
type (
	stmt interface{}

	// command is a command with its words, or an assignment.
	command struct {
		line  int
		words []word
	}
	// ifStmt is if, elif, else.
	ifStmt struct {
		conds  [][]stmt
		bodies [][]stmt
		other  []stmt
	}
	forStmt struct {
		name  string
		words []word
		body  []stmt
	}
	funcStmt struct {
		name string
		body []stmt
	}
	// menuStmt is menuentry, submenu or hiddenentry.
	menuStmt struct {
		line        int
		sub, hidden bool
		words       []word
		body        []stmt
	}

	word []piece
	// piece is text, or a variable.
	piece struct {
		text     string
		variable bool
		quoted   bool
	}
)

// plain returns a word without variables and quotes, as reserved words must be.
func (w word) plain() string {
	if len(w) == 1 && !w[0].variable && !w[0].quoted {
		return w[0].text
	}
	return ""
}

type token struct {
	line int
	word word // nil: the end of a command
}

const (
	maxTokens = 200_000
	maxNested = 32
	maxWord   = 8 << 10
)

type syntaxError struct {
	line int
	what string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.what) }

func nameByte(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}

// lex splits a script into tokens.
func lex(src string) ([]token, error) {
	var out []token
	line := 1
	var cur word
	started := false
	add := func(text string, quoted bool) {
		started = true
		if n := len(cur); n > 0 && !cur[n-1].variable && cur[n-1].quoted == quoted {
			cur[n-1].text += text
			return
		}
		cur = append(cur, piece{text: text, quoted: quoted})
	}
	flush := func() {
		if started {
			out = append(out, token{line, cur})
		}
		cur, started = nil, false
	}
	end := func() {
		flush()
		if n := len(out); n > 0 && out[n-1].word != nil {
			out = append(out, token{line, nil})
		}
	}
	// variable reads the variable after a dollar sign at i and returns the position after it.
	variable := func(i int, quoted bool) (int, error) {
		started = true
		j := i
		if j < len(src) && src[j] == '{' {
			k := strings.IndexByte(src[j:], '}')
			if k < 2 || k > 100 || strings.ContainsAny(src[j:j+k], "\n$\"'") {
				return 0, &syntaxError{line, "a variable that has no end"}
			}
			cur = append(cur, piece{src[j+1 : j+k], true, quoted})
			return j + k + 1, nil
		}
		if j < len(src) && (src[j] >= '0' && src[j] <= '9' || strings.IndexByte("?#@*", src[j]) >= 0) {
			cur = append(cur, piece{src[j : j+1], true, quoted})
			return j + 1, nil
		}
		for j < len(src) && nameByte(src[j], j == i) {
			j++
		}
		if j == i {
			add("$", quoted)
			return j, nil
		}
		cur = append(cur, piece{src[i:j], true, quoted})
		return j, nil
	}
	for i := 0; i < len(src); {
		if len(out) > maxTokens {
			return nil, &syntaxError{line, "too long a script"}
		}
		if n := len(cur); n > maxWord || n > 0 && len(cur[n-1].text) > maxWord {
			return nil, &syntaxError{line, "a word that is too long"}
		}
		c := src[i]
		switch c {
		case '\n', ';':
			end()
			if c == '\n' {
				line++
			}
			i++
		case ' ', '\t', '\r':
			flush()
			i++
		case '#':
			if started {
				add("#", false)
				i++
				continue
			}
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case '\\':
			switch {
			case i+1 < len(src) && src[i+1] == '\n':
				line++
			case i+1 < len(src):
				add(src[i+1:i+2], true)
			}
			i += 2
		case '\'':
			k := strings.IndexByte(src[i+1:], '\'')
			if k < 0 {
				return nil, &syntaxError{line, "a quotation that has no end"}
			}
			text := src[i+1 : i+1+k]
			add(text, true)
			line += strings.Count(text, "\n")
			i += k + 2
		case '"':
			add("", true)
			i++
			for {
				if i >= len(src) {
					return nil, &syntaxError{line, "a quotation that has no end"}
				}
				if n := len(cur); n > maxWord || len(cur[n-1].text) > maxWord {
					return nil, &syntaxError{line, "a word that is too long"}
				}
				if src[i] == '"' {
					i++
					break
				}
				switch {
				case src[i] == '\\' && i+1 < len(src) && strings.IndexByte("$\"\\`", src[i+1]) >= 0:
					add(src[i+1:i+2], true)
					i += 2
				case src[i] == '\\' && i+1 < len(src) && src[i+1] == '\n':
					line++
					i += 2
				case src[i] == '$':
					var err error
					if i, err = variable(i+1, true); err != nil {
						return nil, err
					}
				default:
					if src[i] == '\n' {
						line++
					}
					add(src[i:i+1], true)
					i++
				}
			}
		case '$':
			var err error
			if i, err = variable(i+1, false); err != nil {
				return nil, err
			}
		case '{', '}':
			alone := !started
			add(string(c), false)
			if alone {
				flush()
			}
			i++
		case '|', '&', '<', '>':
			return nil, &syntaxError{line, fmt.Sprintf("%q outside of quotes", c)}
		case 0:
			return nil, &syntaxError{line, "not a text"}
		default:
			add(string(c), false)
			i++
		}
	}
	end()
	return out, nil
}

type parser struct {
	tokens []token
	depth  int
}

func parseScript(src string) ([]stmt, error) {
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	list, stop, err := p.list()
	if err == nil && stop != "" {
		err = p.fault("%q without a beginning", stop)
	}
	return list, err
}

func (p *parser) fault(format string, args ...any) error {
	line := 0
	if len(p.tokens) > 0 {
		line = p.tokens[0].line
	}
	return &syntaxError{line, fmt.Sprintf(format, args...)}
}

// list reads statements up to a terminating word, which is consumed and returned.
func (p *parser) list() (out []stmt, stop string, err error) {
	if p.depth++; p.depth > maxNested {
		return nil, "", p.fault("too many things in each other")
	}
	defer func() { p.depth-- }()
	for len(p.tokens) > 0 {
		t := p.tokens[0]
		if t.word == nil {
			p.tokens = p.tokens[1:]
			continue
		}
		w := t.word.plain()
		if slices.Contains([]string{"then", "elif", "else", "fi", "do", "done", "}"}, w) {
			p.tokens = p.tokens[1:]
			return out, w, nil
		}
		s, err := p.statement(t, w)
		if err != nil {
			return nil, "", err
		}
		out = append(out, s)
	}
	return out, "", nil
}

func (p *parser) until(want ...string) ([]stmt, string, error) {
	list, stop, err := p.list()
	if err != nil {
		return nil, "", err
	}
	if slices.Contains(want, stop) {
		return list, stop, nil
	}
	return nil, "", p.fault("%q where %s belongs", stop, strings.Join(want, " or "))
}

func (p *parser) statement(t token, w string) (stmt, error) {
	p.tokens = p.tokens[1:]
	switch w {
	case "if":
		s := ifStmt{}
		for {
			cond, _, err := p.until("then")
			if err != nil {
				return nil, err
			}
			body, stop, err := p.until("elif", "else", "fi")
			if err != nil {
				return nil, err
			}
			s.conds, s.bodies = append(s.conds, cond), append(s.bodies, body)
			if stop == "else" {
				if s.other, stop, err = p.until("fi"); err != nil {
					return nil, err
				}
			}
			if stop == "fi" {
				return s, nil
			}
		}
	case "for":
		words := p.words(false)
		if len(words) < 2 || words[0].plain() == "" || words[1].plain() != "in" {
			return nil, p.fault("a for that is not understood")
		}
		if list, stop, err := p.list(); err != nil || stop != "do" || len(list) > 0 {
			return nil, errors.Join(p.fault("a for without do"), err)
		}
		body, _, err := p.until("done")
		return forStmt{words[0].plain(), words[2:], body}, err
	case "while", "until", "select", "case", "time":
		return nil, &syntaxError{t.line, w + " is not understood here"}
	case "function":
		words := p.words(true)
		if len(words) != 1 || words[0].plain() == "" {
			return nil, p.fault("a function that is not understood")
		}
		body, err := p.block()
		return funcStmt{words[0].plain(), body}, err
	case "menuentry", "submenu", "hiddenentry":
		words := p.words(true)
		body, err := p.block()
		return menuStmt{t.line, w == "submenu", w == "hiddenentry", words, body}, err
	case "{":
		return nil, &syntaxError{t.line, "a block without a command"}
	}
	return command{t.line, append([]word{t.word}, p.words(false)...)}, nil
}

// words reads the rest of a command, or up to a brace that opens a block.
func (p *parser) words(brace bool) []word {
	var out []word
	for len(p.tokens) > 0 && p.tokens[0].word != nil {
		if brace && p.tokens[0].word.plain() == "{" || p.tokens[0].word.plain() == "}" {
			break
		}
		out = append(out, p.tokens[0].word)
		p.tokens = p.tokens[1:]
	}
	return out
}

func (p *parser) block() ([]stmt, error) {
	for len(p.tokens) > 0 && p.tokens[0].word == nil {
		p.tokens = p.tokens[1:]
	}
	if len(p.tokens) == 0 || p.tokens[0].word.plain() != "{" {
		return nil, p.fault("a block that does not begin")
	}
	p.tokens = p.tokens[1:]
	body, _, err := p.until("}")
	return body, err
}
