package qcow2

import (
	"fmt"
	"testing"
)

// BenchmarkDecode unpacks the clusters of an image on 1, 2, 4 ... goroutines: a bench for profiles.
func BenchmarkDecode(b *testing.B) {
	const clusters, cluster = 256, 64 << 10
	for _, kind := range []string{"zstd", "deflate"} {
		raw := source(clusters*cluster, 3)
		var packed [][]byte
		for i := range clusters {
			p := raw[i*cluster : (i+1)*cluster]
			if kind == "zstd" {
				packed = append(packed, zstded(b, p))
			} else {
				packed = append(packed, deflated(b, p))
			}
		}
		for _, workers := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%s/%d", kind, workers), func(b *testing.B) {
				b.SetBytes(int64(len(raw)))
				r := &Reader{h: &Header{Zstd: kind == "zstd"}, m: &mapping{cluster: cluster}}
				for b.Loop() {
					done := make(chan error)
					for w := range workers {
						go func() {
							dst := make([]byte, cluster)
							var err error
							for i := w; i < clusters && err == nil; i += workers {
								err = r.unpack(dst, cluster, []item{{n: cluster, len: len(packed[i])}}, packed[i])
							}
							done <- err
						}()
					}
					for range workers {
						if err := <-done; err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
