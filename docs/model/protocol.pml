/*
 * The commit protocol as a model for the checker spin. What it abstracts and how to run it: README.md beside it.
 *
 * One transactional id, one data partition set and one ledger partition; drivers that know nothing of each other but
 * what coordinator, ledger and checkpoint tell them. A driver may be slow or stopped at any step (it is not scheduled),
 * and go on much later: that is a zombie. A crash of all drivers at any step is explicit: `crashed`. Then the successor
 * starts alone and has to finish.
 */

/* ---- bounds ---- */
#ifndef DRIVERS
#define DRIVERS 2        /* runs that overlap in any way; the successor after the crash is one more */
#endif
#ifndef UNITS
#define UNITS 3          /* source records; a batch takes one or two of them */
#endif
#ifndef TASKS
#define TASKS 2          /* each task writes one row for each source record of the batch */
#endif
#ifndef PARTITIONS
#define PARTITIONS 1     /* data partitions; row r goes to partition r % PARTITIONS */
#endif
#ifndef TROUBLES
#define TROUBLES 2       /* failed attempts, lost answers, transactions ended by the broker, repeated (-1, -1) */
#endif
#ifndef TRIES
#define TRIES 3          /* tries of one claim */
#endif

#define SUCCESSOR DRIVERS
#define ROWS (TASKS * PARTITIONS)
#define EVERY_ROW ((1 << ROWS) - 1)
#define EVERY_UNIT ((1 << UNITS) - 1)
#define LEDGER PARTITIONS

/* Epochs are relative, so that equal situations are equal states: the coordinator's is always CURRENT, and with each new
   one all others become older, down to 0, the same for all that are too old to matter. */
#ifdef NO_VERIFICATION
#define CURRENT 9
#define OLDEST 1
#else
#define CURRENT 3
#define OLDEST (CURRENT - 1)
#endif
#define OLDER(x) (x > OLDEST -> x - 1 : 0)
#define NO_ROW 255

/* ---- the transaction coordinator ---- */
#define EMPTY 0
#define ONGOING 1
#define PREPARE_COMMIT 2
#define PREPARE_ABORT 3
#define COMPLETE_COMMIT 4
#define COMPLETE_ABORT 5
#define ENDING (status == PREPARE_COMMIT || status == PREPARE_ABORT)

byte status = EMPTY;
byte held[DRIVERS + 1];         /* each driver's epoch */
bit may_repeat;                 /* InitProducerId with the epoch before is a repeated request: same answer again */
byte added = 0;                 /* partitions in the transaction; while it ends, those without their marker */

/* Requests of the current epoch that were sent: each may arrive late and any number of times. Those of an older epoch
   are refused whenever they arrive, so a new epoch forgets them. */
bit commit_sent, abort_sent, take_over_sent;
byte add_sent = 0;              /* a bit per partition */

/* ---- partitions: the open transaction's rows, and what readers see ---- */
byte partition_epoch[PARTITIONS + 1];
byte next_sequence[PARTITIONS + 1];
byte open_units[ROWS];          /* source records of an open row, 0: none */
byte open_epoch[ROWS];
byte visible[ROWS];             /* source records whose row is visible */
bit doubled;                    /* a row lies twice in the open transaction */

#define NOTHING 0
#define CLAIM 1
#define COMMIT 2
byte open_kind, open_run, open_batch, open_record_units, open_record_epoch;

/* What the decided commit is of; the markers follow one by one. */
byte decided_units;

/* The ledger as a read_committed reader sees it. */
byte ledger_run = 0, ledger_batch = 0, ledger_units = 0;
byte new_records[DRIVERS + 1];  /* records since the driver's read before its claim: 0, 1, or 2 for more */
byte newest_run = 0;            /* only for I5: the newest run whose start is decided */

/* ---- Produce requests of failed attempts that are still under way, one per driver and partition ---- */
#define LATES ((DRIVERS + 1) * PARTITIONS)
byte late_row[LATES];           /* NO_ROW: none; ROWS: the ledger's record */
byte late_epoch[LATES], late_sequence[LATES], late_units[LATES], late_kind[LATES], late_run[LATES], late_batch[LATES];

/* ---- Spark's checkpoint: written once each ---- */
byte planned[UNITS + 2];        /* offsets/N: all source records up to the batch's end, 0: not there */
byte done_batch = 0;            /* commits/1 .. commits/N are there */

byte troubles = TROUBLES;
byte started = 0;               /* drivers that have begun */
byte gone = 0;                  /* drivers that have ended */
bit crashed;

hidden byte k, j, at, turn;
hidden byte yes;

/* ======== broker ======== */

/* Produce requests that no partition takes any more, whenever they arrive. */
#ifdef NO_VERIFICATION
#define DEAD(l) (late_epoch[l] < partition_epoch[(late_row[l] == ROWS -> LEDGER : late_row[l] % PARTITIONS)])
#else
#define DEAD(l) (late_epoch[l] < CURRENT && !ENDING)
#endif

inline forget_late() {
    k = 0;
    do
    :: k < LATES ->
        if
        :: late_row[k] != NO_ROW && DEAD(k) -> drop(k)
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0
}

inline forget() {
    commit_sent = 0; abort_sent = 0; add_sent = 0;
    forget_late()
}

inline drop(slot) {
    late_row[slot] = NO_ROW; late_epoch[slot] = 0; late_sequence[slot] = 0; late_units[slot] = 0;
    late_kind[slot] = 0; late_run[slot] = 0; late_batch[slot] = 0
}

inline new_epoch(repeatable) {
    may_repeat = repeatable;
    k = 0;
    do
    :: k <= DRIVERS ->
        held[k] = (repeatable && held[k] == CURRENT -> CURRENT - 1 : 0); k++
    :: else -> break
    od;
    k = 0;
    do
    :: k <= PARTITIONS -> partition_epoch[k] = OLDER(partition_epoch[k]); k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < LATES -> late_epoch[k] = OLDER(late_epoch[k]); k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < ROWS -> open_epoch[k] = OLDER(open_epoch[k]); k++
    :: else -> break
    od;
    open_record_epoch = OLDER(open_record_epoch);
    forget()
}

/* A new epoch for whoever asked, when nothing is open. */
inline bump(repeatable) {
    status = EMPTY; added = 0;
    new_epoch(repeatable)
}

/* The coordinator aborts the open transaction by itself, under a new epoch that nobody gets. */
inline fence(repeatable) {
    status = PREPARE_ABORT;
    new_epoch(repeatable)
}

inline add_partition(p) {
    if
    :: status != ONGOING -> status = ONGOING; added = 1 << (p)
    :: else -> added = added | (1 << (p))
    fi
}

/* The check that Kafka makes before the first record of a transaction in a partition (KIP-890). */
#ifdef NO_VERIFICATION
#define VERIFIED(p, e) true
#else
#define VERIFIED(p, e) (status == ONGOING && (e) == CURRENT && (added & (1 << (p))))
#endif

/* Whether the Produce is acknowledged; `yes` says that it also has to be appended. */
inline admit(p, is_open, e, its_sequence, acknowledged) {
    acknowledged = false; yes = false;
    if
    :: (e) < partition_epoch[p] -> skip
    :: (e) == partition_epoch[p] && (its_sequence) < next_sequence[p] -> acknowledged = true
    :: (e) == partition_epoch[p] && (its_sequence) == next_sequence[p] && (is_open || VERIFIED(p, e)) ->
        acknowledged = true; yes = true; next_sequence[p]++
    :: (e) > partition_epoch[p] && (its_sequence) == 0 && VERIFIED(p, e) ->
        acknowledged = true; yes = true; partition_epoch[p] = e; next_sequence[p] = 1
    :: else -> skip
    fi
}

hidden byte admitted, open_here;

inline produce_row(r, e, its_sequence, its_units) {
    at = (r) % PARTITIONS;
    open_here = false; j = 0;
    do
    :: j < ROWS ->
        if
        :: j % PARTITIONS == at && open_units[j] -> open_here = true
        :: else
        fi;
        j++
    :: else -> break
    od;
    admit(at, open_here, e, its_sequence, admitted);
    if
    :: yes && open_units[r] -> doubled = 1
    :: yes && !open_units[r] -> open_units[r] = its_units; open_epoch[r] = e
    :: else
    fi
}

inline produce_record(e, its_sequence, its_kind, its_run, its_batch, its_units) {
    admit(LEDGER, open_kind != NOTHING, e, its_sequence, admitted);
    if
    :: yes && open_kind != NOTHING -> doubled = 1
    :: yes && open_kind == NOTHING ->
        open_kind = its_kind; open_run = its_run; open_batch = its_batch; open_record_units = its_units; open_record_epoch = e
    :: else
    fi
}

/* EndTxn(commit) at the current epoch while the transaction is open: from here on it is decided. */
inline decide_commit() {
    status = PREPARE_COMMIT; decided_units = 0;
    assert(!doubled);                                                       /* I1 */
    if
    :: open_kind == COMMIT -> decided_units = open_record_units; assert(open_run == newest_run)     /* I5 */
    :: open_kind == CLAIM -> assert(open_run >= newest_run); newest_run = open_run
    :: else
    fi;
    if
    :: open_kind != NOTHING -> assert(open_record_epoch == CURRENT)           /* I2 */
    :: else
    fi;
    k = 0;
    do
    :: k < ROWS ->
        assert(open_units[k] == decided_units);                             /* I3 */
        assert(open_units[k] == 0 || open_epoch[k] == CURRENT);               /* I2 */
        k++
    :: else -> break
    od;
    k = 0
}

inline count_record() {
    k = 0;
    do
    :: k <= DRIVERS -> new_records[k] = (new_records[k] < 2 -> new_records[k] + 1 : 2); k++
    :: else -> break
    od
}

inline write_marker(p) {
    if
    :: (p) == LEDGER ->
        if
        :: status == PREPARE_COMMIT && open_kind == CLAIM ->
            ledger_run = open_run; count_record()
        :: status == PREPARE_COMMIT && open_kind == COMMIT ->
            assert(open_batch == ledger_batch + 1);                         /* I4: no gap, no repeat */
            assert((ledger_units & open_record_units) == 0);                /* I4: no overlap */
            ledger_batch = open_batch; ledger_units = ledger_units | open_record_units;
            count_record();
            assert((ledger_units & (ledger_units + 1)) == 0)                /* I4: no gap in the source */
        :: else
        fi;
        open_kind = NOTHING; open_run = 0; open_batch = 0; open_record_units = 0; open_record_epoch = 0
    :: else ->
        k = 0;
        do
        :: k < ROWS ->
            if
            :: k % PARTITIONS == (p) && status == PREPARE_COMMIT && open_units[k] ->
                assert(open_units[k] == decided_units && open_epoch[k] == CURRENT && !doubled);   /* I2, I3 */
                assert((visible[k] & open_units[k]) == 0);                  /* I1 */
                visible[k] = visible[k] | open_units[k]
            :: else
            fi;
            if
            :: k % PARTITIONS == (p) -> open_units[k] = 0; open_epoch[k] = 0
            :: else
            fi;
            k++
        :: else -> break
        od
    fi;
    if
    :: partition_epoch[p] < CURRENT -> partition_epoch[p] = CURRENT; next_sequence[p] = 0
    :: else
    fi;
    added = added & ~(1 << (p));
    if
    :: added == 0 ->
        status = (status == PREPARE_COMMIT -> COMPLETE_COMMIT : COMPLETE_ABORT);
        decided_units = 0; doubled = 0;
        forget_late()
    :: else
    fi
}

/* A late Produce arrives; if it is refused, its sender may send it again. */
inline deliver(slot) {
    if
    :: late_row[slot] == ROWS -> produce_record(late_epoch[slot], late_sequence[slot],
        late_kind[slot], late_run[slot], late_batch[slot], late_units[slot])
    :: else -> produce_row(late_row[slot], late_epoch[slot], late_sequence[slot], late_units[slot])
    fi;
    if
    :: admitted -> drop(slot)
    :: else
    fi
}
#define DELIVER(slot) d_step { late_row[slot] != NO_ROW -> deliver(slot) }

/* A late or repeated AddPartitionsToTxn: of the open transaction, or after its end, which opens another one. */
#define JOIN(p) d_step { (add_sent & (1 << p)) && status == ONGOING && !(added & (1 << p)) -> add_partition(p) }
#define REOPEN(p) d_step { troubles && (add_sent & (1 << p)) && status != ONGOING && !ENDING -> troubles--; add_partition(p) }

/* Markers, late and repeated requests, and what the broker does by itself. */
active proctype Broker() {
end:
    do
    :: d_step { ENDING && (added & 1) -> write_marker(0) }
    :: d_step { ENDING && (added & 2) -> write_marker(1) }
#if PARTITIONS == 2
    :: d_step { ENDING && (added & 4) -> write_marker(2) }
#endif
    :: d_step { commit_sent && status == ONGOING -> decide_commit() }
    :: d_step { abort_sent && status == ONGOING -> status = PREPARE_ABORT }
    :: JOIN(0)
    :: REOPEN(0)
    :: JOIN(1)
    :: REOPEN(1)
#if PARTITIONS == 2
    :: JOIN(2)
    :: REOPEN(2)
#endif
    /* InitProducerId with the epoch before the current one, repeated: the same answer, but the state is reset */
    :: d_step { may_repeat && (status == COMPLETE_COMMIT || status == COMPLETE_ABORT) -> status = EMPTY }
    /* the transaction timed out, or an InitProducerId of an older epoch met it open */
    :: d_step { troubles && status == ONGOING -> troubles--; fence(false) }
    /* InitProducerId with (-1, -1), repeated */
    :: d_step { troubles && take_over_sent && status != ONGOING && !ENDING -> troubles--; bump(false) }
    :: DELIVER(0)
#if LATES > 1
    :: DELIVER(1)
#endif
#if LATES > 2
    :: DELIVER(2)
#endif
#if LATES > 3
    :: DELIVER(3)
#endif
#if LATES > 4
    :: DELIVER(4)
#endif
#if LATES > 5
    :: DELIVER(5)
#endif
    od
}

/* ======== drivers ======== */

/* InitProducerId with (-1, -1). If the transaction that it aborted is followed by another one, patience ends. */
#define TAKE_OVER(again) \
    if \
    :: d_step { status == ONGOING -> take_over_sent = 1; fence(false) } \
    :: atomic { !ENDING && status != ONGOING -> skip } \
    fi; \
    if \
    :: d_step { !ENDING && status != ONGOING -> take_over_sent = 1; bump(false); held[id] = CURRENT } \
    :: atomic { status == ONGOING -> goto again } \
    fi

/* EndTxn(abort), which ends what a straggler of ours has opened and tells whether somebody has taken over, and then
   InitProducerId with the current (producer id, epoch). Goes on with the next epoch, or at the label `lost`.
   An InitProducerId aborts what is open, whoever asks: what a straggler has opened meanwhile (the repeated request is
   answered with PRODUCER_FENCED or, depending on the release, with an epoch), or a successor's transaction. */
#if defined(NO_EPOCH_BUMP)
#define BEGIN(lost) \
    if \
    :: atomic { MINE && !ENDING -> skip } \
    :: atomic { !MINE -> goto lost } \
    fi
#elif defined(ALWAYS_MINUS_ONE)
#define BEGIN(lost) TAKE_OVER(lost)
#else
#define BEGIN(lost) \
    atomic { \
        if \
        :: !MINE -> goto lost \
        :: MINE -> abort_sent = 1; \
            if \
            :: status == ONGOING -> status = PREPARE_ABORT \
            :: status != ONGOING \
            fi \
        fi }; \
    do \
    :: atomic { MINE && !ENDING && status != ONGOING -> bump(true); held[id] = CURRENT; break } \
    :: d_step { MINE && status == ONGOING -> fence(false) } \
    :: d_step { MINE && status == ONGOING -> fence(true) } \
    :: atomic { held[id] == CURRENT - 1 && !ENDING && status != ONGOING -> status = EMPTY; added = 0; held[id] = CURRENT; break } \
    :: atomic { held[id] == 0 && !ENDING -> \
        if \
        :: status == ONGOING -> d_step { fence(false) } \
        :: true \
        fi; \
        goto lost } \
    od
#endif

#define MINE (held[id] == CURRENT)
#define SUPERSEDED (number && ledger_run > number)

/* The Produce of an attempt that is given up stays under way. */
inline stay_under_way(slot, r, its_sequence, its_units, its_kind, its_run, its_batch) {
    d_step {
        late_row[slot] = r; late_epoch[slot] = held[id]; late_sequence[slot] = its_sequence; late_units[slot] = its_units;
        late_kind[slot] = its_kind; late_run[slot] = its_run; late_batch[slot] = its_batch
    }
}

#define START 0
#define RETRY 1
#define IN_DOUBT 2

/* Rows that the other task has written to the same partition: the sequence number. */
#define AHEAD(r) ((rows_done & (1 << (((r) + PARTITIONS) % ROWS))) != 0)

/* A task sends its row, or its attempt is given up with the request under way. */
#define SEND(r) !(rows_done & (1 << (r))) -> \
    add_sent = add_sent | (1 << ((r) % PARTITIONS)); \
    if \
    :: d_step { \
        add_partition((r) % PARTITIONS); \
        SEQUENCE((r) % PARTITIONS, AHEAD(r)); produce_row(r, CURRENT, turn, end_units & ~before) }; \
        if \
        :: admitted -> rows_done = rows_done | (1 << (r)) \
        :: else -> goto abort \
        fi \
    :: troubles -> troubles--; \
        SEQUENCE((r) % PARTITIONS, AHEAD(r)); \
        stay_under_way(id * PARTITIONS + (r) % PARTITIONS, r, turn, \
            end_units & ~before, 0, 0, 0); \
        goto abort \
    fi

#ifdef NO_EPOCH_BUMP         /* the sequencer then has to count on; it is told the truth */
#define SEQUENCE(p, count) turn = (partition_epoch[p] == CURRENT -> next_sequence[p] : 0)
#else
#define SEQUENCE(p, count) turn = (count)
#endif

proctype Driver(byte id) {
    byte number, claim_run, tail_batch, tail_units;       /* the session, and the ledger as of the claim */
    byte batch, before, end_units, rows_done, tries, doubt;
    bit fresh = 1;

    {
        if
        :: id < SUCCESSOR -> atomic { started == id -> started++ }          /* alike but for their order */
        :: id == SUCCESSOR -> crashed && gone == DRIVERS
        fi;

        /* (a) to (c): nothing is decided but from a read after the take-over that ends with the own claim */
claim:
again:
        atomic {
            if
            :: SUPERSEDED -> goto over
            :: !SUPERSEDED && tries == TRIES -> goto over
            :: else -> tries = (id == SUCCESSOR -> 0 : tries + 1)
            fi
        }
#ifdef READ_BEFORE_TAKE_OVER
        d_step { tail_batch = ledger_batch; tail_units = ledger_units };
#endif
        TAKE_OVER(again);
        atomic {
            if
            :: SUPERSEDED -> goto over
            :: else -> new_records[id] = 0; claim_run = (number -> number : ledger_run + 1)
            fi;
#ifdef NO_CLAIM
            if
            :: !number -> newest_run++; number = newest_run
            :: else
            fi;
            tail_batch = ledger_batch; tail_units = ledger_units
#endif
        };
#ifndef NO_CLAIM
        BEGIN(again);
        atomic { !MINE || !ENDING ->
            if
            :: !MINE -> goto again
            :: MINE ->
                add_sent = add_sent | (1 << LEDGER);
                if
                :: d_step { add_partition(LEDGER); SEQUENCE(LEDGER, 0); produce_record(CURRENT, turn, CLAIM, claim_run, 0, 0) };
                    if
                    :: admitted
                    :: else -> goto again
                    fi
                :: troubles -> troubles--;
                    SEQUENCE(LEDGER, 0); stay_under_way(id * PARTITIONS, ROWS, turn, 0, CLAIM, claim_run, 0); goto again
                fi
            fi
        };
        atomic {
            if
            :: !MINE -> goto again
            :: MINE -> commit_sent = 1;
                if
                :: status == ONGOING -> d_step { decide_commit() }
                :: status == PREPARE_COMMIT || status == COMPLETE_COMMIT
                :: status == EMPTY || status == COMPLETE_ABORT -> goto again
                :: troubles -> troubles--; goto again
                fi
            fi
        };
        /* read of the claim, once its marker is written */
        atomic { !(status == PREPARE_COMMIT && (added & (1 << LEDGER))) ->
            if
            :: new_records[id] == 1 -> new_records[id] = 2; number = claim_run; claim_run = 0; tries = 0;
#ifndef READ_BEFORE_TAKE_OVER
                tail_batch = ledger_batch; tail_units = ledger_units
#endif
            :: else -> goto again
            fi
        };
#endif
        if
        :: doubt == RETRY -> doubt = START; goto attempt
        :: doubt == IN_DOUBT -> doubt = START;
            if
            :: tail_batch >= batch -> goto written
            :: else -> goto attempt
            fi
        :: doubt == START
        fi;

        /* (d): a checkpoint that doesn't fit is refused; that happens only to a number that is superseded */
        atomic {
            if
            :: done_batch > tail_batch ->
#ifndef NO_CLAIM
                assert(SUPERSEDED);
#endif
                goto over
            :: else -> assert(done_batch + 1 >= tail_batch)
            fi
        };

        /* Spark: the newest batch without commits/N again, or the next one */
plan:
        atomic {
            rows_done = 0;
            if
            :: fresh -> batch = done_batch + 1
            :: else -> batch++
            fi;
            before = planned[batch - 1];
            if
            :: before == EVERY_UNIT -> goto all_done
            :: before != EVERY_UNIT && planned[batch] && !fresh -> goto over  /* another driver's */
            :: before != EVERY_UNIT && planned[batch] && fresh
            :: before != EVERY_UNIT && !planned[batch] ->
                if
                :: planned[batch] = before << 1 | 1
                :: (before << 2 | 3) <= EVERY_UNIT -> planned[batch] = before << 2 | 3
                fi
            fi;
            fresh = 0; end_units = planned[batch]
        };

attempt:
        BEGIN(lost);

        /* replay check */
#ifndef SKIP_REPLAY_CHECK
        atomic {
            if
            :: tail_batch >= batch ->
                assert(tail_batch == batch && tail_units == end_units);
                if
                :: !MINE -> goto lost
                :: else -> goto written                     /* its state is rebuilt; the attempt is empty */
                fi
            :: else
            fi
        };
#endif

        /* send: the tasks in turn; any of them may fail and leave its request under way */
        do
        :: rows_done == EVERY_ROW -> break
        :: atomic { rows_done != EVERY_ROW && (!MINE || !ENDING) ->
            if
            :: !MINE -> goto abort
            :: MINE && SEND(0)
#if PARTITIONS == 1          /* the tasks are alike: one order of their turns stands for the other */
            :: MINE && rows_done == 1 && SEND(1)
#else
            :: MINE && SEND(1)
#endif
#if ROWS > 2
            :: MINE && SEND(2)
            :: MINE && SEND(3)
#endif
            fi }
        od;

        /* pre-commit */
        atomic { !MINE || !ENDING ->
            if
            :: !MINE -> goto abort
            :: MINE ->
                add_sent = add_sent | (1 << LEDGER);
                if
                :: d_step { add_partition(LEDGER); SEQUENCE(LEDGER, 0); produce_record(CURRENT, turn, COMMIT, number, batch, end_units & ~before) };
                    if
                    :: admitted
                    :: else -> goto abort
                    fi
                :: troubles -> troubles--;
                    SEQUENCE(LEDGER, 0); stay_under_way(id * PARTITIONS, ROWS, turn, end_units & ~before, COMMIT, number, batch);
                    goto abort
                fi
            fi
        };

        /* commit */
        atomic {
            if
            :: !MINE -> goto unknown
            :: MINE -> commit_sent = 1;
                if
                :: status == ONGOING -> d_step { decide_commit() }
                :: status == PREPARE_COMMIT || status == COMPLETE_COMMIT
                :: status == EMPTY || status == COMPLETE_ABORT -> goto unknown
                :: troubles -> troubles--; goto unknown
                fi
            fi;
            tail_batch = batch; tail_units = end_units
        };

        /* commits/N: there already if another driver has written it */
written:
        atomic {
            if
            :: done_batch == batch - 1 -> done_batch = batch
            :: done_batch >= batch -> goto over
            fi;
            goto plan
        };

abort:
        atomic {
            if
            :: !MINE -> goto lost
            :: MINE -> abort_sent = 1;
                if
                :: status == ONGOING -> status = PREPARE_ABORT
                :: status != ONGOING
                :: troubles -> troubles--; goto lost
                fi
            fi;
            rows_done = 0; goto attempt
        };

unknown:
#ifdef ABORT_AFTER_COMMIT
        goto abort;
#else
#ifdef DECIDE_WITHOUT_CLAIM
        atomic {
            if
            :: ledger_batch >= batch -> goto written
            :: else -> rows_done = 0; goto attempt
            fi
        };
#else
        atomic { doubt = IN_DOUBT; rows_done = 0; goto claim };
#endif
#endif
lost:
        atomic { doubt = RETRY; rows_done = 0; goto claim };

all_done:
        atomic { !ENDING ->
            k = 0;
            do
            :: k < ROWS -> assert(visible[k] == EVERY_UNIT); k++            /* I1 */
            :: else -> break
            od;
            assert(ledger_units == EVERY_UNIT);                             /* I4 */
            goto ended
        };
over:
        assert(id != SUCCESSOR);                                            /* alone, it gets to the end */
ended:
        skip
    } unless { crashed && id != SUCCESSOR };
    d_step {
        gone++;
        held[id] = 0; new_records[id] = 2; number = 0; claim_run = 0; tail_batch = 0; tail_units = 0; batch = 0; before = 0; end_units = 0;
        rows_done = 0; tries = 0; doubt = 0; fresh = 0
    }
}

/* At any moment every driver may die at once. */
proctype Crash() {
    atomic { crashed = 1; troubles = 0; started = DRIVERS }
}

init {
    atomic {
        k = 0;
        do
        :: k < LATES -> late_row[k] = NO_ROW; k++
        :: else -> break
        od;
        k = 0;
        do
        :: k <= DRIVERS -> new_records[k] = 2; run Driver(k); k++
        :: else -> break
        od;
        run Crash()
    }
}
