"""The numbered steps of the schema. A step that was released is never changed; the store checks that it was not."""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    # 1: the first schema
    """
    CREATE TABLE sources (           -- what is stored of each publisher's life
        src TEXT PRIMARY KEY,
        upto INTEGER NOT NULL,
        above BLOB NOT NULL,         -- MessagePack list of stored seqs beyond a gap
        given_up INTEGER NOT NULL,
        seen_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE journal (           -- events of turns that are not stored yet
        id INTEGER PRIMARY KEY,
        src TEXT NOT NULL,
        seq INTEGER NOT NULL,
        signal BLOB NOT NULL,
        UNIQUE (src, seq)
    );
    CREATE TABLE turns (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace TEXT NOT NULL,
        agent TEXT NOT NULL,
        session TEXT NOT NULL,
        session_id TEXT,
        opened_ms INTEGER NOT NULL,
        closed_ms INTEGER NOT NULL,
        closed_by TEXT NOT NULL,
        status TEXT NOT NULL,
        outcome TEXT NOT NULL,
        reason TEXT,
        revision INTEGER NOT NULL,
        speaker TEXT NOT NULL,
        answerer TEXT NOT NULL,
        user TEXT NOT NULL,
        assistant TEXT NOT NULL,
        transcript TEXT,
        workspace TEXT,
        noted INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX turns_to_note ON turns (id) WHERE noted = 0;
    CREATE INDEX turns_of_agent ON turns (agent, outcome, reason);
    CREATE TABLE turn_runs (
        namespace TEXT NOT NULL,
        session TEXT NOT NULL,
        run_id TEXT NOT NULL,
        turn_id INTEGER NOT NULL REFERENCES turns (id),
        PRIMARY KEY (namespace, session, run_id)
    ) WITHOUT ROWID;
    CREATE INDEX runs_of_turn ON turn_runs (turn_id);
    CREATE TABLE memories (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace TEXT NOT NULL,
        turn_id INTEGER REFERENCES turns (id),
        kind TEXT NOT NULL,
        category TEXT,
        text TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        importance REAL NOT NULL DEFAULT 0.5 CHECK (importance BETWEEN 0 AND 1),
        confidence REAL NOT NULL DEFAULT 1 CHECK (confidence BETWEEN 0 AND 1),
        decay TEXT NOT NULL DEFAULT 'durable'
            CHECK (decay IN ('permanent', 'durable', 'normal', 'short', 'ephemeral')),
        pinned INTEGER NOT NULL DEFAULT 0,
        expires_ms INTEGER,
        superseded_by INTEGER,       -- what holds instead; it may have been removed since
        entity TEXT,                 -- whom or what it is about
        source TEXT                  -- the path it was read from
    );
    CREATE INDEX memories_of_namespace ON memories (namespace, id);
    CREATE INDEX digest_of_namespace ON memories (namespace, id) WHERE kind <> 'turn';
    CREATE INDEX memories_of_turn ON memories (turn_id);
    CREATE INDEX notes_by_text ON memories (namespace, text) WHERE kind = 'note';
    CREATE INDEX memories_of_entity ON memories (namespace, entity, created_ms)
        WHERE entity IS NOT NULL AND superseded_by IS NULL;
    CREATE INDEX memories_of_category ON memories (namespace, category, created_ms)
        WHERE category IS NOT NULL AND superseded_by IS NULL;
    CREATE TABLE links (             -- between memories of one namespace
        namespace TEXT NOT NULL,
        from_id INTEGER NOT NULL,
        to_id INTEGER NOT NULL,
        type TEXT NOT NULL CHECK (type IN ('supersedes', 'caused_by', 'part_of', 'related_to', 'depends_on')),
        PRIMARY KEY (namespace, from_id, to_id, type)
    ) WITHOUT ROWID;
    CREATE INDEX links_to ON links (namespace, to_id);
    CREATE TABLE models (
        id INTEGER PRIMARY KEY,
        identity TEXT NOT NULL UNIQUE, -- of the embedding model and, after a blank, the analyser of words, with settings
        dimensions INTEGER NOT NULL,   -- 0: not known before the first vector
        last_used INTEGER NOT NULL DEFAULT 0 -- 1: that of the last start; every memory has a row of it
    );
    CREATE TABLE embeddings (
        memory_id INTEGER NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
        model_id INTEGER NOT NULL REFERENCES models (id),
        vector BLOB,                 -- little-endian 16-bit floats, unit length; NULL: yet to be made; zeros: refused
        terms TEXT NOT NULL,         -- the text's index terms, separated by blanks
        features BLOB NOT NULL,      -- MessagePack: its passages, speakers and terms as numbers, for scoring
        PRIMARY KEY (memory_id, model_id)
    ) WITHOUT ROWID;
    CREATE INDEX vectors_to_make ON embeddings (model_id, memory_id) WHERE vector IS NULL;
    CREATE TABLE tombstones (        -- removed memories, in order: the indexes follow it
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace TEXT NOT NULL,
        memory_id INTEGER NOT NULL,
        forgotten INTEGER NOT NULL   -- 1: a person's wish; 0: replaced by a later version of its turn
    );
    CREATE INDEX tombstones_of_namespace ON tombstones (namespace, id);
    CREATE INDEX tombstones_of_memory ON tombstones (memory_id);
    CREATE TABLE toggles (           -- where memory is off; both empty: everywhere
        agent TEXT NOT NULL,
        session TEXT NOT NULL,
        PRIMARY KEY (agent, session)
    ) WITHOUT ROWID;
    CREATE TABLE recalls (           -- the log of answered prompts: bounded, and no memory's text is in it
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace TEXT NOT NULL,
        agent TEXT NOT NULL,
        session TEXT NOT NULL,
        run_id TEXT NOT NULL,        -- '' where the host named none
        at_ms INTEGER NOT NULL,
        quotes INTEGER NOT NULL,     -- 1: the turns before it are in it
        record BLOB NOT NULL         -- MessagePack: what was asked, found and decided, and how long it took
    );
    CREATE INDEX recalls_of_agent ON recalls (namespace, agent, id);
    CREATE INDEX recalls_by_time ON recalls (at_ms);
    CREATE TABLE uses (              -- how often a memory was injected; ranking does not look at it
        memory_id INTEGER PRIMARY KEY REFERENCES memories (id) ON DELETE CASCADE,
        uses INTEGER NOT NULL,
        last_used_ms INTEGER NOT NULL
    );
    """,
)
