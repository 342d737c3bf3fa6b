package store

import (
	"database/sql"

	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// dialect is where SQLite and PostgreSQL differ. All other statements are the same: placeholders are translated by the
// connection.
type dialect struct {
	// member is the text of a member of the document in p.doc; flag that of a boolean, as a number.
	member, flag func(key string) string
	find         string         // function of text and part: where that begins
	vacuum       string         // makes what was deleted unreadable in the database's files
	snapshot     *sql.TxOptions // of a transaction whose queries see the same moment

	full, damaged, busy func(error) bool
}

// kindOf sorts an error of a statement for those who count them.
func (d *dialect) kindOf(err error) string {
	switch {
	case d.full(err):
		return "full"
	case d.damaged(err):
		return "damaged"
	case d.busy(err):
		return "busy"
	case postgres.Cut(err):
		return "away"
	}
	return "other"
}

var sqliteDialect = dialect{
	member: func(key string) string { return "COALESCE(p.doc ->> '$." + key + "', '')" },
	flag:   func(key string) string { return "COALESCE(p.doc ->> '$." + key + "', 0)" },
	find:   "INSTR", vacuum: "VACUUM", full: sqliteFull, damaged: pageError, busy: sqliteBusy,
}

var postgresDialect = dialect{
	member: func(key string) string { return "COALESCE(" + jsonMember(key) + ", '')" },
	flag:   func(key string) string { return "CASE " + jsonMember(key) + " WHEN 'true' THEN 1 ELSE 0 END" },
	find:   "STRPOS", vacuum: "VACUUM (FULL) nodes, config_drives, results, resources, key_check",
	snapshot: &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
	full:     postgres.Full, damaged: postgres.Damaged, busy: postgres.Locked,
}

// jsonMember reads a member of p.doc. U+0000 is kept in documents, but PostgreSQL takes no such text out of one.
// Escaped
// backslashes are out of the way meanwhile, as the first character for private use.
func jsonMember(key string) string {
	return `(replace(replace(replace(p.doc, '\\', '\ue000'), '\u0000', '\ufffd')::json ->> '` + key +
		`', chr(57344), '\') COLLATE "C")`
}
