// Package app puts the conductor together: it opens the store, makes the parts, connects them, and starts and stops
// them in order.
//
// Start: configuration, lock on the data directory, store, CA, engine, agents, network boot, API. Nothing is served
// before the engine knows what was under way. Stop is the other way round: listeners first, then the engine, last the
// store. Stopping loses nothing and neither does being killed, which is what the tests do.
package app
