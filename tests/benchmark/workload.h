// Which calls a load run makes and what their answers must be.
#ifndef TESTS_BENCHMARK_WORKLOAD_H_
#define TESTS_BENCHMARK_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "idempotency/v1/idempotency.pb.h"
#include "tests/benchmark/http2_connection.h"

namespace idempotency::benchmark {

inline constexpr size_t kKeyBytes = 36;
inline constexpr size_t kHashBytes = 32;
inline constexpr size_t kTokenBytes = 36;
inline constexpr size_t kBodyBytes = 200;

enum class Method { kClaim, kFinalize };

// A serialised message whose fields are overwritten in place: cheaper than
// building a message for each call.
class RequestTemplate {
 public:
  RequestTemplate() = default;
  // `fields` are the values in `message` that will be overwritten, each found
  // by its bytes, which must occur exactly once.
  RequestTemplate(const google::protobuf::MessageLite& message,
                  const std::vector<std::string>& fields);

  std::string_view frame() const { return frame_; }

  // Overwrites the field at this place in the constructor's list by as many
  // bytes as it has.
  void Patch(size_t field, std::string_view value);

 private:
  std::string frame_;  // with gRPC's prefix
  std::vector<size_t> offsets_;
};

// Key and request hash of one record.
struct RecordName {
  std::string key;
  std::string hash;
};

// One of the calls in flight: it sends its calls one after the other.
struct Slot : Call {
  Method method = Method::kFinalize;  // of the latest call
  int64_t started_ns = 0;             // of the latest call
  int64_t arrived_ns = 0;             // in an open loop: of its work
  std::string key;                    // of the latest call's record
  RequestTemplate claim;
  RequestTemplate finalize;
};

// Not thread-safe.
class Workload {
 public:
  virtual ~Workload() = default;

  // Puts the next call of `slot` into `slot`; false when
  // there is none left.
  virtual bool Next(Slot& slot) = 0;

  // Empty if the answer in `slot` is the right one, else what is wrong.
  virtual std::string Check(const Slot& slot) = 0;

  // True when no work of `slot` is half done: a run may end here.
  virtual bool AtBoundary(const Slot& slot) const = 0;
};

// Every workload sends the messages of this scope; Finalizes bring bodies of
// `body_bytes`, at least 100.
std::vector<std::unique_ptr<Slot>> MakeSlots(size_t count,
                                             const std::string& scope,
                                             size_t body_bytes);

// Whether the server has not done what the call asks for, as far as it knows:
// UNAVAILABLE or too late.
bool IsRefusal(const Call& call);
// The second of them, DEADLINE_EXCEEDED.
bool IsTooLate(const Call& call);

// Fresh random keys, to be claimed and finalized.
std::vector<RecordName> RandomRecords(size_t count);

// Claim, then Finalize, of fresh random keys, without end.
std::unique_ptr<Workload> MakePairWorkload();

// Claim and Finalize of each of `records`, once. `records` must outlive it.
std::unique_ptr<Workload> MakeRecordingWorkload(
    const std::vector<RecordName>& records);

// Claims of fresh random keys, without end.
std::unique_ptr<Workload> MakeClaimWorkload();

// Claims, each with a new token, of finalized `records`, without end; the
// answers must be the recorded response, byte for byte. `records` must outlive
// it.
std::unique_ptr<Workload> MakeReplayWorkload(
    const std::vector<RecordName>& records);

// Claims of one fresh key, each with a token of its own.
class CrowdWorkload : public Workload {
 public:
  // Answers so far.
  virtual size_t claimed() const = 0;
  virtual size_t in_progress() const = 0;
};

// `claims` of them; the answers must be Claimed or InProgress.
std::unique_ptr<CrowdWorkload> MakeCrowdWorkload(size_t claims);

// The response that every Finalize records: status, three headers, body.
v1::Response RecordedResponse(size_t body_bytes = kBodyBytes);

}  // namespace idempotency::benchmark

#endif  // TESTS_BENCHMARK_WORKLOAD_H_
