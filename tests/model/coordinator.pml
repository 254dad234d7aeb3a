/* The protocol of the coordinator for one key, to be searched exhaustively.
 *
 * What is modelled
 *   The record, and each call's effect on it: the tables of outcomes, as
 *   server/core/transitions.cc decides them.
 *   The network: a message that was sent may arrive at any later moment, any
 *   number of times, or never. So every retry, duplicate and late message of
 *   an old attempt is one behaviour among them. An answer is a step of its
 *   own: it may be lost, and it may reach its caller late.
 *   Callers: one claim token for an attempt, kept over all retries. A caller
 *   that dies is one that takes no further step, at any point.
 *   Time: a lease may be over at any moment, and a record that nobody runs
 *   may reach its expiry at any moment. There are no clocks to trust.
 *   The payment channel: executes a downstream key once, knows which it has
 *   executed, and can be told to refuse one for ever.
 *   The reaper, and with FAILOVER a standby that takes over: it has every
 *   write that was acknowledged, and perhaps the one that was not yet.
 *
 * What is checked: the invariants S2 to S19, each a CHECK of what an onlooker
 *   has seen (the variables seen_*, which no step of the protocol reads), and
 *   L2, that keys get settled.
 *
 * What is not: more than one key, waiting, checkpoints, evidence, sizes, how
 *   long leases and retentions are, the replay cache, PostgreSQL itself. The
 *   tests of the program are for those.
 *
 * Bounds and options (-D)
 *   CALLERS, ATTEMPTS   how many callers, and how many attempts each makes
 *   GRANTS              grants of the key in all
 *   LIVES               how often the record may expire
 *   HOLD                the policy holds abandoned attempts and server errors
 *   HOLD_ERRORS         ... server errors only
 *   MISMATCH            the last caller uses the key for another request
 *   SPLIT               deciding and writing are two steps, guarded by the
 *                       record's version: several replicas at a time
 *   FAILOVER            how often a standby takes over
 *   EXTRAS              callers also renew, look up after a refusal, and
 *                       follow one settling call by another
 *   FAULTS              checks L2 instead: so many faults, and then none
 *   MUTANT_x            plants a bug; run.sh has the list
 */

#ifndef CALLERS
#define CALLERS 3
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1
#endif
#ifndef GRANTS
#define GRANTS 4
#endif
#ifndef LIVES
#define LIVES 1
#endif
#ifdef HOLD
#define HOLD_ERRORS
#define HOLDS_ABANDONED 1
#else
#define HOLDS_ABANDONED 0
#endif
#ifdef HOLD_ERRORS
#define HOLDS_ERRORS 1
#else
#define HOLDS_ERRORS 0
#endif

/* Claim tokens are 1 to TOKENS; 0 is none. First come those of the first
 * attempts, a token for each caller, then those of the second ones. */
#define TOKENS (CALLERS * ATTEMPTS)
#define CALLER(token) (((token) - 1) % CALLERS)

#ifdef MISMATCH
#define HASH(token) (CALLER(token) == CALLERS - 1 -> 2 : 1)
#else
#define HASH(token) 1
#endif

/* ------------------------------------------------------------ the record */

mtype = { NONE, UNFINISHED, FINAL, RELEASED };            /* its states */
mtype = { NO, OUTCOME_UNKNOWN, SERVER_ERROR, DID_NOTHING }; /* how given up */

typedef Record {
  mtype state = NONE;
  byte token;        /* the latest claim token, the only one that is kept */
  byte fencing;
  byte hash;
  bool running;      /* unfinished, and the lease is not over */
  mtype gave_up = NO;
  bool held;
  byte freed;        /* how often a Release freed the key: the downstream key */
  byte abandoned;    /* fencing token of the attempt that a takeover is told of */
  byte response;     /* whose response: claim token; 0: none */
  bool past_expiry;
}
Record row;

/* The database's clock, as far as fencing tokens go: beyond all it has given. */
byte clock;

#define ABSENT (row.state == NONE || (row.past_expiry && \
                !(row.held && row.state == UNFINISHED)))
#define ABANDONED (row.gave_up != NO || !row.running)

inline ClearRow() {
  row.state = NONE; row.token = 0; row.fencing = 0; row.hash = 0;
  row.running = false; row.gave_up = NO; row.held = false; row.freed = 0;
  row.abandoned = 0; row.response = 0; row.past_expiry = false
}

/* ------------------------------------------- the network and the callers */

/* The calls: what is sent with a claim token, one bit each. */
#define CLAIM           1
#define CLAIM_RESOLVE   2     /* with resolve_in_doubt */
#define RENEW           4     /* with renew_fencing_token */
#define FINALIZE        8     /* with a status below 500 */
#define FINALIZE_ERROR  16    /* with one of 500 and above */
#define NOT_EXECUTED    32    /* Release, by disposition */
#define UNSURE          64
#define NEVER_EXECUTED  128
#define LOOKUP          256

/* What is decided. The first are writes, the others answers without one. */
mtype = { CREATE, RECLAIM, AGAIN, TAKE_OVER, RECORD, GIVE_UP_ERROR, FREE,
          GIVE_UP_UNKNOWN, GIVE_UP_NOTHING, CONFIRM,
          CLAIMED, REPLAY, IN_PROGRESS, IN_DOUBT, OTHER_REQUEST, REFUSED, NOT_FREED,
          FOUND, NOTHING };

#define GRANTS_KEY(act) (act == CREATE || act == RECLAIM || act == TAKE_OVER)
#define WRITES(act) (GRANTS_KEY(act) || act == AGAIN || act == RECORD || \
                     act == GIVE_UP_ERROR || act == FREE || \
                     act == GIVE_UP_UNKNOWN || act == GIVE_UP_NOTHING || \
                     act == CONFIRM)
#define IS_CLAIM(call) (call == CLAIM || call == CLAIM_RESOLVE)
#define IS_RELEASE(call) (call == NOT_EXECUTED || call == UNSURE || \
                          call == NEVER_EXECUTED)

short sent[TOKENS + 1];          /* every call that was ever sent */
short waits_for[TOKENS + 1];     /* the call whose answer the caller awaits */
mtype answer[TOKENS + 1] = NOTHING;   /* under way to it */
/* What the answer Claimed said. */
byte told_fencing[TOKENS + 1];
byte told_freed[TOKENS + 1];
byte told_abandoned[TOKENS + 1];

/* ------------------------------------------------------------ the channel */

byte channel_executed;           /* downstream keys, one bit each */
byte channel_refuses;

/* --------------------------------------------------- what an onlooker saw */

byte seen_fencing;      /* the largest fencing token that was granted */
byte seen_holder;       /* the claim token of the latest grant */
byte seen_owner;        /* the same while its lease runs and it has not ended */
byte seen_ended;        /* the token that was released or given up last, while
                           nobody else was granted the key */
bool seen_alive;        /* there is a record that has not expired */
bool seen_held;         /* it must not be given out without resolve_in_doubt */
byte seen_hash;         /* of the request that it is for */
byte seen_response;     /* that was recorded and has not expired */
short seen_suspects;    /* attempts that may have acted, by fencing token,
                           since the key was new or free */
byte seen_life;         /* how many records have expired */
byte seen_grant_life[TOKENS + 1];
byte seen_effects[LIVES + 1];   /* downstream keys executed, by life */
bool seen_settled;      /* the caller that keeps trying has its answer */

/* The name of what is broken, for the message of the assertion. */
#define CHECK(invariant, holds) assert((holds) || invariant)
hidden byte S2_fencing_grows, S3_one_live_owner, S4_same_grant_again,
    S5_no_waiting_for_oneself, S6_one_result, S7_only_the_latest_grant_finalizes,
    S8_recorded_is_replayed, S9_exact_replay, S11_mismatch_is_inert,
    S12_only_the_owner_releases, S12_what_ended_stays_ended, S12_final_is_final,
    S14_one_charge, S14_freed_was_not_executed, S16_takeover_is_told,
    S16_nobody_is_forgotten, S18_not_before_it_expires,
    S19_acknowledged_is_kept, held_needs_resolve, renewal_never_acquires;

#define BIT(n) (1 << (n))
#define ONE_BIT_AT_MOST(set) (((set) & ((set) - 1)) == 0)

/* ------------------------------------------------- the tables of outcomes */

inline DecideClaim(token, call, act) {
  if
#ifdef MUTANT_REPLAY_AFTER_EXPIRY
  :: row.state == FINAL && HASH(token) == row.hash -> act = REPLAY
#endif
  :: ABSENT ->
     if
#ifndef MUTANT_RENEWAL_CREATES
     :: call == RENEW -> act = REFUSED
#endif
     :: else -> act = CREATE
     fi
  :: !ABSENT && row.state == RELEASED ->
     if
#ifndef MUTANT_RELEASED_REVIVED
     :: row.token == token || call == RENEW -> act = REFUSED
#endif
     :: else -> act = RECLAIM
     fi
#ifndef MUTANT_MISMATCH_IGNORED
  :: !ABSENT && row.state != RELEASED && row.hash != HASH(token) ->
     act = OTHER_REQUEST
#define SAME_HASH (row.hash == HASH(token))
#else
#define SAME_HASH true
#endif
  :: !ABSENT && row.state == FINAL && SAME_HASH ->
#ifdef MUTANT_FINAL_CLAIMED
     act = (row.token == token || call == RENEW -> REPLAY : TAKE_OVER)
#else
     act = REPLAY
#endif
  :: !ABSENT && row.state == UNFINISHED && SAME_HASH -> DecideUnfinished(token, call, act)
  fi
}

inline DecideUnfinished(token, call, act) {
  if
#ifdef MUTANT_OWN_RETRY_WAITS
  :: row.token == token && row.running && call != RENEW -> act = IN_PROGRESS
#else
#ifdef MUTANT_RETRY_GRANTED_ANEW
  :: row.token == token && row.gave_up == NO && call != RENEW -> act = TAKE_OVER
#endif
#ifndef MUTANT_GIVEN_UP_REVIVED
  :: row.token == token && row.gave_up != NO -> act = REFUSED
  :: row.token == token && row.gave_up == NO ->
#else
  :: row.token == token ->
#endif
     act = (call == RENEW && told_fencing[token] != row.fencing -> REFUSED : AGAIN)
#endif
  :: row.token != token && call == RENEW ->
#ifdef MUTANT_RENEWAL_BY_OLD_OWNER
     act = AGAIN
#else
     act = REFUSED
#endif
#ifdef MUTANT_LEASE_OF_ONES_OWN
  :: row.token != token && call != RENEW && !ABANDONED -> act = TAKE_OVER
#endif
  :: row.token != token && call != RENEW && !ABANDONED -> act = IN_PROGRESS
  :: row.token != token && call != RENEW && ABANDONED ->
     if
#ifndef MUTANT_HELD_GIVEN_OUT
#ifdef MUTANT_HELD_FOR_EVER
     :: row.held -> act = IN_DOUBT
#else
     :: row.held && call != CLAIM_RESOLVE -> act = IN_DOUBT
#endif
#endif
     :: else -> act = TAKE_OVER
     fi
  fi
}

/* An attempt has one response below 500, so a repeat of it is the same one. */
inline DecideFinalize(token, call, act) {
  if
  :: ABSENT -> act = REFUSED
#ifndef MUTANT_FINALIZE_UNOWNED
  :: !ABSENT && row.token != token -> act = REFUSED
#endif
  :: else ->
     if
     :: row.state == RELEASED -> act = REFUSED
     :: row.state == FINAL ->
#ifdef MUTANT_FINAL_OVERWRITTEN
        act = (call == FINALIZE -> CONFIRM : GIVE_UP_ERROR)
#else
        act = (call == FINALIZE -> CONFIRM : REFUSED)
#endif
     :: else -> act = (call == FINALIZE -> RECORD : GIVE_UP_ERROR)
     fi
  fi
}

inline DecideRelease(token, call, act) {
  if
  :: ABSENT -> act = NOT_FREED
  :: !ABSENT && row.state == RELEASED ->
     act = (row.token == token -> CONFIRM : NOT_FREED)
#ifdef MUTANT_RELEASE_OF_FINAL
  :: !ABSENT && row.state == FINAL && row.token != token -> act = REFUSED
#else
  :: !ABSENT && row.state == FINAL -> act = REFUSED
#endif
#ifndef MUTANT_RELEASE_UNOWNED
  :: !ABSENT && row.state == UNFINISHED && row.token != token -> act = REFUSED
#endif
  :: else ->
     if
     :: call == NEVER_EXECUTED -> act = FREE
     :: call != NEVER_EXECUTED && row.gave_up != NO -> act = CONFIRM
     :: call == UNSURE && row.gave_up == NO -> act = GIVE_UP_UNKNOWN
     :: call == NOT_EXECUTED && row.gave_up == NO ->
#ifdef MUTANT_TAKEOVER_FREES
        act = FREE
#else
        act = (row.abandoned -> GIVE_UP_NOTHING : FREE)
#endif
     fi
  fi
}

inline DecideLookup(act) {
  act = (ABSENT -> REFUSED : (row.state == FINAL -> REPLAY : FOUND))
}

inline Decide(token, call, act) {
  if
  :: IS_CLAIM(call) || call == RENEW ->
     DecideClaim(token, call, act);
     CheckClaimAnswer(token, call, act)
  :: call == FINALIZE || call == FINALIZE_ERROR -> DecideFinalize(token, call, act)
  :: IS_RELEASE(call) -> DecideRelease(token, call, act)
  :: call == LOOKUP ->
     DecideLookup(act);
     CHECK(S8_recorded_is_replayed, seen_response == 0 || act == REPLAY)
  fi;
  if
  :: act == REPLAY -> CheckReplay()
  :: else
  fi
}

/* ------------------------------------------------------ what they write */

inline Grant(token) {
  clock++;
#ifdef MUTANT_FENCING_REUSED
  row.fencing = (row.state == RELEASED -> row.fencing : clock);
#else
#ifdef MUTANT_FENCING_PER_ROW
  row.fencing++;
#else
  row.fencing = clock;
#endif
#endif
  row.state = UNFINISHED;
  row.token = token;
  row.running = true;
  row.gave_up = NO;
  row.held = row.held || HOLDS_ABANDONED;
  row.past_expiry = false
}

/* Whom a takeover is told of: an attempt that did nothing hands on what it was
 * told. */
inline NoteAbandoned() {
#ifndef MUTANT_TAKEOVER_UNTOLD
#ifdef MUTANT_DID_NOTHING_FORGETS
  row.abandoned = (row.gave_up == DID_NOTHING -> 0 : row.fencing)
#else
  row.abandoned =
      (row.gave_up == DID_NOTHING && row.abandoned -> row.abandoned : row.fencing)
#endif
#else
  skip
#endif
}

inline Write(token, call, act) {
  CheckWrite(token, call, act);
  if
  :: act == CREATE ->
     ClearRow();
     row.hash = HASH(token);
     Grant(token)
  :: act == RECLAIM ->
     row.hash = HASH(token);
     row.held = false;
     row.abandoned = 0;
     Grant(token)
  :: act == AGAIN ->
     row.running = true;
     row.past_expiry = false;
#ifdef MUTANT_RETRY_FENCES_ANEW
     clock++;
     row.fencing = clock;
#endif
#ifdef MUTANT_RENEWAL_BY_OLD_OWNER
     row.token = token
#endif
  :: act == TAKE_OVER ->
     NoteAbandoned();
     Grant(token)
  :: act == RECORD ->
     row.state = FINAL;
     row.response = token;
     row.running = false;
     row.gave_up = NO;
#ifndef MUTANT_EXPIRY_KEPT
     row.past_expiry = false
#endif
  :: act == GIVE_UP_ERROR ->
     row.gave_up = SERVER_ERROR;
     row.running = false;
     row.held = row.held || HOLDS_ERRORS || HOLDS_ABANDONED
  :: act == GIVE_UP_UNKNOWN -> row.gave_up = OUTCOME_UNKNOWN; row.running = false
  :: act == GIVE_UP_NOTHING -> row.gave_up = DID_NOTHING; row.running = false
  :: act == FREE ->
     row.state = RELEASED;
     row.held = false;
     row.freed++;
     row.running = false;
     row.abandoned = 0;
     row.gave_up = NO;
     row.past_expiry = false
  :: act == CONFIRM
  fi;
  NoteWrite(token, call, act)
}

/* ------------------------------------------------------------ invariants */

inline CheckClaimAnswer(token, call, act) {
  /* Neither by its own token, nor because it drew another one before it was
   * answered. */
  CHECK(S5_no_waiting_for_oneself, act != IN_PROGRESS || (seen_owner != token &&
        !(waits_for[token] == call && IS_CLAIM(waits_for[seen_owner]) &&
          CALLER(seen_owner) == CALLER(token))));
  CHECK(S8_recorded_is_replayed,
        seen_response == 0 || HASH(token) != seen_hash || act == REPLAY);
  CHECK(S11_mismatch_is_inert, act != REPLAY || HASH(token) == seen_hash)
}

/* Of a Claim or a Lookup. What has expired is not replayed, either. */
inline CheckReplay() {
  CHECK(S9_exact_replay, seen_response != 0 && row.response == seen_response)
}

inline CheckWrite(token, call, act) {
  if
  :: GRANTS_KEY(act) ->
     CHECK(renewal_never_acquires, call != RENEW);
     CHECK(S18_not_before_it_expires, act != CREATE || !seen_alive);
     CHECK(S3_one_live_owner, seen_owner == 0);
     CHECK(S12_what_ended_stays_ended, seen_ended != token);
     CHECK(S8_recorded_is_replayed, seen_response == 0);
     CHECK(held_needs_resolve, !seen_held || call == CLAIM_RESOLVE);
     CHECK(S11_mismatch_is_inert, act != TAKE_OVER || HASH(token) == seen_hash)
  :: act == AGAIN ->
     CHECK(S3_one_live_owner, seen_holder == token && seen_alive);
     CHECK(S12_what_ended_stays_ended, seen_ended != token);
     CHECK(S11_mismatch_is_inert, HASH(token) == seen_hash)
  :: act == RECORD || act == GIVE_UP_ERROR ->
     CHECK(S7_only_the_latest_grant_finalizes, seen_holder == token && seen_alive);
     CHECK(S6_one_result, seen_response == 0)
  :: act == FREE || act == GIVE_UP_UNKNOWN || act == GIVE_UP_NOTHING ->
     CHECK(S12_only_the_owner_releases, seen_holder == token && seen_alive);
     CHECK(S12_final_is_final, seen_response == 0)
  :: act == CONFIRM -> CHECK(S7_only_the_latest_grant_finalizes, seen_holder == token)
  fi
}

/* A grant tells of the latest attempt that may have acted, and of none only if
 * there is none. `others` are those before it. */
inline CheckTold(others) {
  CHECK(S16_takeover_is_told, (row.abandoned == 0) == ((others) == 0));
  CHECK(S16_takeover_is_told, row.abandoned == 0 || ((others) >> row.abandoned) == 1)
}

inline NoteWrite(token, call, act) {
  if
  :: GRANTS_KEY(act) ->
     if
     :: act == CREATE -> seen_suspects = 0; seen_held = false
     :: else
     fi;
     CHECK(S2_fencing_grows, row.fencing > seen_fencing);
     CheckTold(seen_suspects);
     seen_fencing = row.fencing;
     seen_suspects = seen_suspects | BIT(row.fencing);
     seen_hash = row.hash;
     seen_holder = token;
     seen_owner = token;
     seen_ended = 0;
     seen_alive = true;
     seen_held = seen_held || HOLDS_ABANDONED
  :: act == AGAIN ->
     CHECK(S4_same_grant_again, row.fencing == seen_fencing);
     CheckTold(seen_suspects & ~BIT(row.fencing));
     seen_owner = token
  :: act == RECORD ->
     seen_response = token;
     seen_owner = 0;
     seen_held = false;
     seen_ended = 0
  :: act == GIVE_UP_ERROR || act == GIVE_UP_UNKNOWN ->
     seen_owner = 0;
     seen_ended = token;
     seen_held = seen_held || (act == GIVE_UP_ERROR && HOLDS_ERRORS)
  :: act == GIVE_UP_NOTHING ->
     seen_suspects = seen_suspects & ~BIT(row.fencing);
     seen_owner = 0;
     seen_ended = token
  :: act == FREE ->
     seen_suspects = (call == NEVER_EXECUTED -> 0 : seen_suspects & ~BIT(row.fencing));
     CHECK(S16_nobody_is_forgotten, seen_suspects == 0);
     CHECK(S14_freed_was_not_executed, !(seen_effects[seen_life] & BIT(row.freed - 1)));
     seen_owner = 0;
     seen_held = false;
     seen_ended = token
  :: act == CONFIRM
  fi
}

/* -------------------------------------------------------------- a replica */

#ifdef SPLIT
#define NEXT_STEP }; true; atomic {
bool stale[TOKENS + 1];    /* the record has changed since it was read */
hidden byte each;
inline NoteStale() {
  for (each : 1 .. TOKENS) {
    stale[each] = true
  }
}
#else
#define NEXT_STEP
#endif
#ifdef FAILOVER
bool locked;               /* by a write that is not yet acknowledged */
byte failovers;
#endif

#ifdef FAULTS
/* A caller sends again until it is answered, and nothing else arrives. */
#define ARRIVES(token, call) (waits_for[token] == call && answer[token] == NOTHING)
byte faults;
#else
#define ARRIVES(token, call) (sent[token] & call)
#endif

/* An assumption: no Claim is so late that it grants the key once more to an
 * attempt that knows of an earlier grant only and then says NEVER_EXECUTED. A
 * Release has no fencing token to tell by; deadlines are shorter than leases. */
#ifdef MUTANT_CLAIM_AFTER_SUPERSEDED
#define NOT_GRANTED_LATE(token) true
#else
#define NOT_GRANTED_LATE(token) (row.token != token || row.fencing == told_fencing[token])
#endif

inline Receive(token, call) {
  if
  :: ARRIVES(token, CLAIM) -> call = CLAIM
  :: ARRIVES(token, CLAIM_RESOLVE) -> call = CLAIM_RESOLVE
  :: ARRIVES(token, RENEW) -> call = RENEW
  :: ARRIVES(token, FINALIZE) -> call = FINALIZE
  :: ARRIVES(token, FINALIZE_ERROR) -> call = FINALIZE_ERROR
  :: ARRIVES(token, NOT_EXECUTED) -> call = NOT_EXECUTED
  :: ARRIVES(token, UNSURE) -> call = UNSURE
  :: ARRIVES(token, NEVER_EXECUTED) && NOT_GRANTED_LATE(token) ->
     call = NEVER_EXECUTED
  :: ARRIVES(token, LOOKUP) -> call = LOOKUP
  fi
}

/* The answer is on its way, or lost; or nobody waits for it any more. */
inline Answer(token, call, act) {
  if
  :: waits_for[token] == call && answer[token] == NOTHING && act != IN_PROGRESS ->
     answer[token] = act;
     if
     :: IS_CLAIM(call) && (GRANTS_KEY(act) || act == AGAIN) ->
        answer[token] = CLAIMED;
        told_fencing[token] = row.fencing;
        told_abandoned[token] = row.abandoned;
#ifdef MUTANT_DOWNSTREAM_KEY_PER_ATTEMPT
        told_freed[token] = row.fencing;
#else
        told_freed[token] = row.freed;
#endif
        seen_grant_life[token] = seen_life
     :: else
     fi
#ifdef FAULTS
  :: faults < FAULTS && waits_for[token] == call -> faults++
  :: act == IN_PROGRESS
#else
  :: true
#endif
  fi
}

inline Commit(token, call, act) {
  Write(token, call, act);
#ifdef SPLIT
  NoteStale()
#endif
}

/* Executes what arrives with one claim token, again and again. What meets a
 * lock or a changed record is forgotten: it may arrive again. */
proctype Replica(byte token) {
  short call;
  mtype act = NOTHING;
#ifdef FAILOVER
  bool answered;
#endif
end_idle:
  do
  :: atomic {
       Receive(token, call);
       Decide(token, call, act);
#ifdef SPLIT
       stale[token] = false;
#endif
       if
       :: WRITES(act)
       :: else -> goto reply
       fi;
       NEXT_STEP
       if
#ifdef FAILOVER
       :: locked -> goto forget
#endif
#if defined(SPLIT) && !defined(MUTANT_NO_VERSION_GUARD)
       :: stale[token] -> goto forget
#endif
       :: GRANTS_KEY(act) && clock == GRANTS ->
#ifdef FAULTS
          assert(false);             /* GRANTS is to be large enough */
#endif
          goto forget
       :: else
       fi;
#ifdef FAILOVER
       locked = true;
#ifdef MUTANT_ANSWER_BEFORE_STANDBY
       Answer(token, call, act);
       answered = true;
#endif
       /* Until the standby has it too, nobody sees what was written, and
        * nobody else writes this record. */
       }; true; atomic {
       locked = false;
#endif
       if
       :: Commit(token, call, act)
#ifdef FAILOVER
       :: failovers < FAILOVER ->          /* the standby has the write */
          failovers++;
          Commit(token, call, act);
          goto forget
       :: failovers < FAILOVER ->          /* it does not */
          failovers++;
          CHECK(S19_acknowledged_is_kept, !answered);
          goto forget
#endif
       fi;
reply:
       Answer(token, call, act);
forget:
#ifdef FAILOVER
       answered = false;
#endif
       call = 0;
       act = NOTHING
     }
  od
}

/* --------------------------------------------------------------- a caller */

inline Send(token, call) {
  sent[token] = sent[token] | call;
  waits_for[token] = call;
  answer[token] = NOTHING
}

inline StopWaiting(token) {
  waits_for[token] = 0;
  answer[token] = NOTHING
}

#define DOWNSTREAM_KEY(token) BIT(told_freed[token])

/* The channel executes a downstream key once; sent again, it says what came of
 * the first. */
inline Execute(token) {
  if
  :: (channel_executed | channel_refuses) & DOWNSTREAM_KEY(token)
  :: else ->
     channel_executed = channel_executed | DOWNSTREAM_KEY(token);
     seen_effects[seen_grant_life[token]] =
         seen_effects[seen_grant_life[token]] | DOWNSTREAM_KEY(token);
     /* As long as the record lives. */
     CHECK(S14_one_charge, ONE_BIT_AT_MOST(seen_effects[seen_grant_life[token]]))
  fi
}

#if defined(EXTRAS) || defined(FAULTS)
#define LOOKS_UP
#endif
#ifdef FAULTS
/* The first caller may die at any moment; the last one keeps trying. */
#define OR_DIE :: me == 0 -> StopWaiting(token); goto end_dead
#define KEEPS_TRYING (me == CALLERS - 1)
bool busy[TOKENS + 1];
#define SetBusy(token, what) busy[token] = what
#else
#define OR_DIE
#define KEEPS_TRYING false
#define SetBusy(token, what) skip
#endif

#define HAS_ITS_ANSWER(token) \
  (answer[token] == REPLAY || answer[token] == RECORD || \
   (answer[token] == CONFIRM && waits_for[token] == FINALIZE))

proctype Caller(byte me) {
  byte token = me + 1;

claim:
  atomic {
    SetBusy(token, true);
    Send(token, CLAIM)
  }
end_claiming:
  atomic {
    if
    :: answer[token] == IN_DOUBT && waits_for[token] == CLAIM ->
       Send(token, CLAIM_RESOLVE);
       goto end_claiming
    :: answer[token] == CLAIMED -> StopWaiting(token)
    :: answer[token] != NOTHING && answer[token] != CLAIMED &&
       !(answer[token] == IN_DOUBT && waits_for[token] == CLAIM) ->
       goto ended
#ifdef MUTANT_RETRY_DRAWS_TOKEN
    :: token == me + 1 ->
       token = token + CALLERS;
       goto claim
#endif
    OR_DIE
    fi
  }
granted:
  atomic {
    if
#ifdef EXTRAS
    :: !(sent[token] & RENEW) ->
       sent[token] = sent[token] | RENEW;
       goto granted
#endif
    /* Nobody before it can have acted: it just executes. */
    :: told_abandoned[token] == 0 -> Execute(token); goto executed
    :: told_abandoned[token] == 0 && !KEEPS_TRYING ->
       Send(token, NOT_EXECUTED);
       goto end_settling
    /* No answer of the channel, whether it has executed or not. */
    :: told_abandoned[token] == 0 && !KEEPS_TRYING -> Execute(token); goto unsure
    :: told_abandoned[token] == 0 && !KEEPS_TRYING -> goto unsure
    /* Somebody may have: it asks the channel. */
    :: told_abandoned[token] && (channel_executed & DOWNSTREAM_KEY(token)) ->
       goto executed
    :: told_abandoned[token] && !(channel_executed & DOWNSTREAM_KEY(token)) ->
       goto not_executed
    OR_DIE
    fi
  }
not_executed:
  atomic {
    if
    :: Execute(token); goto executed
    :: !KEEPS_TRYING -> Send(token, NOT_EXECUTED); goto end_settling
    /* Only if the key can never be executed, however late somebody wakes. */
    :: !KEEPS_TRYING && !(channel_executed & DOWNSTREAM_KEY(token)) ->
#ifndef MUTANT_NEVER_BY_LOOK
       channel_refuses = channel_refuses | DOWNSTREAM_KEY(token);
#endif
       Send(token, NEVER_EXECUTED);
       goto end_settling
    OR_DIE
    fi
  }
executed:
  atomic {
    if
    :: channel_executed & DOWNSTREAM_KEY(token) -> Send(token, FINALIZE)
    /* Refused, which will not change. */
    :: !(channel_executed & DOWNSTREAM_KEY(token)) ->
       Send(token, (told_abandoned[token] -> NEVER_EXECUTED : NOT_EXECUTED))
    OR_DIE
    fi;
    goto end_settling
  }
unsure:
  atomic {
    if
    :: Send(token, FINALIZE_ERROR)
    :: Send(token, UNSURE)
    OR_DIE
    fi
  }
end_settling:
  atomic {
    if
#ifdef LOOKS_UP
    :: answer[token] == REFUSED && waits_for[token] != LOOKUP ->
       Send(token, LOOKUP);
       goto end_settling
    :: answer[token] != NOTHING &&
       !(answer[token] == REFUSED && waits_for[token] != LOOKUP)
#else
    :: answer[token] != NOTHING
#endif
#ifdef EXTRAS
    /* The channel's answer arrived after all. */
    :: answer[token] == NOTHING && waits_for[token] == FINALIZE_ERROR &&
       (channel_executed & DOWNSTREAM_KEY(token)) ->
       Send(token, FINALIZE);
       goto end_settling
    /* It gives up sending. */
    :: answer[token] == NOTHING && waits_for[token] == FINALIZE ->
       Send(token, UNSURE);
       goto end_settling
#endif
    OR_DIE
    fi
  }
ended:
  atomic {
    if
    :: KEEPS_TRYING && HAS_ITS_ANSWER(token) -> seen_settled = true
    :: KEEPS_TRYING && !HAS_ITS_ANSWER(token) ->
       StopWaiting(token);
       SetBusy(token, false);
       token = (token > CALLERS -> token - CALLERS : token + CALLERS);
       goto claim
    :: !KEEPS_TRYING && token + CALLERS <= TOKENS ->
       StopWaiting(token);
       SetBusy(token, false);
       token = token + CALLERS;
       goto claim
    :: else
    fi
  }
end_dead:
  atomic {
    StopWaiting(token);
    SetBusy(token, false);
    told_fencing[token] =
        (sent[token] & (RENEW | NEVER_EXECUTED) -> told_fencing[token] : 0);
    told_freed[token] = 0;
    told_abandoned[token] = 0;
    seen_grant_life[token] = 0;
    token = 0
  }
}

/* ------------------------------------------- time, the reaper, the standby */

#ifdef FAULTS
/* When the faults have stopped, an owner that is alive holds its lease. */
#define LEASE_MAY_END (!busy[row.token] || faults < FAULTS)
#define CountLapse() if :: busy[row.token] -> faults++ :: else fi
#else
#define LEASE_MAY_END true
#define CountLapse() skip
#endif
#ifdef FAILOVER
#define UNLOCKED (!locked)
#else
#define UNLOCKED true
#endif
#ifdef SPLIT
#define RecordChanged() NoteStale()
#else
#define RecordChanged() skip
#endif

active proctype Leases() {
end_idle:
  do
  :: atomic {
       row.state == UNFINISHED && row.running && UNLOCKED && LEASE_MAY_END ->
       CountLapse();
       row.running = false;
       seen_owner = 0
     }
  od
}

#if LIVES > 0
/* No expiry comes before the end of the lease. A held record does not expire;
 * the reaper parks it, which changes nothing that a caller sees. */
active proctype Retention() {
end_idle:
  do
  :: atomic {
       row.state != NONE && !row.running && !row.past_expiry && UNLOCKED &&
       seen_life < LIVES ->
       row.past_expiry = true;
       if
       :: ABSENT ->
          seen_life++;
          seen_alive = false;
          seen_response = 0;
          seen_ended = 0;
          RecordChanged()
       :: else
       fi
     }
  od
}

active proctype Reaper() {
end_idle:
  do
  :: atomic {
       row.past_expiry;
       NEXT_STEP
       if
#ifdef MUTANT_REAPER_DELETES_HELD
       :: row.past_expiry && UNLOCKED -> ClearRow(); RecordChanged()
#else
#ifdef MUTANT_REAPER_WITHOUT_RECHECK
       :: UNLOCKED -> ClearRow(); RecordChanged()
#else
       :: ABSENT && row.state != NONE && UNLOCKED -> ClearRow(); RecordChanged()
#endif
#endif
       :: else
       fi
     }
  od
}
#endif

#ifdef MUTANT_STANDBY_LAGS
/* Asynchronous replication: the standby has what was acknowledged some time
 * ago, or nothing. */
Record standby;
#define Copy(to, from) to.state = from.state; to.token = from.token; \
  to.fencing = from.fencing; to.hash = from.hash; to.running = from.running; \
  to.gave_up = from.gave_up; to.held = from.held; to.freed = from.freed; \
  to.abandoned = from.abandoned; to.response = from.response; \
  to.past_expiry = from.past_expiry
active proctype LaggingStandby() {
  atomic { row.state != NONE -> Copy(standby, row) }
  atomic { Copy(row, standby) }
}
#endif

init {
  byte i;
  atomic {
    for (i : 1 .. TOKENS) {
      run Replica(i)
    }
    for (i : 0 .. CALLERS - 1) {
      run Caller(i)
    }
    i = 0
  }
}

#ifdef FAULTS
/* L2: a caller that keeps trying gets the key settled, whatever was lost and
 * whoever died before. */
ltl L2 { <> seen_settled }
#endif
