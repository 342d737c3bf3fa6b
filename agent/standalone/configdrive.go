package standalone

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/step"
)

// ReadConfigDrive makes the argument of write_configdrive of a file's name or a URL. No name gives none.
func ReadConfigDrive(name string) (json.RawMessage, error) {
	if name == "" {
		return nil, nil
	}
	if isURL(name) {
		return json.Marshal(name)
	}
	st, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("config drive: %w", err)
	}
	if st.Size() > configdrive.MaxSize*3/2 {
		return nil, step.Failf("make it smaller", "config drive %s: larger than %d MiB", name, configdrive.MaxSize>>20)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("config drive: %w", err)
	}
	if text := bytes.TrimSpace(b); bytes.HasPrefix(text, []byte("{")) {
		if !json.Valid(text) {
			return nil, step.Failf("correct the JSON", "config drive %s: begins like an object, but is not valid JSON",
				name)
		}
		return json.RawMessage(text), nil
	}
	if isText(b) { // base64
		return json.Marshal(string(b))
	}
	return json.Marshal(base64.StdEncoding.EncodeToString(b))
}

// drive is a config drive that could be built.
type drive struct {
	arg    json.RawMessage // of write_configdrive
	format string
	size   int
	note   string
}

// drive builds, and fetches, the config drive as write_configdrive does. No config drive gives nil.
func (o Options) drive(ctx context.Context, sector int) (*drive, error) {
	raw := o.ConfigDrive
	if len(raw) == 0 {
		return nil, nil
	}
	payload, format, err := configdrive.Build(ctx, raw, sector, time.Now(), configdrive.Servers{CA: o.CA})
	if err != nil {
		return nil, fmt.Errorf("config drive: %w", err)
	}
	d := &drive{raw, format, len(payload), configdrive.OddLabel(payload)}
	if configdrive.IsURL(raw) { // not fetched again: the next answer may be another
		d.arg, err = json.Marshal(base64.StdEncoding.EncodeToString(payload))
	}
	return d, err
}

func isText(b []byte) bool {
	return !slices.ContainsFunc(b[:min(len(b), 4096)], func(c byte) bool {
		return c >= 0x7f || c < ' ' && c != '\n' && c != '\r' && c != '\t'
	})
}
