package rest

import "github.com/ingot-metal/ingot/conductor/guard/redact"

// Masked is what answers show in place of a secret.
const Masked = redact.Stars
