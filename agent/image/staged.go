package image

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/oci"
)

// An image may be written ahead of the deployment that needs it, in the same boot. The data that makes it bootable
// stays in memory as always, so that after a power cut or an end of the agent the disk has no system, and the
// deployment writes the image as usual.

// staged is an image on a disk except for its withheld data, with its arguments and result.
type staged struct {
	args    writeArgs
	result  *Result
	pending *disk.Pending
}

type (
	stagedKey struct{}
	aheadKey  struct{}
)

// Ahead marks the plan of these facts as working ahead: its image is for a later deployment.
func Ahead(f *step.Facts) { f.Set(aheadKey{}, true) }

// leave leaves w for a later deployment, if the plan works ahead.
func (w *staged) leave(f *step.Facts) {
	if f.Get(aheadKey{}) != nil {
		f.Set(stagedKey{}, w)
	}
}

// HandOver moves the staged image to the facts of a deployment. It can be used once.
func HandOver(from, to *step.Facts) {
	if w, ok := from.Get(stagedKey{}).(*staged); ok && w != nil {
		from.Set(stagedKey{}, (*staged)(nil))
		to.Set(stagedKey{}, w)
	}
}

// takeStaged takes the staged image: the next step may change the disk.
func takeStaged(f *step.Facts) *staged {
	w, _ := f.Get(stagedKey{}).(*staged)
	f.Set(stagedKey{}, (*staged)(nil))
	return w
}

// serves reports whether the staged image is the requested one, on the disk chosen now. If not, it returns the reason.
func (w *staged) serves(ctx context.Context, m machine, a *writeArgs, chosen disk.Disk, wait fetch.Patience,
	log *slog.Logger) (bool, string) {
	divided := w.pending.Division() != nil
	switch {
	case w.pending.Disk.Identity().Differs(chosen.Identity()) != "":
		return false, "it is on another disk"
	case a.Type == "partition" && !divided, a.Type == "whole-disk" && divided:
		return false, "it is not of the requested kind"
	case divided && w.args.Layout != a.Layout: // a whole-disk image has its own layout
		return false, "the disk is divided in another way"
	case a.Verify && !w.args.Verify:
		return false, "it was not read back"
	case len(a.Keys) > 0 && (!slices.Equal(a.Keys, w.args.Keys) || a.Signature != w.args.Signature):
		return false, "its signature was not checked with the requested keys"
	case w.args.secretive() && (a.Source != w.args.Source || a.PullSecret != w.args.PullSecret):
		return false, "it was fetched with a secret that is not given now"
	}
	if a.checksumURL != "" && a.digest.Algo == "" {
		u, err := url.Parse(a.Source)
		if err == nil {
			a.digest, err = fetchDigest(ctx, *a, u.Path, wait, log)
		}
		if err != nil { // reported by the fetch, if it persists
			return false, "its digest can't be had: " + err.Error()
		}
	}
	if want := a.identity(); want == "" || want != w.args.identity() {
		return false, "it is not known to be the same image"
	}
	if err := w.pending.StillWithheld(ctx, m); err != nil {
		return false, err.Error()
	}
	return true, ""
}

// identity identifies exactly one image; "" if the arguments don't.
func (a *writeArgs) identity() string {
	if d := a.digest.String(); d != "" {
		return d
	}
	if ref, err := oci.ParseReference(a.Source); err == nil && ref.Pinned() {
		return ref.String()
	}
	return ""
}

// secretive reports whether not everybody who knows its digest may have the image.
func (a *writeArgs) secretive() bool {
	if a.PullSecret != "" {
		return true
	}
	u, err := url.Parse(a.Source)
	return err != nil || u.User != nil || u.RawQuery != ""
}

// found returns the result of a step with a staged image: work done ahead is not counted again.
func (w *staged) found(began time.Time, why string) *Result {
	r := *w.result
	r.Staged, r.Trace = true, nil
	r.Disk.Why = why
	r.BytesFetched, r.BytesWritten, r.BytesZero, r.BytesSkipped, r.BytesKept = 0, 0, 0, 0, 0
	r.PhasesMS, r.Busy, r.Limit, r.Resumes, r.Restarts = Phases{}, Busy{}, "", 0, 0
	r.TookMS = time.Since(began).Milliseconds()
	return &r
}
