package config

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// DefaultFile is read when no --config is given and it exists.
const DefaultFile = "/etc/ingot/ingotd.yaml"

// ErrHelp means that help was requested and has been printed.
var ErrHelp = flag.ErrHelp

// ErrExample means that the example file was requested and has been printed.
var ErrExample = errors.New("the example file was printed")

// ErrInvalid means that the configuration was read, and is returned, but can't be used as it is.
var ErrInvalid = errors.New("the configuration is not valid")

// Load reads the configuration from file, environment and arguments (without the program's name), and validates it.
// environ has the form of os.Environ. print reports that the effective configuration was requested, rather than a
// start.
func Load(args, environ []string, out io.Writer) (c Config, print bool, err error) {
	c = Default()
	fields := map[string]any{}
	for _, s := range c.settings() {
		fields[s.key] = s.field
	}

	var file string
	var sets []string
	fl := flag.NewFlagSet("ingotd", flag.ContinueOnError)
	fl.SetOutput(io.Discard) // errors are returned
	fl.StringVar(&file, "config", "", "")
	fl.BoolVar(&print, "print-config", false, "")
	example := fl.Bool("print-example", false, "")
	fl.BoolVar(&c.NewInstallation, "new-installation", false, "")
	fl.Func("set", "", func(s string) error { sets = append(sets, s); return nil })
	for name, key := range map[string]string{"data-dir": "data_dir", "listen": "api.listen", "log-level": "log_level"} {
		fl.Func(name, "", func(s string) error { sets = append(sets, key+"="+s); return nil })
	}
	switch err := fl.Parse(args); {
	case errors.Is(err, ErrHelp):
		if _, err := io.WriteString(out, Help()); err != nil {
			return c, false, err
		}
		return c, false, ErrHelp
	case err != nil:
		return c, false, fmt.Errorf("%w (ingotd --help lists the flags)", err)
	}
	if fl.NArg() > 0 {
		return c, false, fmt.Errorf("ingotd takes no arguments, only flags; %q is none (ingotd --help lists them)",
			fl.Arg(0))
	}

	if *example {
		if _, err := io.WriteString(out, Example()); err != nil {
			return c, false, err
		}
		return c, false, ErrExample
	}
	if err := readFile(file, &c); err != nil {
		return c, false, err
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		rest, ours := strings.CutPrefix(name, "INGOT_")
		if !ours {
			continue
		}
		for key, f := range fields {
			if strings.EqualFold(strings.ReplaceAll(key, ".", "_"), rest) {
				if err := set(f, value); err != nil {
					return c, false, fmt.Errorf("environment variable %s: %w", name, err)
				}
			}
		}
	}
	for _, kv := range sets {
		key, value, ok := strings.Cut(kv, "=")
		f, known := fields[key]
		if !ok || !known {
			return c, false, fmt.Errorf("--set %s: want KEY=VALUE with one of the keys that ingotd --help lists", kv)
		}
		if err := set(f, value); err != nil {
			return c, false, fmt.Errorf("--set %s: %w", key, err)
		}
	}
	if err := c.Validate(); err != nil {
		return c, print, fmt.Errorf("%w:\n%w", ErrInvalid, err)
	}
	return c, print, nil
}

func readFile(file string, c *Config) error {
	name := cmp.Or(file, DefaultFile)
	b, err := os.ReadFile(name)
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read configuration %s: %w", name, err)
	}
	return nil
}

// Write writes the configuration as the YAML that Load reads.
func (c Config) Write(w io.Writer) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return err
	}
	return enc.Close()
}

// set reads a value into the field of a setting.
func set(field any, s string) error {
	switch p := field.(type) {
	case *string:
		*p = s
	case *Secret:
		*p = Secret(s)
	case *bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		*p = b
	case *int:
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("%q is not a number", s)
		}
		*p = n
	case *time.Duration:
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 30s or 5m", s)
		}
		*p = d
	case *[]string:
		*p = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
	default:
		return fmt.Errorf("can't be set here")
	}
	return nil
}
