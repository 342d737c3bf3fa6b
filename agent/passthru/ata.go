package passthru

import "context"

func (d *Device) openATA(context.Context) error { return nil }
