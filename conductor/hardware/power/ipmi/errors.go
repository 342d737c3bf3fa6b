package ipmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

const (
	hintAuth      = "check ipmi_username and ipmi_password, and that the account is enabled for access over LAN"
	hintPrivilege = "give the user ADMINISTRATOR privilege on the LAN channel, or set ipmi_priv_level to what it has"
	hintSilent    = "check ipmi_address and ipmi_port, that IPMI over LAN is switched on in the controller, and that no firewall drops UDP from here"
	hintBusy      = "wait for the controller to finish what it does; if it stays so, reset it"
	hintSuite     = "set ipmi_cipher_suite to one that the controller offers"
)

// completionCode returns the code with which the controller declined a command.
func completionCode(err error) (types.CompletionCode, bool) {
	var re *types.ResponseError
	// Code 0 is go-ipmi's way of saying that it could not read the answer.
	if errors.As(err, &re) && re.CompletionCode() != types.CodeOK {
		return re.CompletionCode(), true
	}
	return 0, false
}

// suiteRefused reports whether the controller lacks the cipher suite.
func suiteRefused(err error) bool {
	var rs *types.RmcpStatusError
	return errors.As(err, &rs) && slices.Contains([]types.RmcpStatusCode{
		types.RmcpStatusCodeInvalidAuthAlg, types.RmcpStatusCodeInvalidIntegrityAlg,
		types.RmcpStatusCodeInvalidConfidentAlg, types.RmcpStatusCodeNoMatchingAuthPayload,
		types.RmcpStatusCodeNoMatchingIntegrityPayload, types.RmcpStatusCodeNoCipherSuiteMatch,
		types.RmcpStatusCodeIllegalParameter,
	}, rs.StatusCode())
}

// classify turns an error of go-ipmi into one that the engine and an operator can act on. The caller fills Op and Addr.
func classify(err error) *power.Error {
	var pe *power.Error
	if errors.As(err, &pe) {
		return pe
	}
	if code, ok := completionCode(err); ok {
		return fromCompletionCode(code, err)
	}
	var rs *types.RmcpStatusError
	var dns *net.DNSError
	switch {
	case errors.Is(err, client.ErrRAKPAuthentication):
		// The controller's proof doesn't match our password. It never says whether the name or the password is wrong.
		return &power.Error{Kind: power.Auth, Err: errors.New("wrong user name or password"), Hint: hintAuth}
	case suiteRefused(err):
		return &power.Error{Kind: power.Refused, Err: fmt.Errorf("no common cipher suite: %w", err), Hint: hintSuite}
	case errors.As(err, &rs):
		return fromStatus(rs, err)
	case errors.As(err, &dns):
		return &power.Error{Kind: power.Unreachable, Err: fmt.Errorf("look up host name: %w", dns),
			Hint: "correct ipmi_address or the name server"}
	case refused(err):
		return &power.Error{Kind: power.Unreachable, Err: errors.New("nothing listens on this port"), Hint: hintSilent}
	case errors.Is(err, context.Canceled):
		return &power.Error{Kind: power.Unreachable, Err: err}
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return &power.Error{Kind: power.Unreachable, Err: errors.New("no answer"), Hint: hintSilent}
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return &power.Error{Kind: power.Unreachable, Err: op.Err, Hint: hintSilent}
	}
	// A packet that go-ipmi couldn't make sense of, or no packet that matched the request.
	return &power.Error{Kind: power.Unreachable, Err: fmt.Errorf("no usable answer: %w", err), Hint: hintBusy}
}

// fromStatus reads the status of a handshake message (IPMI 2.0, table 13-15).
func fromStatus(rs *types.RmcpStatusError, err error) *power.Error {
	switch rs.StatusCode() {
	case types.RmcpStatusCodeUnauthorizedName, types.RmcpStatusCodeInvalidNameLength,
		types.RmcpStatusCodeInvalidIntegrityCheckValue:
		return &power.Error{Kind: power.Auth, Err: fmt.Errorf("wrong user name or password: %w", rs), Hint: hintAuth}
	case types.RmcpStatusCodeInvalidRole, types.RmcpStatusCodeUnauthorizedRoleOfPriLevel:
		return &power.Error{Kind: power.Auth, Err: fmt.Errorf("privilege not granted: %w", rs), Hint: hintPrivilege}
	case types.RmcpStatusCodeNoResToCreateSess, types.RmcpStatusCodeNoResToCreateSessAtRole,
		types.RmcpStatusCodeInvalidSessionID, types.RmcpStatusCodeInactiveSessionID:
		return &power.Error{Kind: power.Busy, Err: fmt.Errorf("controller has no free session: %w", rs), Hint: hintBusy}
	}
	return &power.Error{Kind: power.Refused, Err: err}
}

// fromCompletionCode reads the completion code of a command (IPMI 2.0, table 5-2).
func fromCompletionCode(code types.CompletionCode, err error) *power.Error {
	said := fmt.Errorf("controller answered: %w", err)
	switch code {
	case types.CodeNodeBusy, types.CodeProcessTimeout, types.CodeOutOfSpace, types.CodeCannotProvideResponse,
		types.CodeCannotExecuteDuplicatedRequest, types.CodeCannotProvideResponseSDRRInUpdate,
		types.CodeCannotProvideResponseFirmwareUpdate, types.CodeCannotProvideResponseBMCInitialize,
		types.CodeDestinationUnavailable:
		return &power.Error{Kind: power.Busy, Err: said, Hint: hintBusy}
	case types.CodeInsufficientPrivilege, types.CodeSetSessionPrivilegeLevelExceedsLimit:
		return &power.Error{Kind: power.Auth, Err: said, Hint: hintPrivilege}
	case types.CodeInvalidCommand, types.CodeInvalidCommandForLUN, types.CodeParameterNotSupported,
		types.CodeIllegalCommand, types.CodeSubFnDisabled:
		return &power.Error{Kind: power.Unsupported, Err: said, Hint: "this controller can't do it"}
	case types.CodeNotSupported:
		return &power.Error{Kind: power.Refused, Err: said,
			Hint: "the machine is in a state where this can't be done; the controller's log or page may say why"}
	}
	return &power.Error{Kind: power.Refused, Err: said}
}
