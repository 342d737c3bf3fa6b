package fake

import (
	"context"
	"fmt"
	"io"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

var _ power.Console = (*Driver)(nil)

// Console is a login prompt that shows what is typed, and lets no user in.
func (d *Driver) Console(ctx context.Context, in io.Reader, out io.Writer) error {
	state, err := d.Power(ctx)
	if err != nil {
		return err
	}
	const prompt = "\r\nfake login: "
	if _, err := fmt.Fprintf(out, "\r\nFake machine %s, %s%s", d.id, state, prompt); err != nil {
		return err
	}
	b := make([]byte, 256)
	for {
		n, err := in.Read(b)
		for _, c := range b[:n] {
			echo := string(c)
			if c == '\r' {
				echo = prompt
			}
			if _, err := io.WriteString(out, echo); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}
