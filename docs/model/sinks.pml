/*
 * The order in which several sinks commit, as a model for the checker spin. README.md beside it tells how to run it.
 *
 * What Kafka's part of the protocol gives, protocol.pml has shown: a claim of the ledger fences every lower run, and a
 * commit to it is atomic with its record. Here both are one step. Each other sink has a ledger of its own; how it is
 * claimed and committed to says locked_sink.pml, or with -DTABLES table_sink.pml.
 * A driver may be slow at any step (a zombie), or die there. The successor starts alone, and has to finish.
 */

#ifndef DRIVERS
#define DRIVERS 2        /* runs that overlap in any way; the successor is one more */
#endif
#ifndef UNITS
#define UNITS 3          /* source records; a batch takes one or two of them */
#endif
#ifndef SINKS
#define SINKS 2          /* sinks that are not Kafka */
#endif
#ifndef TROUBLES
#define TROUBLES 2       /* answers of a sink that are lost, commits and claims that a sink gives up */
#endif

#define SUCCESSOR DRIVERS
#define PLACE(s, u) ((s) * (UNITS + 1) + (u))
#define KAFKA SINKS

/* Spark's checkpoint: a batch is one commit, and ends at a unit; 0 is not planned */
byte offsets[UNITS + 1];
byte done = 0;

/* the pipeline's ledger, in Kafka */
byte newest_run = 0, ledger = 0;

/* the other sinks: their ledgers */
byte sink_run[SINKS], sink[SINKS], sink_end[SINKS];

/* how often a unit is visible in each sink, the last of which is Kafka */
byte visible[(SINKS + 1) * (UNITS + 1)];

/* a write-ahead log's target that can be asked: the commits that it has, and the note of them beside the log */
byte target = 0, note = 0;

byte troubles = TROUBLES;
bit crashed = 0, finished = 0;
byte u, v;               /* counters of atomic steps */

inline reveal(s, n, end) {
    u = offsets[n - 1] + 1;
    do
    :: u <= end ->
        visible[PLACE(s, u)]++;
        assert(visible[PLACE(s, u)] == 1);   /* no record twice */
        u++
    :: else -> break
    od;
    u = 0
}

#ifdef TABLES
#include "table_sink.pml"
#else
#include "locked_sink.pml"
#endif

inline drive(me) {
    /* claim the ledger, then every sink under the same number */
    atomic { newest_run++; number = newest_run; mine = ledger }
    s = 0;
    do
    :: s < SINKS ->
        claim_sink(me, s);
        assert(has[s] <= mine + 1);          /* a sink is at most one commit ahead of the ledger */
        assert(has[s] >= mine);              /* and never behind */
        s++
    :: else -> break
    od;

    place = note; doubt = 1;

batch:
    /* what the ledger has is delivered; in doubt, which begins with the claim, the target is asked until it says no */
    do
    :: place >= mine -> break
    :: place < mine ->
        atomic {                              /* a driver frozen within a delivery is left out */
            if
            :: sink_run[0] > number -> goto end
            :: else
            fi;
            if
            :: doubt && target > place
            :: else ->
                assert(target == place);      /* no commit is delivered twice, none is left out */
                target = place + 1;
                doubt = 0
            fi;
#ifdef STALE_NOTE
            doubt = 0
#endif
        }
        place++;
#ifdef STALE_NOTE
        note = place
#else
        atomic {
            if
            :: sink_run[0] > number -> goto end
            :: else
            fi;
            if
            :: note < place -> note = place
            :: else
            fi
        }
#endif
    od;
    /* Spark plans a batch once; of two that plan it, one ends */
    atomic {
        n = done + 1;
        if
        :: offsets[done] == UNITS -> goto end
        :: else
        fi;
        if
        :: offsets[n] != 0 && !fresh -> goto end
        :: offsets[n] != 0 && fresh
        :: offsets[n] == 0 -> offsets[n] = offsets[n - 1] + 1
        :: offsets[n] == 0 && offsets[n - 1] + 2 <= UNITS -> offsets[n] = offsets[n - 1] + 2
        fi;
        fresh = 0
    }
    if
    :: n <= mine -> goto spark                /* the ledger has it: its state is rebuilt, nothing is written */
    :: n > mine + 1 -> goto end               /* somebody else went on in this checkpoint */
    :: n == mine + 1
    fi;
#ifdef LEDGER_FIRST
    goto kafka;
sinks:
#endif
    s = 0;
    do
    :: s == SINKS -> break
    :: s < SINKS ->
#ifndef SKIP_SINK_LEDGER
        if
        :: has[s] >= n ->
            assert(has[s] > n || sink_end[s] == offsets[n] || sink[s] > n);   /* with the same input */
            goto next
        :: else
        fi;
#endif
        commit_to_sink(me, s);                /* the tasks have staged its rows */
next:
        s++
    od;
#ifdef LEDGER_FIRST
    goto spark;
#endif

kafka:
    atomic {
        if
        :: newest_run != number -> goto end      /* fenced */
        :: else -> ledger = n; mine = n; reveal(KAFKA, n, offsets[n])
        fi
    }
#ifdef LEDGER_FIRST
    goto sinks;
#endif

spark:
    atomic {
        if
        :: done == n - 1 -> done = n
        :: else -> goto end
        fi
    }
    goto batch;

unknown:                                      /* the answer was lost: a claim under the same number tells */
#ifdef ABORT_AFTER_UNKNOWN
    atomic {                                  /* what it has staged is removed, and so is what is committed of it */
        if
        :: sink[s] >= n -> visible[PLACE(s, offsets[n])]--
        :: else
        fi
    }
#endif
#ifndef NO_CLAIM_AFTER_UNKNOWN
    atomic {
        if
        :: newest_run != number -> goto end
        :: else
        fi
    }
    claim_sink(me, s);
#endif
batch_again:
    fresh = 1;
    goto batch;

end:
    skip
}

#define LOCALS byte number, mine, n, s, place; byte has[SINKS]; bit fresh = 1, doubt; SINK_LOCALS

proctype Driver(byte me) {
    LOCALS;
    { drive(me) } unless { crashed }
}

/* Alone after the crash; what the dead have sent is still under way. */
proctype Successor() {
    LOCALS;
    drive(SUCCESSOR);
    finished = 1
}

init {
    byte i;
    atomic {
        i = 0;
        do
        :: i < SINKS -> RUN_SERVERS(i); i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < DRIVERS -> run Driver(i); i++
        :: else -> break
        od
    }
    crashed = 1;
    run Successor();
    finished;
    d_step {
        assert(done > 0 && offsets[done] == UNITS && ledger == done);
        assert(target == ledger);
        i = 0;
        do
        :: i < (SINKS + 1) * (UNITS + 1) ->
            assert(i % (UNITS + 1) == 0 || visible[i] == 1);   /* every record once, in every sink */
            i++
        :: else -> break
        od
    }
}
