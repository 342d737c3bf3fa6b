package ui

import (
	"fmt"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// most is the goal, in ms, for the first rows of 10,000 machines, and for a change to be on the screen.
const most = 1000

// BenchmarkFirstPaint measures how long the fleet's page takes, on loopback, with few machines and with many: until
// its first rows are there (paint-ms), until all machines are (all-ms), and from a change that is stored until it is on
// the screen (change-ms).
func BenchmarkFirstPaint(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			url, st := crowd(b, nodes)
			p := open(b, url)
			var paint, all float64
			var change time.Duration
			for i := range b.N {
				p.visit("/ui/")
				// Noted by the page itself, so that the way of the answer to the test does not count.
				paint += js[float64](p, firstAt(`document.querySelector('.machines-table tbody a')`))
				all += js[float64](p, firstAt(fmt.Sprintf(`/%s machines/.test(document.querySelector('.total')?.innerText.replace(/\s+/g, ' '))`,
					map[int]string{100: "100", 10_000: "10,000"}[nodes])))
				p.shows("live")
				reason := fmt.Sprintf("fan %d of %d", i, b.N)
				began := time.Now()
				_, err := st.UpdateNode(b.Context(), fmt.Sprintf("%08x-4f76-4e73-9c2f-fbb5eab89770", 7), func(n *node.Node) error {
					n.Provision, n.LastError = node.DeployFailed, reason // it is the first row
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				p.shows(reason)
				change += time.Since(began)
			}
			b.ReportMetric(paint/float64(b.N), "paint-ms")
			b.ReportMetric(all/float64(b.N), "all-ms")
			b.ReportMetric(float64(change.Milliseconds())/float64(b.N), "change-ms")
			b.ReportMetric(0, "ns/op")
			if p, c := paint/float64(b.N), float64(change.Milliseconds())/float64(b.N); p > most || c > most {
				b.Errorf("with %d machines the first rows take %.0f ms and a change %.0f ms, %d is wanted", nodes, p, c, most)
			}
		})
	}
}

// firstAt is a promise of the milliseconds from the navigation until an expression is true; it looks at each picture.
func firstAt(expression string) string {
	return `new Promise((done) => { const look = () => (` + expression + `) ? done(performance.now()) : requestAnimationFrame(look); look(); })`
}
