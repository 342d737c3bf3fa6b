// Package app assembles the conductor: it opens the store, makes the parts, connects them, and starts and stops them in
// order.
//
// Start: configuration, lock on the data directory, store, CA, engine, agents, network boot, API. Nothing is served
// before the engine has loaded the unfinished work. Stop is the other way round: listeners first, then the engine, last
// the store. Neither a stop nor a kill loses anything; the tests kill.
package app
