// Command lint runs the linters that `make lint` adds to vet and staticcheck. It is a module of its own, so that the
// linters' dependencies stay out of the project's go.mod.
//
//	go vet -vettool=bin/lint ./...  linters that need types: errcheck, errorlint, contextcheck, bodyclose, unparam
//	lint text FILE...               linters of the source text: line width, spelling, plain words, exported comments
//	lint twins FILE...              functions of the same shape, apart from those that twins.txt lists
//	lint count FILE...              finds nothing: prints how much product code there is
//
// All findings are errors. A finding is waived by `//nolint:NAME reason` on its line, on the line before, or in the
// comment of its function; a waiver without a reason, or one that waives nothing, is a finding too.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	var check func(files []string) ([]string, error)
	switch {
	case len(os.Args) > 1 && os.Args[1] == "text":
		check = text
	case len(os.Args) > 1 && os.Args[1] == "twins":
		check = twins
	case len(os.Args) > 1 && os.Args[1] == "count":
		check = count
	default:
		unitchecker.Main(analyzers()...)
	}
	findings, err := check(os.Args[2:])
	for _, f := range findings {
		fmt.Fprintln(os.Stderr, f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
	}
	if err != nil || len(findings) > 0 {
		os.Exit(1)
	}
}
