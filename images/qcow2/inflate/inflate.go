// Package inflate decompresses deflate (RFC 1951) from memory to memory. With all of the input in memory and a known
// output size, it needs no window, no copy and few checks, so that it takes about half the time of a stream decoder.
// Hostile input returns an error: reads and writes never exceed the input and the output.
package inflate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Decoder holds the tables of one goroutine. Its zero value is ready; it is about 20 KiB.
//
// In the tables, an entry is found by the next bits of the input, and means:
//
//	literal   1<<31 | byte<<16 | bits of the code
//	match     1<<30 | base<<12 | extra bits<<8 | bits of the code
//	more      1<<29 | index of another table<<12 | bits that find the entry there<<8 | bits that led here
//	end       1<<28 | bits of the code
//	nothing   0
type Decoder struct {
	lit    [1 << 12]uint32 // 2342 at most are used
	dist   [1 << 9]uint32  // 402
	pre    [1 << 7]uint32
	lens   [320]uint8
	sorted [320]uint16

	src  []byte
	pos  int
	buf  uint64 // bits that were read
	n    uint   // number of valid bits
	over int    // bytes read beyond the end
}

const (
	literal    = 1 << 31
	match      = 1 << 30
	more       = 1 << 29
	endOfBlock = 1 << 28

	litBits  = 11
	distBits = 8
	preBits  = 7
	maxMatch = 258
)

var (
	errDeflate = errors.New("it is damaged")
	errCutOff  = errors.New("it is cut off")
	errTooMuch = errors.New("it is larger than it should be")

	preOrder   = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
	lengthBase = [29]uint16{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115,
		131, 163, 195, 227, 258}
	lengthMore = [29]uint8{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
)

func litEntry(symbol uint16) uint32 {
	switch {
	case symbol < 256:
		return literal | uint32(symbol)<<16
	case symbol == 256:
		return endOfBlock
	case int(symbol) < 257+len(lengthBase):
		return match | uint32(lengthBase[symbol-257])<<12 | uint32(lengthMore[symbol-257])<<8
	}
	return 0
}

func distEntry(symbol uint16) uint32 {
	if symbol < 2 {
		return match | uint32(symbol+1)<<12
	}
	if symbol < 30 {
		extra := uint32(symbol)/2 - 1
		return match | (1+(2+uint32(symbol)&1)<<extra)<<12 | extra<<8
	}
	return 0
}

// preEntry is the entry function for the code of code lengths: a match of base symbol, without extra bits.
func preEntry(symbol uint16) uint32 { return match | uint32(symbol)<<12 }

// build makes the table of a code from its lengths. A code must be complete, except with a single symbol or none, as in
// zlib.
func (d *Decoder) build(table []uint32, tableBits uint, lens []uint8, entry func(uint16) uint32) error {
	var count [16]int
	for _, l := range lens {
		count[l]++
	}
	count[0] = 0
	var next [17]int // in sorted, of each length
	left, longest, symbols := 1, uint(0), 0
	for l := 1; l < 16; l++ {
		if left = left<<1 - count[l]; left < 0 {
			return errDeflate
		}
		if count[l] > 0 {
			longest = uint(l)
		}
		next[l] = symbols
		symbols += count[l]
	}
	if left > 0 && longest > 1 {
		return errDeflate
	}
	if left > 0 {
		clear(table)
	}
	for symbol, l := range lens {
		if l != 0 {
			d.sorted[next[l]] = uint16(symbol)
			next[l]++
		}
	}
	code, l := 0, uint(0) // code is not yet reversed
	used := 1 << tableBits
	prefix, sub, subBits := -1, 0, uint(0)
	for _, symbol := range d.sorted[:symbols] {
		for l == 0 || count[l] == 0 {
			l++
			code <<= 1
		}
		rev := int(bits.Reverse16(uint16(code)) >> (16 - l))
		e := entry(symbol)
		if l <= tableBits {
			if e != 0 {
				e |= uint32(l)
			}
			for i := rev; i < 1<<tableBits; i += 1 << l {
				table[i] = e
			}
		} else {
			if p := rev & (1<<tableBits - 1); p != prefix {
				prefix, sub = p, used
				subBits = l - tableBits
				for room := 1 << subBits; subBits+tableBits < longest; subBits++ {
					if room -= count[subBits+tableBits]; room <= 0 {
						break
					}
					room <<= 1
				}
				if used += 1 << subBits; used > len(table) {
					return errDeflate
				}
				table[prefix] = more | uint32(sub)<<12 | uint32(subBits)<<8 | uint32(tableBits)
			}
			if e != 0 {
				e |= uint32(l - tableBits)
			}
			for i := rev >> tableBits; i < 1<<subBits; i += 1 << (l - tableBits) {
				table[sub+i] = e
			}
		}
		code++
		count[l]--
	}
	return nil
}

// fill provides at least 56 bits. Beyond the end they are zeros, which the caller must not use up.
func (d *Decoder) fill() {
	for d.n <= 56 {
		if d.pos < len(d.src) {
			d.buf |= uint64(d.src[d.pos]) << d.n
			d.pos++
		} else {
			d.over++
		}
		d.n += 8
	}
}

func (d *Decoder) cutOff() bool { return d.over*8 > int(d.n) }

func (d *Decoder) take(n uint) uint64 {
	v := d.buf & (1<<n - 1)
	d.buf >>= n
	d.n -= n
	return v
}

// Decode fills dst exactly from the stream at the beginning of src; later bytes are ignored.
func (d *Decoder) Decode(dst, src []byte) error {
	d.src, d.pos, d.buf, d.n, d.over = src, 0, 0, 0, 0
	defer func() { d.src = nil }()
	out := 0
	for final := false; !final; {
		d.fill()
		final = d.take(1) == 1
		var err error
		switch kind := d.take(2); kind {
		case 0:
			out, err = d.stored(dst, out)
		case 1, 2:
			if kind == 1 {
				err = d.fixedCodes()
			} else {
				err = d.readCodes()
			}
			if err == nil {
				out, err = d.codes(dst, out)
			}
		default:
			err = errDeflate
		}
		if d.cutOff() {
			return errCutOff
		}
		if err != nil {
			return err
		}
	}
	if out != len(dst) {
		return fmt.Errorf("it is %d bytes", out)
	}
	return nil
}

func (d *Decoder) stored(dst []byte, out int) (int, error) {
	// Bytes read too far are returned.
	if d.cutOff() {
		return out, errCutOff
	}
	d.pos -= max(0, int(d.n/8)-d.over)
	d.buf, d.n, d.over = 0, 0, 0
	if len(d.src)-d.pos < 4 {
		return out, errCutOff
	}
	n, not := binary.LittleEndian.Uint16(d.src[d.pos:]), binary.LittleEndian.Uint16(d.src[d.pos+2:])
	d.pos += 4
	switch {
	case n != ^not:
		return out, errDeflate
	case len(d.src)-d.pos < int(n):
		return out, errCutOff
	case len(dst)-out < int(n):
		return out, errTooMuch
	}
	out += copy(dst[out:], d.src[d.pos:d.pos+int(n)])
	d.pos += int(n)
	return out, nil
}

func (d *Decoder) fixedCodes() error {
	lens := d.lens[:288]
	for i := range lens {
		switch {
		case i < 144:
			lens[i] = 8
		case i < 256:
			lens[i] = 9
		case i < 280:
			lens[i] = 7
		default:
			lens[i] = 8
		}
	}
	if err := d.build(d.lit[:], litBits, lens, litEntry); err != nil {
		return err
	}
	lens = d.lens[:32]
	for i := range lens {
		lens[i] = 5
	}
	return d.build(d.dist[:], distBits, lens, distEntry)
}

func (d *Decoder) readCodes() error {
	lits, dists, pres := int(d.take(5))+257, int(d.take(5))+1, int(d.take(4))+4
	if lits > 286 || dists > 30 {
		return errDeflate
	}
	clear(d.lens[:19])
	for i := range pres {
		if i%8 == 0 {
			d.fill()
		}
		d.lens[preOrder[i]] = uint8(d.take(3))
	}
	if err := d.build(d.pre[:], preBits, d.lens[:19], preEntry); err != nil {
		return err
	}
	for i := 0; i < lits+dists; {
		d.fill()
		e := d.pre[d.buf&(1<<preBits-1)]
		if e == 0 || d.cutOff() {
			return errDeflate
		}
		d.take(uint(e & 15))
		symbol, value, n := e>>12&0xff, uint8(0), 1
		switch {
		case symbol < 16:
			value = uint8(symbol)
		case symbol == 16:
			if i == 0 {
				return errDeflate
			}
			value, n = d.lens[i-1], 3+int(d.take(2))
		case symbol == 17:
			n = 3 + int(d.take(3))
		default:
			n = 11 + int(d.take(7))
		}
		if i+n > lits+dists {
			return errDeflate
		}
		for range n {
			d.lens[i] = value
			i++
		}
	}
	if d.lens[256] == 0 {
		return errDeflate // no end
	}
	if err := d.build(d.lit[:], litBits, d.lens[:lits], litEntry); err != nil {
		return err
	}
	return d.build(d.dist[:], distBits, d.lens[lits:lits+dists], distEntry)
}

// codes decodes a block: without bounds checks as long as there is space at both ends, then with them.
func (d *Decoder) codes(dst []byte, out int) (int, error) {
	src, pos, buf, n := d.src, d.pos, d.buf, d.n
	for d.over == 0 && pos+16 <= len(src) && out+maxMatch+16 <= len(dst) {
		buf |= binary.LittleEndian.Uint64(src[pos:]) << (n & 63)
		pos += int((63 - n) >> 3)
		n |= 56
		e := d.lit[buf&(1<<litBits-1)]
		// Up to two literals of at most 11 bits each, and the following code: 15 bits and 5.
		if e&literal != 0 {
			buf >>= e & 15
			n -= uint(e & 15)
			dst[out] = byte(e >> 16)
			out++
			if e = d.lit[buf&(1<<litBits-1)]; e&literal != 0 {
				buf >>= e & 15
				n -= uint(e & 15)
				dst[out] = byte(e >> 16)
				out++
				e = d.lit[buf&(1<<litBits-1)]
			}
		}
		if e&more != 0 {
			buf >>= litBits
			n -= litBits
			e = d.lit[(uint32(buf)&(1<<(e>>8&15)-1)+e>>12)&(1<<12-1)]
		}
		buf >>= e & 15
		n -= uint(e & 15)
		if e&literal != 0 {
			dst[out] = byte(e >> 16)
			out++
			continue
		}
		if e&match == 0 {
			d.pos, d.buf, d.n = pos, buf, n
			if e&endOfBlock == 0 {
				return out, errDeflate
			}
			d.trim()
			return out, nil
		}
		extra := e >> 8 & 15
		length := int(e>>12&0x1ff) + int(buf&(1<<extra-1))
		buf >>= extra
		n -= uint(extra)

		buf |= binary.LittleEndian.Uint64(src[pos:]) << (n & 63)
		pos += int((63 - n) >> 3)
		n |= 56
		e = d.dist[buf&(1<<distBits-1)]
		if e&more != 0 {
			buf >>= distBits
			n -= distBits
			e = d.dist[(uint32(buf)&(1<<(e>>8&15)-1)+e>>12)&(1<<9-1)]
		}
		if e&match == 0 {
			return out, errDeflate
		}
		buf >>= e & 15
		n -= uint(e & 15)
		extra = e >> 8 & 15
		back := int(e>>12&0xffff) + int(buf&(1<<extra-1))
		buf >>= extra
		n -= uint(extra)
		if back > out {
			return out, errDeflate
		}
		end := out + length
		switch {
		case back >= 8:
			// There is space after the end for up to seven excess bytes.
			for from := out - back; out < end; out, from = out+8, from+8 {
				binary.LittleEndian.PutUint64(dst[out:], binary.LittleEndian.Uint64(dst[from:]))
			}
		case back == 1:
			v := uint64(dst[out-1]) * 0x0101010101010101
			for ; out < end; out += 8 {
				binary.LittleEndian.PutUint64(dst[out:], v)
			}
		default:
			for ; out < end; out++ {
				dst[out] = dst[out-back]
			}
		}
		out = end
	}
	d.pos, d.buf, d.n = pos, buf, n
	d.trim()
	return d.slowCodes(dst, out)
}

// trim discards bits that are not valid.
func (d *Decoder) trim() { d.buf &= 1<<d.n - 1 }

func (d *Decoder) slowCodes(dst []byte, out int) (int, error) {
	for {
		d.fill()
		e := d.symbol(d.lit[:], litBits)
		if d.cutOff() {
			return out, errCutOff
		}
		switch {
		case e&literal != 0:
			if out == len(dst) {
				return out, errTooMuch
			}
			dst[out] = byte(e >> 16)
			out++
			continue
		case e&endOfBlock != 0:
			return out, nil
		case e&match == 0:
			return out, errDeflate
		}
		length := int(e>>12&0x1ff) + int(d.take(uint(e>>8&15)))
		d.fill()
		e = d.symbol(d.dist[:], distBits)
		if e&match == 0 {
			return out, errDeflate
		}
		back := int(e>>12&0xffff) + int(d.take(uint(e>>8&15)))
		switch {
		case d.cutOff():
			return out, errCutOff
		case back > out:
			return out, errDeflate
		case length > len(dst)-out:
			return out, errTooMuch
		}
		for end := out + length; out < end; out++ {
			dst[out] = dst[out-back]
		}
	}
}

func (d *Decoder) symbol(table []uint32, tableBits uint) uint32 {
	e := table[d.buf&(1<<tableBits-1)]
	if e&more != 0 {
		d.take(tableBits)
		e = table[uint32(d.buf)&(1<<(e>>8&15)-1)+e>>12&0x1ffff]
	}
	d.take(uint(e & 15))
	return e
}
