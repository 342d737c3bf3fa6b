package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"time"
)

// ingotdPage is the manual page of ingotd: its own help, as it is.
func ingotdPage(help string, when time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH INGOTD 8 \"%s\" ingotd \"Ingot's conductor\"\n", when.Format(time.DateOnly))
	b.WriteString(".SH NAME\ningotd \\- conductor of Ingot: power, network boot, state, and the Bare Metal API\n" +
		".SH SYNOPSIS\n.B ingotd\n[\\fIflags\\fR | \\fIcommand\\fR ...]\n.SH DESCRIPTION\n.nf\n")
	// As in tools/cli/manual, which can't be had here: it depends on the product's modules.
	special := strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", "\\(ga", "^", `\(ha`, "~", `\(ti`)
	for line := range strings.SplitSeq(strings.TrimSpace(help), "\n") {
		line = special.Replace(line)
		if strings.HasPrefix(line, ".") {
			line = `\&` + line
		}
		b.WriteString(line + "\n")
	}
	b.WriteString(".fi\n.SH FILES\n.I /etc/ingot/ingotd.yaml\n.br\n.I /var/lib/ingot\n.SH SEE ALSO\n.BR ingot (1)\n")
	return b.Bytes()
}

// changelog is the change log in Debian's form, which names the version and where the changes are.
func (b *build) changelog(name string) []byte {
	return fmt.Appendf(nil, "%s (%s) unstable; urgency=medium\n\n  * Ingot %s. CHANGELOG.md.gz in this folder lists the changes.\n\n"+
		" -- %s  %s\n", name, b.version, b.program, maintainer, b.when.Format(time.RFC1123Z))
}

// zipped compresses with gzip, without a name and a time.
func zipped(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
