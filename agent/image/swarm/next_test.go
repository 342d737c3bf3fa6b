package swarm

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// bare returns a member that wants chunks, and fetches none by itself.
func bare(t *testing.T, chunks int) *Member {
	t.Helper()
	pic := newPicture(t, chunks)
	n := New(nil, func() {})
	n.session.Store(true)
	n.id.Node = "me"
	m := newMember(n, pic.x, Image{}, pic, nil)
	m.cancel()
	m.work.Wait()
	m.ctx = t.Context()
	m.Want(seq(chunks)...)
	return m
}

func seq(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestLandedIsAnnounced holds that the others hear of a chunk from the origin without a gap: as being fetched, also
// while it is being written, and then as there. In a gap, others would fetch it too.
func TestLandedIsAnnounced(t *testing.T) {
	m := bare(t, 3)
	m.tell(true)
	m.claim(1)
	if st := m.tell(false); !slices.Equal(st.Fetching, []uint32{1}) {
		t.Errorf("while it is fetched: %v", st.Fetching)
	}
	p := m.object(t.Context(), 1, 0)
	m.unclaim(1, p)
	if st := m.tell(false); p.err != nil || !slices.Equal(st.Fetching, []uint32{1}) || len(m.origin) > 0 {
		t.Errorf("before it is written: %v, %v; from the origin are coming %v", p.err, st.Fetching, m.origin)
	}
	m.Have(1)
	if st := m.tell(false); len(st.Fetching) > 0 || !slices.Equal(st.Added, []uint32{1}) {
		t.Errorf("when it is written: %v, %v", st.Fetching, st.Added)
	}
	m.claim(2)
	m.unclaim(2, &parcel{err: errAway})
	if st := m.tell(false); len(st.Fetching) > 0 {
		t.Errorf("after a failure: %v", st.Fetching)
	}
}

// TestSlowSeedIsHelped holds that a seed whose own share is done fetches from that of one which is busy with a chunk
// for long, and each chunk is the part of one helper.
func TestSlowSeedIsHelped(t *testing.T) {
	const chunks = 64
	m := bare(t, chunks)
	seeds := []string{"a", "b", "me"}
	addr := netip.MustParseAddrPort("127.0.0.1:9")
	m.hear(News{Whole: true, Seeds: seeds, Peers: []Peer{
		{Node: "a", Generation: 1, Addr: addr, Whole: true, Have: newBits(chunks), Fetching: []uint32{0}},
		{Node: "b", Generation: 1, Addr: addr, Whole: true, Have: newBits(chunks), Fetching: []uint32{1}}}})
	m.moved = time.Now().Add(time.Hour) // others make progress
	for i := range chunks {
		if owes(seeds, i, "") == "me" {
			m.Have(i)
		}
	}
	if i := m.chooseOrigin(time.Now()); i >= 0 {
		t.Errorf("at once: chunk %d of %s", i, owes(seeds, i, ""))
	}
	m.near["a"].since = time.Now().Add(-2 * helpAfter)
	helped := 0
	for {
		i := m.chooseOrigin(time.Now())
		if i < 0 {
			break
		}
		helped++
		if first, second := owes(seeds, i, ""), owes(seeds, i, "a"); first != "a" || second != "me" || i == 0 {
			t.Errorf("chunk %d of %s, for which %s is the next", i, first, second)
		}
		m.Have(i)
	}
	if helped == 0 {
		t.Error("the slow seed is not helped")
	}
}
