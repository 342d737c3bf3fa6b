package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/pg"
)

// databasePause is how long PostgreSQL stays away that has ended.
const databasePause = 2 * time.Second

func databaseDir(dir string) string { return filepath.Join(dir, "postgresql") }

// DatabaseURL is the address of the database of a lab in this folder: on a socket, which the conductors in its
// namespace reach as well.
func DatabaseURL(dir string) string { return pg.Socket(databaseDir(dir), "ingot") }

// startDatabase runs PostgreSQL, and starts it again when it has ended, until the lab is taken down.
func (l *Lab) startDatabase(ctx context.Context) error {
	dir := databaseDir(l.Dir)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	db, err := pg.Create(dir, pg.SocketPort, pg.OnlySocket)
	if err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	l.mu.Lock()
	l.database = db
	l.mu.Unlock()
	if _, err := db.Query(ctx, "postgres", "CREATE DATABASE ingot"); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	go func() {
		for {
			db.Wait()
			<-time.After(databasePause)
			l.mu.Lock()
			down := l.down
			if !down {
				err := db.Start(pg.OnlySocket)
				if err != nil {
					l.opts.Log.Error("PostgreSQL can't be started again", "err", err)
					down = true
				}
			}
			l.mu.Unlock()
			if down {
				return
			}
		}
	}()
	return nil
}

// stopDatabase ends it, after the conductors.
func (l *Lab) stopDatabase(purge bool) error {
	l.mu.Lock()
	db := l.database
	l.mu.Unlock()
	if db == nil {
		return nil
	}
	if err := db.Stop(); err != nil || !purge {
		return err
	}
	return os.RemoveAll(db.Dir)
}
