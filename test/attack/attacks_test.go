package attack

import (
	"strings"
	"testing"
)

// Who attacks. People are in world_test.go.
const (
	stranger     = "stranger"
	reader       = "reader"
	member       = "member"
	owner        = "owner"
	lessee       = "lessee"
	nextLessee   = "next lessee"
	otherAgent   = "agent of another node"
	rescued      = "rescued machine"
	outsideWorld = "what is outside" // images, controllers, disks, clocks, and a power cut
)

// actors are the people and the tests that stand for each of them.
var actors = map[string][]string{
	stranger: {anonymous, eve, mel}, reader: {auditor, rita, zoe}, member: {otto, lena}, owner: {olga},
	lessee: {leo, lena}, nextLessee: {nina}, otherAgent: {"test/attack.TestAgentOfAnotherNode"},
	rescued: {"test/attack.TestRescuedMachine"}, outsideWorld: {"test/attack.TestDamagedDatabase"},
}

// attacks are all attacks that are known, as whom they are made, and the tests that show that they fail. What another
// package shows is not shown here once more.
var attacks = []struct {
	what  string
	as    []string
	tests string
}{
	{"every route: anonymous, bad token, wrong password, no role, another project, too large a body",
		[]string{stranger, reader, member, owner, lessee, nextLessee},
		"test/attack.TestEveryRoute conductor/api.TestEveryRouteForEverybody conductor/api.TestAnonymousIsRefused"},
	{"a stranger looks for nodes, ports, volumes, allocations, log and events", []string{stranger},
		"test/attack.TestEveryRoute test/attack.TestStrangers conductor/api.TestSeeing conductor/api.TestSeeingParts conductor/api.TestEventsAreForWhoMaySee conductor/api.TestAllocationsOfProjects"},
	{"reserved members, JSON patches that copy and move, microversions", []string{owner, lessee},
		"test/attack.TestTricks conductor/rest.FuzzPatch conductor/api.FuzzNodePatch"},
	{"SQL in sort_key, marker, fields and text", []string{owner, stranger},
		"test/attack.TestTricks conductor/api.FuzzQueries"},
	{"traversal, CRLF, NUL, invalid UTF-8, 100,000 brackets, large headers and bodies", []string{owner, stranger},
		"test/attack.TestTricks test/attack.TestManyValues conductor/api.FuzzBodies conductor/api.FuzzHeaders"},
	{"two tokens; many event streams", []string{reader, stranger}, "test/attack.TestTricks"},
	{"slow heads and bodies, many connections", []string{stranger, owner, otherAgent},
		"test/attack.TestHalfSentRequests test/attack.TestHalfSentMessage test/attack.TestConnectionsPerAddress conductor/guard/limit.TestConnectionsAreCounted"},
	{"basic authentication: names found out by time, NUL, long passwords, guesses", []string{stranger},
		"conductor/access.TestUnknownUsersCostAsMuch conductor/access.TestBasicLogin conductor/access.FuzzHeaders test/attack.TestGuessedPasswords"},
	{"enrolment: a guess, another node's token, MAC, key, boot; again", []string{otherAgent, stranger},
		"test/attack.TestAgentOfAnotherNode conductor/agents.TestEnrollRefused conductor/agents.TestEnrollAsAnotherMachine conductor/agents.TestEnrollMalformed"},
	{"certificates: none, self-signed, signed by an agent's, of another boot or generation, after the node's end",
		[]string{otherAgent},
		"test/attack.TestAgentOfAnotherNode conductor/agents.TestSessionOfAnOldBoot conductor/agents.TestCertificatesOfAnotherTime conductor/app.TestFromEnrolToActive"},
	{"an agent's plan that is foreign, indices, done without steps; large results", []string{otherAgent, rescued},
		"test/attack.TestAgentOfAnotherNode test/attack.TestRescuedMachine conductor/agents.TestResultsAreBounded"},
	{"an agent that claims to be a controller, whose inventory may lack what an agent's must have",
		[]string{otherAgent, rescued}, "conductor/engine/findings.TestAgentsDoNotChooseTheirChecks"},
	{"an agent that is sent to another conductor: by a server of another CA, to such a server, to what is no address, to and fro; strangers that ask for the owner's address",
		[]string{stranger},
		"agent.TestRedirectByAnotherServer agent.TestRedirectToTheDead agent.TestRedirectToNonsense agent.TestRedirectToAndFro proto/agentv1.TestCheckAddress conductor/agents.TestWhereTheOwnerIsIsForAgents conductor/agents.TestStubbornAgent"},
	{"requests in the name of a conductor: without a certificate, with an agent's, one of another kind, CA or time; forged headers at the API; large, half-sent, smuggled, HTTP/2, many connections",
		[]string{stranger, otherAgent},
		"test/attack.TestStrangersToConductorsListener conductor/peer.TestStrangersAreNotAnswered conductor/peer.TestMessages conductor/api.TestForgedOrigin conductor/agents.TestSign agent.TestTrust"},
	{"a server that a conductor takes for another: of another name, kind or CA, that answers garbage, without end or never",
		[]string{outsideWorld},
		"conductor/peer.TestStrangersAreNotAsked conductor/peer.TestLostAnswers conductor/peer.TestOwnerOutOfReach conductor/peer.TestOneConductorIsNotFlooded"},
	{"images that are files, gopher:, nbd: or of the conductor's host", []string{owner, lessee},
		"test/attack.TestImpossibleDeploymentsAreRefused conductor/engine.TestRefusals"},
	{"redirects to other schemes, loops; credentials for another host", []string{outsideWorld},
		"agent/fetch.TestRedirects conductor/guard/dial.TestTransport"},
	{"hostile images: backing and data files, json:, VMDK, L2 loops, bombs", []string{outsideWorld},
		"images/qcow2.TestHostile images/qcow2.TestMemoryLimit images/qcow2.FuzzOpen images.TestOpenRefuses images.TestBombs images.TestLyingSizes images.FuzzOpen images/vhd.TestRefusals images/vhd.FuzzOpen"},
	{"no digest, MD5, SHA-1", []string{owner, lessee},
		"test/attack.TestImpossibleDeploymentsAreRefused conductor/engine.TestRefusals"},
	{"iPXE words in parameters and URLs", []string{stranger, owner},
		"test/attack.TestBootHTTP conductor/netboot.TestKernelParams conductor/netboot.FuzzCommandLine conductor/netboot.TestWorkloadOfABadEdit"},
	{"DHCP packets by chance, from strangers; a script for another address", []string{stranger},
		"conductor/netboot.FuzzAnswer conductor/netboot.TestReadRefuses conductor/netboot.TestDecide conductor/netboot.TestAdmission conductor/netboot.TestWorkloadDriveIsForTheLease conductor/netboot.TestRepliesAreBounded"},
	{"DHCP offers made up for the conductor's own probe", []string{stranger},
		"conductor/netboot/probe.TestMadeUpServersAreBounded conductor/netboot/probe.TestAnswersToOthersAreIgnored conductor/netboot/probe.FuzzRead conductor/netboot/rawudp.FuzzParse"},
	{"boot HTTP and TFTP: fetches in another machine's name, MACs without end, the script of a node with an instance",
		[]string{stranger},
		"conductor/netboot.TestFetchesAreOfWhoMadeThem conductor/netboot.TestFetchesBehindARelay conductor/netboot.TestSecondCardBoots conductor/netboot.TestActiveNodeStartsItsDisk"},
	{"boot HTTP and TFTP: traversal, symbolic links, lists, names, options, writes", []string{stranger},
		"test/attack.TestBootHTTP conductor/netboot.TestHTTPFiles conductor/netboot.TestEveryFileOfferedIsServed conductor/netboot.TestTransfersAreBounded"},
	{"the rescue password", []string{rescued, reader},
		"test/attack.TestRescuedMachine test/attack.TestCanaries conductor/engine.TestRescuePassword conductor/engine.TestRescue"},
	{"the database and a backup: read, evil, cut off, flipped", []string{outsideWorld},
		"test/attack.TestTricks conductor/store.TestSecretsAreSealed conductor/store/backup.TestRestoreRefuses conductor/store/backup.TestBackupWhileWriting conductor/store/migrate.TestRefusals conductor/store/migrate.TestBadText"},
	{"killed in the middle of requests", []string{outsideWorld},
		"test/attack.TestKilledInFlight conductor/store.TestKill conductor/engine.TestDieAtMoments conductor/engine.TestDieAtEveryWrite conductor/app.TestKilledWhileDeploying"},
	{"a full disk", []string{outsideWorld}, "test/attack.TestFullDisk"},
	{"read-only directory, wrong or missing key, a second ingotd, a port in use", []string{outsideWorld},
		"test/attack.TestStartsThatAreRefused test/attack.TestDamagedDatabase conductor/app.TestSecondConductorOnTheSameData conductor/app.TestProgramRefusesAndHelps"},
	{"boot images for virtual media: a guessed address, another boot's, after the boot; a drive of another machine",
		[]string{stranger, outsideWorld},
		"conductor/netboot.TestBootImageIsOfOneBoot conductor/netboot.TestBootImageFails conductor/hardware/redfish.TestMediaOfAnother"},
	{"network data: larger than an image has room for, loops, what is not there", []string{owner},
		"proto/netdata.TestParseRefuses proto/netdata.FuzzParse conductor/netboot.TestBootImageHasNetworkData"},
	{"a controller found by its address that wants the password, has another certificate, or answers without end",
		[]string{outsideWorld}, "tools/enrol/discover.TestPasswordStays tools/enrol/discover.TestOthers tools/enrol/probe.TestHostileProbe tools/enrol/probe.TestReadArchive"},
	{"lists of machines: anchors that double, 100,000 rows, passwords in the wrong place", []string{outsideWorld},
		"tools/enrol.TestFaults"},
	{"asked to end in the middle of a request", []string{outsideWorld}, "test/attack.TestAskedToEnd"},

	{"errors that print values; secrets in lists", []string{reader, member, owner},
		"test/attack.TestPatchErrorsHoldNoValues test/attack.TestCanaries conductor/guard/redact.TestSecretsAreHiddenHoweverDeep"},
	{"lookup", []string{stranger}, "test/attack.TestLookupShowsNoInstance"},
	{"the config drive of a known MAC", []string{stranger}, "test/attack.TestConfigDriveOfAKnownMAC"},
	{"what one view hides and another shows", []string{lessee, nextLessee},
		"test/attack.TestTenancyHidesWhatWasBefore test/attack.TestResultsStoredApart test/attack.TestLease"},
	{"a stored password sent to a new address", []string{member, owner, lessee},
		"test/attack.TestPasswordsDoNotFollowAnAddress conductor/hardware/redfish.TestWrongPassword"},
	{"the header Host in links", []string{stranger}, "test/attack.TestLinksDoNotCopyTheHost"},
	{"requests that the conductor makes", []string{owner},
		"test/attack.TestUsersReachNothingThroughTheConductor conductor/guard/dial.TestCheck conductor/signoflife.TestAddresses conductor/hardware/redfish.TestGuardedAddress conductor/hardware/redfish.TestFirmwareChecksumIsGuarded conductor/hardware/redfish.TestFaults"},
	{"anonymous bodies", []string{stranger},
		"test/attack.TestAnonymousBodies test/attack.TestStrangersToAgentsListener"},
	{"a node that grows", []string{owner}, "test/attack.TestNodesStaySmall conductor/agents.TestResultsAreBounded"},
	{"TFTP and DHCP as amplifiers", []string{stranger},
		"conductor/netboot.TestTransfersAreBounded conductor/netboot.TestRepliesAreBounded"},
	{"wrong passwords that delay others", []string{stranger},
		"test/attack.TestGuessedPasswords conductor/access.TestFirstLoginPassesGuessers"},
	{"a history that is pushed out", []string{rescued, owner},
		"test/attack.TestRescuedMachine test/attack.TestRequestsOfPeopleStay conductor/store.TestRequestsOutliveReports"},
	{"a Keystone, a controller and image servers that answer without end", []string{outsideWorld},
		"conductor/access.TestHostileKeystone conductor/hardware/power/ipmi.TestSlow conductor/hardware/redfish.TestFaults conductor/hardware/redfish.TestHostileInspection conductor/hardware/redfish.TestHostileBIOS conductor/hardware/redfish.TestHostileRAID conductor/hardware/redfish.TestHostileTasks conductor/hardware/redfish.TestHostileSubscriptions agent/fetch.TestMoreThanAnnounced conductor/hardware/redfish.TestHostileHealth conductor/hardware/redfish.TestHostileFirmware"},
	{"a damaged, empty, lost or foreign database", []string{outsideWorld},
		"test/attack.TestDamagedDatabase test/attack.TestPageErrorAtRunTime conductor/store.TestUnusableDatabaseIsRefused"},
	{"keys that others can read", []string{outsideWorld}, "test/attack.TestKeysOpenToOthers"},
	{"no file descriptors; a clock that is set back", []string{outsideWorld},
		"test/attack.TestNoFileDescriptors conductor/observe/shortage.TestOneLineAMinute conductor/engine.TestClockSetBack"},
	{"deployments that can't be", []string{owner}, "test/attack.TestImpossibleDeploymentsAreRefused"},
	{"escape sequences and walls of text", []string{stranger},
		"test/attack.TestEscapeSequencesAreCleaned conductor/agents.TestHostileStringsAreCleanedOnArrival"},
	{"rotations that are killed", []string{outsideWorld},
		"test/attack.TestKeyRotationKilled test/attack.TestCARotation"},
}

// TestAttacksAreShownToFail: each attack is made by some actor that there is, and by tests that there are; each actor
// makes one, and has somebody to do so.
func TestAttacksAreShownToFail(t *testing.T) {
	p := proofs{}
	made := map[string]bool{}
	for _, a := range attacks {
		p.check(t, a.what, strings.Fields(a.tests))
		if len(a.as) == 0 {
			t.Errorf("%s: without an actor", a.what)
		}
		for _, actor := range a.as {
			made[actor] = true
			if len(actors[actor]) == 0 {
				t.Errorf("%s: %q is no actor", a.what, actor)
			}
		}
	}
	standing := map[string]bool{}
	for actor, by := range actors {
		if !made[actor] {
			t.Errorf("no attack is made as %s", actor)
		}
		for _, who := range by {
			standing[who] = true
			if strings.Contains(who, "/") {
				p.check(t, actor, []string{who})
			} else if _, ok := people[who]; !ok && who != anonymous {
				t.Errorf("%s: there is no %q in the world", actor, who)
			}
		}
	}
	for who := range people {
		if !standing[who] && who != root { // which may do everything
			t.Errorf("%s stands for no actor", who)
		}
	}
}
