package qcow2

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// window is a set of compressed clusters read together, which are returned in pieces.
type window struct {
	r     *Reader
	buf   []byte
	used  int
	items []item
	refs  atomic.Int32 // pieces not decoded yet, and the reader while it has more to return
}

// item is a compressed cluster in a window.
type item struct {
	guest, n  int64
	host      int64
	from, len int // in the buffer
}

const (
	maxPieces = 4  // in a window, each of the size of the caller's buffer
	keep      = 16 // windows and buffers kept for reuse
)

// pool keeps objects for reuse. It never blocks: no more are in use than the caller has buffers.
type pool[T any] struct {
	mu   sync.Mutex
	free []T
}

func (p *pool[T]) get() (x T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		x, p.free = p.free[n-1], p.free[:n-1]
		return x, true
	}
	return x, false
}

func (p *pool[T]) put(x T) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < keep {
		p.free = append(p.free, x)
		return true
	}
	return false
}

func (w *window) release() {
	if w.refs.Add(-1) == 0 {
		w.r.windows.put(w)
	}
}

// fill reads a window: as many compressed clusters as make a full piece of the disk; if they are not in the disk's
// order, some more of them, to sort them if possible.
func (r *Reader) fill(most int) error {
	w, ok := r.windows.get()
	if !ok {
		w = &window{r: r, buf: make([]byte, max(maxRequest, packedMax(r.m.cluster))+sector)}
	}
	w.refs.Store(1)
	w.used, w.items = 0, w.items[:0]
	r.win, r.cut = w, 0

	var region span // region to read
	start := 0      // its offset in the buffer
	have := 0       // bytes of it already read
	flush := func() error {
		b := w.buf[start+have : start+int(region.end-region.off)]
		if err := r.pass.advance(region.off + int64(have)); err != nil {
			return err
		}
		return r.pass.read(b, sector-1)
	}
	ordered, total := true, int64(0)
	for {
		ahead := r.walk
		p, ok := ahead.next()
		if !ok || !p.packed {
			break
		}
		n := len(w.items)
		if n == 0 {
			have = int(max(0, r.pass.pos-p.host))
			copy(w.buf, r.carry[len(r.carry)-have:])
			region = span{p.host, p.host + int64(have)}
		}
		from := w.used
		if p.host <= region.end {
			from = start + int(p.host-region.off)
		}
		follows := n == 0 || w.items[n-1].guest+w.items[n-1].n == p.guest
		limit := maxPieces * int64(most)
		if ordered && follows {
			limit = int64(most)
		}
		if n > 0 && (total+p.n > limit || from+int(p.end-p.host) > len(w.buf) || p.host > region.end+maxRequest) {
			break
		}
		ordered = ordered && follows
		if p.host > region.end {
			if err := flush(); err != nil {
				return err
			}
			start, have, region = w.used, 0, span{p.host, p.host}
		}
		region.end = p.end
		w.used = start + int(region.end-region.off)
		w.items = append(w.items, item{guest: p.guest, n: p.n, host: p.host, from: from, len: int(p.end - p.host)})
		total += p.n
		r.walk = ahead
	}
	if err := flush(); err != nil {
		return err
	}
	r.dataDone += int64(w.used)
	r.carry = append(r.carry[:0], w.buf[max(0, w.used-sector):w.used]...)
	if !ordered {
		slices.SortFunc(w.items, func(a, b item) int { return cmp.Compare(a.guest, b.guest) })
	}
	return nil
}

// give returns the next piece of the window.
func (r *Reader) give(most int) Extent {
	w := r.win
	first := w.items[r.cut]
	if r.part != nil || first.n > int64(most) {
		return r.giveLarge(most)
	}
	from, n := r.cut, int64(0)
	for ; r.cut < len(w.items); r.cut++ {
		x := w.items[r.cut]
		if x.guest != first.guest+n || n+x.n > int64(most) {
			break
		}
		n += x.n
	}
	items := w.items[from:r.cut]
	w.refs.Add(1)
	r.leave()
	return Extent{Off: first.guest, Len: n, Decode: func(dst []byte) error {
		defer w.release()
		return r.unpack(dst, n, items, w.buf)
	}}
}

// leave releases the window when all of it was returned.
func (r *Reader) leave() {
	if w := r.win; r.cut == len(w.items) {
		r.win = nil
		w.release()
	}
}

func (r *Reader) unpack(dst []byte, n int64, items []item, packed []byte) error {
	if int64(len(dst)) != n {
		return fmt.Errorf("unpack %d bytes into a buffer of %d", n, len(dst))
	}
	d, err := r.decoder()
	if err != nil {
		return err
	}
	defer r.putDecoder(d)
	dst = dst[:n:n]
	off := items[0].guest
	for _, x := range items {
		to := dst[x.guest-off:]
		if err := d.item(to, x, packed[x.from:x.from+x.len], r.m.cluster); err != nil {
			return err
		}
	}
	return r.sameStart(off, dst)
}

// item decodes a cluster, the last one possibly in part.
func (d *decoder) item(dst []byte, x item, src []byte, cluster int64) error {
	var err error
	if x.n == cluster {
		err = d.cluster(dst, int(cluster), src)
	} else {
		if d.whole == nil {
			d.whole = make([]byte, cluster)
		}
		err = d.cluster(d.whole, int(cluster), src)
		copy(dst[:x.n], d.whole)
	}
	if err != nil {
		return damaged("the compressed cluster at byte %d of the file, for byte %d of the disk, does not unpack to %d bytes: %w", x.host, x.guest, cluster, err)
	}
	return nil
}

// large is a compressed cluster larger than the caller's buffer: the first Decode decodes all of it.
type large struct {
	once sync.Once
	left atomic.Int32 // pieces not copied yet, and the reader
	out  []byte
	err  error
	done int64 // returned
}

func (r *Reader) giveLarge(most int) Extent {
	w, x := r.win, r.win.items[r.cut]
	l := r.part
	if l == nil {
		l = &large{}
		l.left.Store(1)
		r.part = l
		w.refs.Add(1) // until it is decoded
	}
	off, n := l.done, min(int64(most), x.n-l.done)
	l.done += n
	l.left.Add(1)
	e := Extent{Off: x.guest + off, Len: n, Decode: func(dst []byte) error {
		defer r.releaseLarge(l)
		l.once.Do(func() {
			defer w.release()
			out, ok := r.clusters.get()
			if !ok {
				out = make([]byte, r.m.cluster)
			}
			l.out = out
			l.err = r.unpack(out[:x.n], x.n, []item{x}, w.buf)
		})
		if l.err != nil {
			return l.err
		}
		if int64(len(dst)) != n {
			return fmt.Errorf("unpack %d bytes into a buffer of %d", n, len(dst))
		}
		copy(dst, l.out[off:])
		return nil
	}}
	if l.done == x.n {
		r.part = nil
		r.cut++
		r.releaseLarge(l)
		r.leave()
	}
	return e
}

func (r *Reader) releaseLarge(l *large) {
	if l.left.Add(-1) == 0 && l.out != nil {
		r.clusters.put(l.out)
		l.out = nil
	}
}

func (r *Reader) decoder() (*decoder, error) {
	if d, ok := r.decoders.get(); ok {
		return d, nil
	}
	return newDecoder(r.h.Zstd)
}

func (r *Reader) putDecoder(d *decoder) {
	if !r.decoders.put(d) {
		d.close()
	}
}

// sameStart compares returned data with the disk's beginning that was read first.
func (r *Reader) sameStart(off int64, data []byte) error {
	if off >= int64(len(r.start)) {
		return nil
	}
	old := r.start[off:]
	n := min(len(old), len(data))
	if !bytes.Equal(old[:n], data[:n]) {
		return changed(fmt.Sprintf("the disk's beginning, at byte %d or after it, has changed", off))
	}
	return nil
}
