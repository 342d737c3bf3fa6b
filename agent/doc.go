// Package agent enrols with the conductor, keeps the session, and executes plans of steps.
//
// The conductor may be unavailable at any time. A plan continues without it; its events are kept in a queue (results
// until they are acknowledged, the newest progress of the running step, a ring of log lines) and sent later. Plans are
// fenced: one id once per boot, never a lower generation. A worker's state for its successor after a crash is in
// StateFile. Sizes are bytes, rates bytes per second.
package agent
