// Helm renders a chart as `helm install` does on a cluster that has none of its objects yet. It is a module of its own,
// so that neither the product nor its other tests depend on Helm.
//
// The objects are printed as a list in JSON, the chart's notes last, as an object of the kind Notes. A sentence of the
// chart about its values is printed to standard error.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/provenance"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fl := flag.NewFlagSet("helm", flag.ContinueOnError)
	values := fl.String("values", "", "`file` with values")
	keyring := fl.String("verify", "", "compare an archive with its .prov, as helm verify does, by the keys in this `file`")
	release := fl.String("release", "ingot", "`name` of the release")
	namespace := fl.String("namespace", "default", "its `namespace`")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if fl.NArg() != 1 {
		return errors.New("which chart? Name its folder or archive")
	}
	if *keyring != "" {
		signatory, err := provenance.NewFromKeyring(*keyring, "")
		if err != nil {
			return err
		}
		_, err = signatory.Verify(fl.Arg(0), fl.Arg(0)+".prov")
		return err
	}
	chart, err := loader.Load(fl.Arg(0))
	if err != nil {
		return err
	}
	given := chartutil.Values{}
	if *values != "" {
		if given, err = chartutil.ReadValuesFile(*values); err != nil {
			return err
		}
	}
	all, err := chartutil.ToRenderValues(chart, given,
		chartutil.ReleaseOptions{Name: *release, Namespace: *namespace, Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return err
	}
	objects, err := read(files)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(objects)
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// read makes objects of rendered files. Keys that occur twice are an error.
func read(files map[string]string) ([]map[string]any, error) {
	var objects []map[string]any
	var notes []string
	for _, name := range slices.SortedFunc(maps.Keys(files), cmp.Compare[string]) {
		text := files[name]
		if strings.HasPrefix(filepath.Base(name), "_") {
			continue
		}
		if filepath.Base(name) == "NOTES.txt" {
			notes = append(notes, text)
			continue
		}
		for _, part := range separator.Split(text, -1) {
			var object map[string]any
			if err := yaml.UnmarshalStrict([]byte(part), &object); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, part)
			}
			if len(object) > 0 {
				objects = append(objects, object)
			}
		}
	}
	return append(objects, map[string]any{"kind": "Notes", "text": strings.Join(notes, "\n")}), nil
}
