package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"regexp"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"github.com/kkHAIKE/contextcheck"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"github.com/timakin/bodyclose/passes/bodyclose"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/buildssa"
	"golang.org/x/tools/go/packages"
	"mvdan.cc/unparam/check"
)

const project = "github.com/ingot-metal/ingot"

// A filter says whether a finding stands.
type filter func(pass *analysis.Pass, d analysis.Diagnostic) bool

func analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{
		waivable(errcheck.Analyzer, inProduct, losesData, notExcluded),
		waivable(errorlint.NewAnalyzer(), notEndOfFile),
		waivable(contextcheck.NewAnalyzer(contextcheck.Configuration{}), inProduct, notLogging),
		waivable(bodyclose.Analyzer, inProduct),
		waivable(unparam(), inProduct, notLiteral),
	}
}

// waivable returns the analyzer with filters, and with waivers as the package comment describes them. Generated files
// have no findings.
func waivable(a *analysis.Analyzer, filters ...filter) *analysis.Analyzer {
	wrapped := *a
	wrapped.Run = func(pass *analysis.Pass) (any, error) {
		if !strings.HasPrefix(pass.Pkg.Path(), project) {
			// go vet asks for the facts of dependencies as well: what a library does inside is not ours to judge.
			if a.ResultType == nil {
				return nil, nil
			}
			return reflect.Zero(a.ResultType).Interface(), nil
		}
		waivers, report := waiversOf(pass, a.Name), pass.Report
		inner := *pass
		inner.Report = func(d analysis.Diagnostic) {
			for _, stands := range filters {
				if !stands(pass, d) {
					return
				}
			}
			file := fileOf(pass, d.Pos)
			if file == nil || ast.IsGenerated(file) || waivers.cover(pass.Fset, d.Pos) {
				return
			}
			d.Message = a.Name + ": " + d.Message
			report(d)
		}
		result, err := a.Run(&inner)
		for _, w := range waivers {
			switch {
			case w.reason == "":
				report(analysis.Diagnostic{Pos: w.pos, Message: a.Name + ": a waiver needs a reason"})
			case !w.used && inProduct(pass, analysis.Diagnostic{Pos: w.pos}):
				report(analysis.Diagnostic{Pos: w.pos, Message: a.Name + ": this waives nothing"})
			}
		}
		return result, err
	}
	return &wrapped
}

// A waiver covers the lines from first to last of one file.
type waiver struct {
	pos         token.Pos
	file        string
	first, last int
	reason      string
	used        bool
}

type waivers []*waiver

var waiverComment = regexp.MustCompile(`^//nolint:([a-z]+)(?:\s+(.*))?$`)

func waiversOf(pass *analysis.Pass, name string) waivers {
	var all waivers
	for _, file := range pass.Files {
		if ast.IsGenerated(file) {
			continue
		}
		functions, code := map[*ast.CommentGroup]*ast.FuncDecl{}, map[int]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n.(type) {
			case nil, *ast.Comment, *ast.CommentGroup:
				return false
			}
			code[pass.Fset.Position(n.Pos()).Line], code[pass.Fset.Position(n.End()-1).Line] = true, true
			return true
		})
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Doc != nil {
				functions[f.Doc] = f
			}
		}
		for _, group := range file.Comments {
			for _, c := range group.List {
				m := waiverComment.FindStringSubmatch(c.Text)
				if m == nil || m[1] != name {
					continue
				}
				at := pass.Fset.Position(c.Pos())
				w := &waiver{pos: c.Pos(), file: at.Filename, first: at.Line, last: at.Line,
					reason: strings.TrimSpace(m[2])}
				if !code[at.Line] { // the comment has the line for itself, and is for the next one
					w.last++
				}
				if f := functions[group]; f != nil {
					// contextcheck looks for these itself, and then neither reports nor follows the function.
					w.used = name == "contextcheck"
					w.first, w.last = pass.Fset.Position(f.Pos()).Line, pass.Fset.Position(f.End()).Line
				}
				all = append(all, w)
			}
		}
	}
	return all
}

func (all waivers) cover(fset *token.FileSet, pos token.Pos) bool {
	at, covered := fset.Position(pos), false
	for _, w := range all {
		if w.file == at.Filename && w.first <= at.Line && at.Line <= w.last {
			w.used, covered = true, true
		}
	}
	return covered
}

func fileOf(pass *analysis.Pass, pos token.Pos) *ast.File {
	for _, f := range pass.Files {
		if f.FileStart <= pos && pos <= f.FileEnd {
			return f
		}
	}
	return nil
}

// inProduct drops findings in tests, and in packages that only tests use: what matters there is asserted,
// nothing outlives them, and their helpers take what the next test may need.
func inProduct(pass *analysis.Pass, d analysis.Diagnostic) bool {
	switch path := pass.Pkg.Path(); {
	case strings.HasPrefix(path, project+"/test/"), path == project+"/agent/machine/fake":
		return false
	default:
		return !strings.HasSuffix(path, "test") && !strings.HasSuffix(pass.Fset.Position(d.Pos).Filename, "_test.go")
	}
}

// path returns the nodes around a position, outermost first.
func path(pass *analysis.Pass, pos token.Pos) []ast.Node {
	var nodes []ast.Node
	file := fileOf(pass, pos)
	if file == nil {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil || pos < n.Pos() || n.End() <= pos {
			return false
		}
		nodes = append(nodes, n)
		return true
	})
	return nodes
}

// losesData drops a closing or removing that can lose nothing: of what is only read, or of a connection; one that is
// deferred (what was written is synced and closed before, where it matters); and one whose function gives up with an
// error of its own.
func losesData(pass *analysis.Pass, d analysis.Diagnostic) bool {
	nodes := path(pass, d.Pos)
	for i := len(nodes) - 1; i >= 0; i-- {
		call, ok := nodes[i].(*ast.CallExpr)
		if !ok {
			continue
		}
		name, written := "", true
		switch f := call.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
			if t := pass.TypesInfo.TypeOf(f.X); t != nil {
				written = writes(t)
			}
		}
		if !releasing(name) {
			return true
		}
		if strings.EqualFold(name, "close") && !written {
			return false
		}
		return !released(nodes[:i], d.Pos)
	}
	return true
}

func releasing(name string) bool {
	switch name {
	case "Close", "close", "Remove", "RemoveAll", "Rollback":
		return true
	}
	return false
}

// released reports whether a call inside nodes is deferred, or followed by a return of an error.
func released(nodes []ast.Node, pos token.Pos) bool {
	for i := len(nodes) - 1; i >= 0; i-- {
		switch n := nodes[i].(type) {
		case *ast.DeferStmt:
			return true
		case *ast.FuncLit, *ast.FuncDecl:
			return false
		case *ast.BlockStmt:
			if givesUp(n.List, pos) {
				return true
			}
		case *ast.CaseClause:
			if givesUp(n.Body, pos) {
				return true
			}
		}
	}
	return false
}

// writes reports whether closing a value can lose data: it can be synced, or it can be written but not read.
func writes(t types.Type) bool {
	has := func(name string) bool {
		object, _, _ := types.LookupFieldOrMethod(t, true, nil, name)
		_, is := object.(*types.Func)
		return is
	}
	return has("Sync") || has("Write") && !has("Read")
}

// givesUp reports whether the statements after pos end in a return of an error.
func givesUp(list []ast.Stmt, pos token.Pos) bool {
	if len(list) == 0 {
		return false
	}
	ret, ok := list[len(list)-1].(*ast.ReturnStmt)
	if !ok || ret.Pos() < pos || len(ret.Results) == 0 {
		return false
	}
	last := ret.Results[len(ret.Results)-1]
	id, isIdent := last.(*ast.Ident)
	return !isIdent || id.Name != "nil"
}

// notExcluded drops calls of functions whose error is always nil, or only says that an output is not read any more.
func notExcluded(pass *analysis.Pass, d analysis.Diagnostic) bool {
	nodes := path(pass, d.Pos)
	for i := len(nodes) - 1; i >= 0; i-- {
		if call, ok := nodes[i].(*ast.CallExpr); ok {
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			f, ok := pass.TypesInfo.Uses[sel.Sel].(*types.Func)
			return !ok || !excluded[f.FullName()]
		}
	}
	return true
}

// notLogging drops calls that lead to a log entry: a logger here is handed in, and takes nothing from a context.
func notLogging(_ *analysis.Pass, d analysis.Diagnostic) bool {
	chain, _, _ := strings.Cut(strings.TrimPrefix(d.Message, "Function `"), "`")
	switch chain[strings.LastIndex(chain, ">")+1:] {
	case "Debug", "Info", "Warn", "Error":
		return false
	}
	return true
}

// notEndOfFile drops comparisons with io.EOF: a Reader promises to return it as it is, and one that wraps it has not
// come to its end.
func notEndOfFile(pass *analysis.Pass, d analysis.Diagnostic) bool {
	found := false
	for _, n := range path(pass, d.Pos) {
		switch n.(type) {
		case *ast.BinaryExpr, *ast.CaseClause, *ast.SwitchStmt:
			ast.Inspect(n, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if ok && (sel.Sel.Name == "EOF" || sel.Sel.Name == "ErrUnexpectedEOF") {
					found = true
				}
				return !found
			})
		}
	}
	return !found
}

var literal = regexp.MustCompile(`\$\d+ - result`)

// notLiteral drops results of function literals: they have those of their function.
func notLiteral(_ *analysis.Pass, d analysis.Diagnostic) bool { return !literal.MatchString(d.Message) }

// unparam wraps a checker that was made for whole programs: it sees one package, which is all it judges.
func unparam() *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: "unparam", Doc: "reports parameters and results that are not used, or always the same",
		Requires: []*analysis.Analyzer{buildssa.Analyzer},
		Run: func(pass *analysis.Pass) (any, error) {
			var c check.Checker
			c.Packages([]*packages.Package{{
				Fset: pass.Fset, Syntax: pass.Files, Types: pass.Pkg, TypesInfo: pass.TypesInfo,
			}})
			c.ProgramSSA(pass.ResultOf[buildssa.Analyzer].(*buildssa.SSA).Pkg.Prog)
			issues, err := c.Check()
			if err != nil {
				return nil, fmt.Errorf("unparam: %w", err)
			}
			for _, issue := range issues {
				pass.Report(analysis.Diagnostic{Pos: issue.Pos(), Message: issue.Message()})
			}
			return nil, nil
		},
	}
}

// excluded functions return an error that is always nil, or that only reports that the reader of an output is gone.
var excluded = map[string]bool{
	"fmt.Fprint": true, "fmt.Fprintf": true, "fmt.Fprintln": true, "io.WriteString": true,
	"(*text/tabwriter.Writer).Flush": true, "(hash.Hash).Write": true,
	"crypto/rand.Read": true, "(*math/rand/v2.ChaCha8).Read": true,
}
