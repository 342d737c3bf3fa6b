package burnin

import (
	"bytes"
	"compress/flate"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"math/big"
)

// seeds is the number of inputs, and so of known results, of each kernel.
const seeds = 4

// kernel is a computation of about a millisecond on one core, with the same result on every machine. Together the
// kernels use the units of a core that can fail independently: vectors and cryptography, the multiplier with carries,
// floating point, branches and caches.
type kernel struct {
	name string
	run  func(seed uint64) uint64
	want [seeds]uint64
}

// kernels lists the computations. Their results are the same with assembly and without (-tags purego), with hardware
// and with software floating point (GOARCH=386 GO386=softfloat). TestKernels prints the results when a kernel changes.
var kernels = []kernel{
	{"hash", hashes, [seeds]uint64{0x48e247dfd1e4e25d, 0x268ccdcfe8514c55, 0x5695750b3377a2f0, 0x4cedec1a7f094454}},
	{"cipher", ciphers, [seeds]uint64{0x134305aebf823141, 0x49123fe81c6db56f, 0x42de450da7b5ae8c, 0xe5144c798cb5bb0c}},
	{"integer", integers,
		[seeds]uint64{0xe847ee827a8ebae2, 0x8064f8c0865cd5c9, 0x8901fe9bdffa1c3d, 0xb397e90c31e5e944}},
	{"matrix", matrix, [seeds]uint64{0x6f7230ae80759945, 0xc5f1dedb30ec7669, 0x4d51e4a72b7589bb, 0x80fc45c034aa50c4}},
	{"sieve", sieve, [seeds]uint64{0x7369c61de4372612, 0x540eb2892fb7024e, 0xc084149643e7d6b5, 0x19b660b3e3878e1c}},
	{"compress", compress,
		[seeds]uint64{0xf372bd0f775687e0, 0x9ef5802ffe5c4bfa, 0xb36178b1c1b9171d, 0x8ced63b756a23b28}},
}

// mix is splitmix64: the i-th number of a pseudo-random sequence, without state.
func mix(i uint64) uint64 {
	i += 0x9e3779b97f4a7c15
	i = (i ^ i>>30) * 0xbf58476d1ce4e5b9
	i = (i ^ i>>27) * 0x94d049bb133111eb
	return i ^ i>>31
}

func noise(seed uint64, n int) []byte {
	b := make([]byte, 0, n+8)
	for i := uint64(0); len(b) < n; i++ {
		b = binary.LittleEndian.AppendUint64(b, mix(seed<<32+i))
	}
	return b[:n]
}

func hashes(seed uint64) uint64 {
	b := noise(seed, 64<<10)
	for range 8 {
		s := sha512.Sum512(b)
		copy(b, s[:])
		t := sha256.Sum256(b)
		copy(b[len(b)-len(t):], t[:])
	}
	return binary.LittleEndian.Uint64(b) ^ uint64(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func ciphers(seed uint64) uint64 {
	b := noise(seed, 256<<10)
	block, err := aes.NewCipher(b[:32])
	if err != nil {
		return 0 // unreachable: 32 bytes are a valid key; 0 is a wrong result
	}
	for range 4 {
		cipher.NewCTR(block, b[32:48]).XORKeyStream(b[64:], b[64:])
	}
	if gcm, err := cipher.NewGCM(block); err == nil {
		sealed := gcm.Seal(nil, b[:12], b, nil)
		return binary.LittleEndian.Uint64(sealed[len(sealed)-16:])
	}
	return 0
}

func integers(seed uint64) uint64 {
	base, exp, mod := new(big.Int), new(big.Int), new(big.Int)
	base.SetBytes(noise(seed, 128))
	exp.SetBytes(noise(seed+100, 64))
	mod.SetBytes(noise(seed+200, 128)).SetBit(mod, 0, 1).SetBit(mod, 1023, 1)
	return new(big.Int).Exp(base, exp, mod).Uint64()
}

// matrix multiplies matrices and takes roots. The conversions keep compilers from fusing a product and a sum, which
// would round differently.
func matrix(seed uint64) uint64 {
	const n = 96
	var a, b, c [n][n]float64
	for i := range n {
		for j := range n {
			r := mix(seed<<32 + uint64(i*n+j))
			a[i][j] = float64(r>>32)/(1<<32) + 0.5
			b[i][j] = float64(r&math.MaxUint32)/(1<<32) + 0.5
		}
	}
	for range 2 {
		for i := range n {
			for j := range n {
				sum := 0.0
				for k := range n {
					sum += float64(a[i][k] * b[k][j])
				}
				c[i][j] = math.Sqrt(sum) / float64(1+a[j][i])
			}
		}
		a = c
	}
	out := uint64(0)
	for i := range n {
		for j := range n {
			out = mix(out ^ math.Float64bits(a[i][j]))
		}
	}
	return out
}

func sieve(seed uint64) uint64 {
	const n = 1 << 18
	composite := make([]bool, n)
	out := seed
	for i := 2; i < n; i++ {
		if composite[i] {
			continue
		}
		out = mix(out + uint64(i))
		for j := 2 * i; j < n; j += i {
			composite[j] = true
		}
	}
	return out
}

// compress packs text-like data and unpacks it again. The result is the input, independent of the compressed form.
func compress(seed uint64) uint64 {
	words := noise(seed, 256)
	in := make([]byte, 0, 64<<10)
	for i := uint64(0); len(in) < 64<<10; i++ {
		w := mix(seed+i) % 240
		in = append(in, words[w:w+4+mix(i)%12]...)
	}
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		return 0
	}
	if _, err := w.Write(in); err != nil || w.Close() != nil {
		return 0
	}
	out, err := io.ReadAll(flate.NewReader(&packed))
	if err != nil {
		return 0
	}
	s := sha256.Sum256(out)
	return binary.LittleEndian.Uint64(s[:])
}
