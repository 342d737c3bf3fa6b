package raid

import (
	"encoding/binary"
	"encoding/hex"
)

const (
	bootCodeSize  = 440 // of a master boot record; the table follows
	bootOffset    = 432 // offset of the sector number that the record adds
	bootRecordHex = "" +
		"fa31c08ed0bc007c8ed8fbfcff0e1304a11304c1e0068ec0be007c31ffb90001f3a5268816950166a14c002666a3910106683500cbfac706" +
		"4c0080008c0e4e00fb0e1fbe61018a169501b442cd13721831c08ed88ec0813efe7d55aa750a2e8a169501ea007c00000e1fbe7101ac84c0" +
		"7409b40ebb0700cd10ebf2cd18f4ebfb2e3a169501751680fc42720780fc447611eb0a80fc02720580fc04763d2eff2e910166502e66a1b0" +
		"01660144082e66a1b4016611440c66589c2eff1e91019c66502e66a1b001662944082e66a1b4016619440c66589dfbca020066601e0689e5" +
		"b40831ff8ec79c2eff1e9101726683e13f0fb6fe478b461c86e0c0ec06f7e766c1e21089c2660fb646196601c2660fb7c9660fafd18a461c" +
		"6683e03f66486601c26631c02e660316b0012e661306b40166506652ff7600ff76140fb64620506a10161f89e68a662180c4408a56189c2e" +
		"ff1e910189ec886621071f6661fbca020010000100007c000000000000000000004e6f7468696e6720746f20737461727420696e20746865" +
		"2061727261790d0a"
)

// bootRecord returns the code for sector 0 of a member's disk by which a BIOS starts the system in the array:
// testdata/shift.S. sector is the start of the array's data on the disk, in the BIOS's sectors. It is for arrays whose
// members hold the data unchanged: RAID 1.
func bootRecord(sector uint64) []byte {
	code, err := hex.DecodeString(bootRecordHex)
	if err != nil {
		panic(err) // the constant above
	}
	b := make([]byte, bootCodeSize)
	copy(b, code)
	binary.LittleEndian.PutUint64(b[bootOffset:], sector)
	return b
}
