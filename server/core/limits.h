// Every bound of the service in one place, each with its reason. The README's
// table and the error messages quote these values.
#ifndef IDEMPOTENCY_SERVER_CORE_LIMITS_H_
#define IDEMPOTENCY_SERVER_CORE_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace idempotency::limits {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;

// ---- What a caller may send.

// A service or one of its operations; long enough for three named levels.
inline constexpr std::size_t kScopeCharsMax = 128;
// What payment providers allow for their own idempotency keys.
inline constexpr std::size_t kKeyBytesMax = 255;
// Below 128 bits a digest can collide by chance in a large fleet; 64 bytes is
// the longest digest in common use (SHA-512).
inline constexpr std::size_t kRequestHashBytesMin = 16;
inline constexpr std::size_t kRequestHashBytesMax = 64;
inline constexpr std::size_t kOwnerBytesMax = 128;
// Policies are named by operators; no name in use comes near this.
inline constexpr std::size_t kPolicyNameBytesMax = 128;
// A resume position, not a document: it is copied into every takeover.
inline constexpr std::size_t kCheckpointBytesMax = 4 * kKiB;
inline constexpr std::size_t kHeadersMax = 64;
inline constexpr std::size_t kHeaderBytesMax = 16 * kKiB;  // names + values
inline constexpr std::size_t kBodyBytesDefault = 1 * kMiB;
inline constexpr std::size_t kBodyBytesMax = 3 * kMiB;
inline constexpr std::int32_t kStatusCodeMax = 999;
// From here on a status never means that nothing happened.
inline constexpr std::int32_t kServerErrorMin = 500;
// gRPC's default; clients would have to raise their own limit to exceed it.
inline constexpr std::size_t kMessageBytesMax = 4 * kMiB;
// The longest body with the longest headers must fit one message.
static_assert(kBodyBytesMax + kHeaderBytesMax + kCheckpointBytesMax + kMiB / 2 <
              kMessageBytesMax);
static_assert(kBodyBytesDefault <= kBodyBytesMax);

// ---- Time.

// Shorter leases would lapse on one lost packet.
inline constexpr std::chrono::milliseconds kLeaseMin{100};
// Keeps every sum of lease and retention far inside PostgreSQL's timestamps.
inline constexpr std::chrono::hours kDurationMax{24 * 366 * 100};
inline constexpr std::chrono::seconds kWaitMax{60};
// A waiting call is answered this long before its deadline.
inline constexpr std::chrono::milliseconds kWaitMargin{100};
inline constexpr std::chrono::seconds kDeadlineDefault{30};
// A call that has already failed is answered this long before its deadline,
// so that its caller is told why instead of timing out.
inline constexpr std::chrono::milliseconds kAnswerMargin{50};
// A statement gives up after it waited so long for another's lock.
inline constexpr std::chrono::milliseconds kLockWaitMax{100};
// Where a statement waited so long for a store that is away, the round goes on
// with nothing but lookups.
inline constexpr std::chrono::milliseconds kWaitInVain{1000};
// Longest pause that InProgress proposes, and how far it is spread.
inline constexpr std::chrono::seconds kRetryAfterMax{1};
inline constexpr double kRetryAfterJitter = 0.2;
// What a freed key of a permanent policy is kept for.
inline constexpr std::chrono::hours kFreedPermanentRetention{24};

// ---- Work in hand.

// Larger batches gain nothing measurable and delay the first caller.
inline constexpr std::size_t kBatchItemsMax = 512;
inline constexpr std::size_t kBatchBytesMax = 1 * kMiB;
// One call alone may exceed the batch's bytes; it then goes by itself.
static_assert(kBodyBytesMax + kHeaderBytesMax < 4 * kBatchBytesMax);
// A hot key's whole crowd, ten thousand at once, is to be answered and not
// refused.
inline constexpr std::size_t kQueueItemsMax = 32 * kBatchItemsMax;
inline constexpr std::size_t kQueueBytesMax = 64 * kMiB;
static_assert(kQueueItemsMax >= 2 * kBatchItemsMax);
static_assert(kQueueBytesMax >= 2 * kBatchBytesMax);
static_assert(kQueueBytesMax >= 2 * kMessageBytesMax);
// Claims of a lane that wait for another owner's end: a hot key's whole crowd.
// Whoever comes beyond is answered at once.
inline constexpr std::size_t kWaitersMax = kQueueItemsMax;
inline constexpr std::size_t kWaitersBytesMax = kQueueBytesMax;
// A key that so many asked for at once is next taken to the store a moment
// later, so that its crowd needs few statements.
inline constexpr std::size_t kCrowd = 16;
inline constexpr std::chrono::milliseconds kCrowdPause{10};
// The same for one whose claims come a few at a time, in so many rounds within
// such a pause.
inline constexpr int kCrowdRounds = 4;
// A caller that is refused at once goes elsewhere or comes back; one that is
// answered after a second has often given up.
inline constexpr std::chrono::seconds kQueueWaitMaxDefault{1};
// Longest pause that a refused caller is asked for: by then the load may be
// another one.
inline constexpr std::chrono::seconds kRetryDelayMax{5};
// Rounds of optimistic statement, read and guarded write for one batch; a key
// that changed under each of them is taken up again later.
inline constexpr int kStoreRoundsMax = 4;
// Bodies up to this size come with the record; longer ones are read in groups
// of this many bytes, so that a batch of replays has a bound in memory.
inline constexpr std::size_t kInlineBodyBytesMax = 16 * kKiB;
inline constexpr std::size_t kBodyGroupBytesMax = 8 * kMiB;
static_assert(kBodyGroupBytesMax >= kBodyBytesMax);

// ---- Replays from memory.

inline constexpr std::size_t kReplayCacheBytesDefault = 64 * kMiB;
inline constexpr std::size_t kReplayCacheBytesMax = 64 * 1024 * kMiB;
// How long a replay may go on after the database has forgotten the record,
// which only people can make it do.
inline constexpr std::chrono::seconds kReplayCacheLifeMax{60};

// ---- Answers, and streams of Bulk.

// Recorded responses that a lane copies before it gives the answers: what each
// caller of a crowd gets is a copy. A few batches more may lie with the thread
// that gives them.
inline constexpr std::size_t kAnswersBytesMax = 4 * kMiB;
// Answers that wait to be read by their callers: more than a hundred callers
// may be late with 1 MiB each, which gRPC keeps twice.
inline constexpr std::size_t kReplyBytesMax = 256 * kMiB;
inline constexpr std::size_t kReplyBytesMaxLeast = 16 * kMiB;
// One stream may hold a third of what is free besides: a quarter of all where
// no other holds any, the less the more do, so that callers that stop reading
// never take what all others are answered from.
inline constexpr std::size_t kReplyFreeShare = 3;
static_assert(kReplyBytesMaxLeast / (kReplyFreeShare + 1) >= kMessageBytesMax);
// In one message: more than a consumer polls at a time.
inline constexpr std::size_t kBulkCommandsMax = 1024;
// Read from a stream and not answered yet: a few rounds of a lane, so that the
// next one is queued when the last is done, and few enough that flow control
// holds a fast caller back before a lane has to refuse him.
inline constexpr std::size_t kBulkInFlightMax = 2 * kBulkCommandsMax;
inline constexpr std::size_t kBulkInFlightBytesMax = 8 * kMiB;
static_assert(kBulkInFlightBytesMax >= kMessageBytesMax);
// Claims that may wait for another owner are counted by themselves, since they
// are not to hold back the rest of the stream; their fields' bounds bound their
// bytes.
inline constexpr std::size_t kBulkWaitingMax = kBulkCommandsMax;
static_assert(2 * (kBulkInFlightMax + kBulkWaitingMax) <= kQueueItemsMax);
// Results go out in messages of about this size: a caller needs the whole of
// one before it sees the first result.
inline constexpr std::size_t kBulkMessageBytes = 256 * kKiB;
// Nothing more is read from a stream whose caller is so far behind.
inline constexpr std::size_t kBulkUnsentBytesMax = 8 * kMiB;
// A stream whose caller has not taken a message of them for so long is ended,
// since others are answered from the same memory.
inline constexpr std::chrono::seconds kBulkStallMax{60};
// Streams of one server: a few for each process of a large fleet.
inline constexpr std::size_t kBulkStreamsMax = 4096;
// How long a stream lives where connections have an age, so that it is over
// before gRPC cuts the connection off.
inline constexpr std::chrono::seconds kBulkAgeMax{60};

// ---- Evidence.

// One row per claim token and response, at most this many a record.
inline constexpr int kConflictsPerRecordMax = 16;

}  // namespace idempotency::limits

#endif  // IDEMPOTENCY_SERVER_CORE_LIMITS_H_
