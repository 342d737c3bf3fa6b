package bootentry

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// test evaluates [ ... ].
func (s *shell) test(a []string) (bool, error) {
	t := &tester{s: s, a: a}
	v, err := t.or()
	if err == nil && len(t.a) > 0 {
		err = fmt.Errorf("the condition [ %s ] is not understood here", strings.Join(a, " "))
	}
	return v, err
}

type tester struct {
	s     *shell
	a     []string
	depth int
}

func (t *tester) or() (bool, error) {
	if t.depth++; t.depth > maxNested {
		return false, errors.New("a condition with too many parts in each other")
	}
	defer func() { t.depth-- }()
	v, err := t.and()
	for err == nil && len(t.a) > 0 && t.a[0] == "-o" {
		t.a = t.a[1:]
		var w bool
		w, err = t.and()
		v = v || w
	}
	return v, err
}

func (t *tester) and() (bool, error) {
	v, err := t.unary()
	for err == nil && len(t.a) > 0 && t.a[0] == "-a" {
		t.a = t.a[1:]
		var w bool
		w, err = t.unary()
		v = v && w
	}
	return v, err
}

func (t *tester) unary() (bool, error) {
	if len(t.a) == 0 {
		return false, nil
	}
	if len(t.a) >= 3 {
		if v, ok, err := t.s.compare(t.a[0], t.a[1], t.a[2]); ok || err != nil {
			t.a = t.a[3:]
			return v, err
		}
	}
	op := t.a[0]
	switch {
	case op == "!":
		if t.depth++; t.depth > maxNested {
			return false, errors.New("a condition with too many parts in each other")
		}
		defer func() { t.depth-- }()
		t.a = t.a[1:]
		v, err := t.unary()
		return !v, err
	case op == "(":
		t.a = t.a[1:]
		v, err := t.or()
		if err == nil && (len(t.a) == 0 || t.a[0] != ")") {
			err = errors.New("a condition with ( but without )")
		}
		if err == nil {
			t.a = t.a[1:]
		}
		return v, err
	case len(op) == 2 && op[0] == '-' && len(t.a) >= 2:
		arg := t.a[1]
		switch op[1] {
		case 'n':
			t.a = t.a[2:]
			return arg != "", nil
		case 'z':
			t.a = t.a[2:]
			return arg == "", nil
		case 'e', 'f', 's', 'd':
			t.a = t.a[2:]
			vol, name, err := t.s.resolve(arg)
			if err != nil {
				return false, nil
			}
			fi := t.s.d.stat(vol, name)
			switch {
			case fi == nil:
				return false, nil
			case op[1] == 's':
				return fi.Size() > 0, nil
			case op[1] == 'f':
				return !fi.IsDir(), nil
			case op[1] == 'd':
				return fi.IsDir(), nil
			}
			return true, nil
		}
	}
	t.a = t.a[1:]
	return op != "", nil
}

func (s *shell) compare(a, op, b string) (v, ok bool, err error) {
	switch op {
	case "=", "==":
		return a == b, true, nil
	case "!=":
		return a != b, true, nil
	case "-eq", "-ne", "-lt", "-le", "-gt", "-ge":
		x, err1 := strconv.ParseInt(cmp.Or(a, "0"), 0, 64)
		y, err2 := strconv.ParseInt(cmp.Or(b, "0"), 0, 64)
		if err1 != nil || err2 != nil {
			return false, true, fmt.Errorf("%q and %q are compared as numbers", a, b)
		}
		c := cmp.Compare(x, y)
		return map[string]bool{"-eq": c == 0, "-ne": c != 0, "-lt": c < 0, "-le": c <= 0, "-gt": c > 0,
			"-ge": c >= 0}[op], true, nil
	case "-nt", "-ot", "-pgt", "-plt", "<", ">":
		return false, true, fmt.Errorf("the comparison %s is not understood here", op)
	}
	return false, false, nil
}
