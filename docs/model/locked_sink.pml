/*
 * A sink with a lock, as PostgreSQL and a write-ahead log have one: a commit holds it from the moment in which it is
 * sent until it has taken place or not, whoever still waits for it. Included by sinks.pml.
 */

/* the commit that is under way in each sink */
byte sent[SINKS], sent_end[SINKS];

#define SINK_LOCALS

inline take_place(s) {
    reveal(s, sent[s], sent_end[s]);
    assert(sent[s] == sink[s] + 1);          /* a sink's commits have no gap */
    sink[s] = sent[s]; sink_end[s] = sent_end[s];
    sent[s] = 0; sent_end[s] = 0
}

/* The sink's own server finishes what was sent to it, whether its driver lives or not. */
proctype Server(byte s) {
end_server:
    do
    :: atomic { sent[s] != 0 -> take_place(s) }
    :: atomic { sent[s] != 0 && troubles > 0 -> troubles--; sent[s] = 0; sent_end[s] = 0 }
    od
}

#define RUN_SERVERS(s) run Server(s)

/* The claim of a sink: behind every commit that is under way, because both take its lock. Without an answer it is sent
 * again: nothing is attempted before. */
inline claim_sink(me, s) {
    do
    :: atomic { troubles > 0 && me != SUCCESSOR -> troubles-- };
#ifdef ATTEMPT_AFTER_FAILED_CLAIM
        goto batch_again
#endif
    :: break
    od;
    atomic {
#ifndef CLAIM_WITHOUT_LOCK
        sent[s] == 0;
#endif
        if
        :: sink_run[s] > number -> goto end
        :: else
        fi;
#ifndef NO_SINK_CLAIM
        sink_run[s] = number;
#endif
        has[s] = sink[s]
    }
}

inline commit_to_sink(me, s) {
    atomic {
        sent[s] == 0;
        if
#ifdef NO_SINK_CLAIM
        :: sink_run[s] > number -> goto end
#elif !defined(NO_RUN_CHECK)
        :: sink_run[s] != number -> goto end
#endif
        :: else -> sink_run[s] = number; sent[s] = n; sent_end[s] = offsets[n]
        fi
    }
    if
    :: atomic { sent[s] != n && sink[s] >= n -> has[s] = n }
    :: atomic { sent[s] != n && sink[s] < n -> goto batch_again }
    :: atomic { troubles > 0 && me != SUCCESSOR -> troubles-- } -> goto unknown
    fi
}
