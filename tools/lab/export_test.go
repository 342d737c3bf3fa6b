package lab

// In runs f inside the lab's namespace.
func (l *Lab) In(f func() error) error { return l.ns.do(f) }
