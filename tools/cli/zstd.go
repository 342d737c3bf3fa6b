package cli

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/ingot-metal/ingot/images/index"
)

// bestLevel is the highest level that decoders need no extra memory for.
const bestLevel = 19

// zstdProgram packs chunks with the zstd program, whose high levels no Go encoder has: at level 19 an image is a fifth
// smaller than at 3, takes many times as long to pack, and no longer to unpack.
func zstdProgram(level int) (func(ctx context.Context, raw []byte) ([]byte, error), error) {
	path, err := exec.LookPath("zstd")
	if err != nil {
		return nil, advise(fmt.Errorf("levels above %d are packed by the program zstd, which is not installed",
			builtinLevel),
			"Install it (apt install zstd), or use --level %d", builtinLevel)
	}
	return func(ctx context.Context, raw []byte) ([]byte, error) {
		cmd := exec.CommandContext(ctx, path, "-q", "-c", "--no-check", "-T1", fmt.Sprintf("-%d", level),
			fmt.Sprintf("--stream-size=%d", len(raw)))
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(raw), &out, &errs
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("pack with zstd: %w: %s", err, strings.TrimSpace(errs.String()))
		}
		// It was packed by another program of any version, so it is read back: unreadable data must not be published.
		again := make([]byte, len(raw))
		if err := index.DecodeChunk(out.Bytes(), again); err != nil {
			return nil, fmt.Errorf("the program zstd: %w", err)
		}
		if !bytes.Equal(again, raw) {
			return nil, fmt.Errorf("what the program zstd has packed is something else when it is unpacked")
		}
		return out.Bytes(), nil
	}, nil
}
