package redfish

import (
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

const (
	accountService = odata.Root + "/AccountService"
	accountsPath   = accountService + "/Accounts"
)

// AccountSlots has a fixed number of accounts, most of which are free; one is written as a whole.
const AccountSlots Behaviour = "accounts are slots"

// shortestPassword that the account service takes.
const shortestPassword = 8

// accounts are how many there are, and the number of the one with the service's name and password.
func (s *Service) accounts() (n, own int) {
	if s.slots() {
		return 16, 3
	}
	return 2, 2
}

func (s *Service) slots() bool {
	return s.cfg.Personality.Has(AccountSlots)
}

// Password is the one that the account has now.
func (s *Service) Password() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Password
}

// account is an account, or the service or the collection of them.
func (s *Service) account(path string) object {
	n, own := s.accounts()
	switch {
	case path == accountService:
		return object{"@odata.id": path, "@odata.type": "#AccountService.v1_15_0.AccountService",
			"Id": "AccountService", "Name": "Account Service", "ServiceEnabled": true,
			"MinPasswordLength": shortestPassword, "MaxPasswordLength": 40, "Accounts": odata.Link(accountsPath)}
	case path == accountsPath:
		return odata.Numbered(path, "ManagerAccountCollection", "Accounts", n)
	}
	if i, ok := odata.Number(path, accountsPath, n); ok {
		name, role := "", "None"
		switch {
		case i == own:
			name, role = s.cfg.User, "Administrator"
		case i < own && !s.slots():
			name, role = "operator", "Operator"
		}
		return object{"@odata.id": path, "@odata.type": "#ManagerAccount.v1_12_0.ManagerAccount", "Id": fmt.Sprint(i),
			"Name": "Account", "UserName": name, "Password": nil, "RoleId": role, "Enabled": name != "",
			"Locked": false, "AccountTypes": []string{"Redfish"}}
	}
	return nil
}

// patchAccount changes the password of the service's account.
func (s *Service) patchAccount(path string, body object) *odata.Problem {
	_, own := s.accounts()
	for key, v := range body {
		switch key {
		case "UserName", "RoleId", "Enabled":
			if is := s.account(path)[key]; v != is {
				return odata.Fault("PropertyValueNotInList", fmt.Sprint(v), key)
			}
		case "Password":
		default:
			return odata.Fault("PropertyUnknown", key)
		}
	}
	password, isText := body["Password"].(string)
	switch {
	case strings.TrimPrefix(path, accountsPath+"/") != fmt.Sprint(own):
		return odata.Fault("OperationNotAllowed")
	case !isText:
		return odata.Fault("PropertyMissing", "Password")
	case s.slots() && (body["UserName"] == nil || body["Enabled"] == nil || body["RoleId"] == nil):
		return odata.Fault("PropertyMissing", "UserName")
	case len(password) < shortestPassword || len(password) > 40:
		return odata.Fault("PropertyValueTypeError", "******", "Password")
	}
	s.mu.Lock()
	s.cfg.Password = password
	clear(s.sessions) // as controllers do: sessions of the old one end
	s.mu.Unlock()
	return nil
}
