/*
 * A sink whose claims and commits are versions of a table, as those of Delta Lake and Apache Iceberg are. Nothing is
 * locked: a version is written only as the next one after that which its writer has looked at, and others write
 * versions too. Included by sinks.pml.
 */

#ifndef OTHERS
#define OTHERS 1         /* versions that others write */
#endif

#define CLAIM 0          /* a version without a commit */
#define WRITTEN 1        /* answers */
#define REFUSED 2
#define NONE 3
#define SLOT(me, s) ((me) * SINKS + (s))

byte version[SINKS], others = OTHERS;

/* A driver's request that is still under way once it has its answer, or none. It is carried out later, or never. Two
 * of a driver after the same version would carry the same: there is one place for each. */
byte late_run[DRIVERS * SINKS], late_commit[DRIVERS * SINKS], late_end[DRIVERS * SINKS];
bit late_removed[DRIVERS * SINKS];           /* the files of its commit are */

#define SINK_LOCALS byte base, answer

inline forget(slot) {
    late_run[slot] = 0; late_commit[slot] = 0; late_end[slot] = 0; late_removed[slot] = 0
}

/* What is under way was sent after an older version, and never will be written. */
inline next_version(s) {
    version[s]++;
#ifndef NO_COMPARE
    v = 0;
    do
    :: v < DRIVERS -> forget(SLOT(v, s)); v++
    :: else -> break
    od;
    v = 0
#endif
}

inline write_version(s, r, c, end_unit) {
    next_version(s);
    assert(sink_run[s] <= r);                /* a superseded run writes nothing */
    if
    :: c == CLAIM
    :: else ->
        reveal(s, c, end_unit);
        assert(c == sink[s] + 1);            /* a sink's commits have no gap */
        sink[s] = c; sink_end[s] = end_unit
    fi;
    sink_run[s] = r
}

/* Write the next version after the one that was looked at. The answer may be lost, the request late; or it is repeated
 * on its way, and the answer is that of the second, while the first was carried out, or is late. */
inline try_version(me, s, c, end_unit) {
    atomic {
        if
#ifndef NO_COMPARE
        :: version[s] != base -> answer = REFUSED
        :: version[s] == base ->
#else
        :: true ->
#endif
            if
            :: write_version(s, number, c, end_unit); answer = WRITTEN
            :: troubles > 0 && me != SUCCESSOR -> troubles--;
                if
                :: write_version(s, number, c, end_unit)
                :: late_run[SLOT(me, s)] = number; late_commit[SLOT(me, s)] = c; late_end[SLOT(me, s)] = end_unit
                fi;
                if
                :: answer = NONE
                :: answer = REFUSED
                fi
            fi
        fi
    }
}

/* The claim of a sink is a version: whatever is under way after an older one is refused then. */
inline claim_sink(me, s) {
    do
    :: atomic {
            if
            :: sink_run[s] > number -> goto end
            :: else -> base = version[s]
            fi
        };
#ifdef NO_SINK_CLAIM
        break
#else
        try_version(me, s, CLAIM, 0);
        if
        :: answer == WRITTEN -> break
        :: else
        fi
#endif
    od;
    atomic {
        if
        :: sink_run[s] > number -> goto end
        :: else -> has[s] = sink[s]; base = 0; answer = 0
        fi
    }
}

inline commit_to_sink(me, s) {
    do
    :: atomic {
            if
#ifndef NO_RUN_CHECK
            :: sink_run[s] > number -> goto end
#endif
#ifndef NO_SINK_CLAIM
            :: sink_run[s] < number -> goto unknown
#endif
            :: else ->
                if
                :: sink[s] != n - 1 -> goto unknown
                :: else -> base = version[s]
                fi
            fi
        };
#ifdef BLIND_RETRY
rebased:
#endif
        try_version(me, s, n, offsets[n]);
#ifdef BLIND_RETRY
        atomic {
            if
            :: answer == REFUSED && version[s] != base -> base = version[s]; goto rebased
            :: else
            fi
        };
#endif
        atomic {                             /* what was not written for certain is asked for */
            if
            :: answer == WRITTEN -> has[s] = n; break
            :: answer != WRITTEN && sink[s] == n && sink_run[s] == number -> has[s] = n; break
            :: answer != WRITTEN && (sink[s] > n || sink[s] == n && sink_run[s] != number) -> goto unknown
            :: answer != WRITTEN && sink[s] < n ->
                if
                :: version[s] != base        /* the next version is another: this one never will be written */
                :: version[s] == base && answer == NONE -> goto unknown
#ifdef REFUSED_IS_NO
                :: version[s] == base && answer == REFUSED -> late_removed[SLOT(me, s)] = 1; goto batch_again
#else
                :: version[s] == base && answer == REFUSED   /* one under way carries the same: only one can be next */
#endif
                fi
            fi
        }
    od
}

/* What carries out the late requests of a driver. */
proctype Server(byte me; byte s) {
    byte r, c, e;
end_server:
    do
    :: atomic {
            late_run[SLOT(me, s)] > 0 ->
            assert(!late_removed[SLOT(me, s)]);
            r = late_run[SLOT(me, s)]; c = late_commit[SLOT(me, s)]; e = late_end[SLOT(me, s)];
            forget(SLOT(me, s));
            write_version(s, r, c, e);
            r = 0; c = 0; e = 0
        }
    od
}

/* Compaction, another pipeline, a user: none of them knows of claims. */
proctype Other(byte s) {
end_other:
    do
    :: atomic { others > 0 -> others--; next_version(s) }
    od
}

#define RUN_SERVERS(s) \
    run Other(s); \
    u = 0; \
    do \
    :: u < DRIVERS -> run Server(u, s); u++ \
    :: else -> break \
    od; \
    u = 0
