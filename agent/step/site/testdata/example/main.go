// Command label is an example of a site's own step in Go: it reads its input, reports its progress, and ends with a
// result.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type input struct {
	Protocol int    `json:"protocol"`
	Node     string `json:"node"`
	Args     struct {
		File   string `json:"file"`
		Copies int    `json:"copies"`
		Mode   string `json:"mode"`
	} `json:"args"`
	Inventory struct {
		Hostname string `json:"hostname"`
	} `json:"inventory"`
}

func say(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
}

func main() {
	var in input
	err := json.NewDecoder(os.Stdin).Decode(&in)
	if err == nil && in.Protocol != 1 {
		err = fmt.Errorf("protocol %d is not known to this step", in.Protocol)
	}
	if err == nil {
		err = label(in)
	}
	if err != nil {
		say(map[string]any{
			"error": map[string]any{"message": err.Error(), "remedy": "give it a file that can be written",
				"retryable": false}})
		os.Exit(1)
	}
}

func label(in input) error {
	text := fmt.Sprintf("node %s, host %s\n", in.Node, in.Inventory.Hostname)
	if in.Args.Mode == "loud" {
		text = strings.ToUpper(text)
	}
	f, err := os.Create(in.Args.File)
	if err != nil {
		return err
	}
	copies := max(in.Args.Copies, 1)
	for i := range copies {
		if _, err := f.WriteString(text); err != nil {
			return err
		}
		say(map[string]any{
			"progress": map[string]any{"phase": "write", "bytes": (i + 1) * len(text), "total": copies * len(text)}})
	}
	if err := f.Close(); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "label written to", in.Args.File)
	say(map[string]any{"result": map[string]any{"lines": copies}})
	return nil
}
