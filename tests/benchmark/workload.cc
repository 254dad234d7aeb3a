#include "tests/benchmark/workload.h"

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace idempotency::benchmark {
namespace {

constexpr std::string_view kClaimPath =
    "/idempotency.v1.IdempotencyService/Claim";
constexpr std::string_view kFinalizePath =
    "/idempotency.v1.IdempotencyService/Finalize";
constexpr size_t kPrefixBytes = 5;
constexpr int kGrpcDeadlineExceeded = 4;
constexpr int kGrpcUnavailable = 14;

// Places in the list of fields that MakeSlots gives to the templates.
constexpr size_t kKeyField = 0;
constexpr size_t kTokenField = 1;
constexpr size_t kHashField = 2;

std::mt19937_64& Generator() {
  static std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator;
}

// A version 4 UUID in its text form.
void RandomUuid(char* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  uint64_t bits = 0;
  for (size_t i = 0, digit = 0; i < kKeyBytes; ++i) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      out[i] = '-';
      continue;
    }
    if (digit++ % 16 == 0) bits = Generator()();
    out[i] = kDigits[bits & 15];
    bits >>= 4;
  }
  out[14] = '4';
  out[19] = '8';
}

void RandomHash(char* out) {
  for (size_t i = 0; i < kHashBytes; i += sizeof(uint64_t)) {
    const uint64_t bits = Generator()();
    memcpy(out + i, &bits, sizeof(bits));
  }
}

// The message of an answer, or what is wrong with the answer.
std::string CheckFrame(const Call& call, std::string_view* message) {
  if (call.stream_error != 0) {
    return absl::StrCat("the stream ended with HTTP/2 error ",
                        call.stream_error);
  }
  if (call.http_status != 200 || call.grpc_status != 0) {
    return absl::StrCat("HTTP status ", call.http_status, ", gRPC status ",
                        call.grpc_status, " ", call.grpc_message);
  }
  const std::string& frame = call.response;
  if (frame.size() < kPrefixBytes || frame[0] != 0) {
    return "the answer is not one uncompressed message";
  }
  size_t size = 0;
  for (size_t i = 1; i < kPrefixBytes; ++i) {
    size = size << 8 | static_cast<unsigned char>(frame[i]);
  }
  if (size != frame.size() - kPrefixBytes) {
    return "the answer is not one whole message";
  }
  *message = std::string_view(frame).substr(kPrefixBytes);
  return "";
}

template <typename Message>
std::string ParseAnswer(const Call& call, Message* message) {
  std::string_view bytes;
  if (std::string wrong = CheckFrame(call, &bytes); !wrong.empty()) {
    return wrong;
  }
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return "the answer cannot be parsed";
  }
  return "";
}

void SetClaim(Slot& slot, std::string_view key, std::string_view hash,
              std::string_view token) {
  slot.claim.Patch(kKeyField, key);
  slot.claim.Patch(kTokenField, token);
  slot.claim.Patch(kHashField, hash);
  slot.finalize.Patch(kKeyField, key);
  slot.finalize.Patch(kTokenField, token);
  slot.key = key;
  slot.method = Method::kClaim;
  slot.path = kClaimPath;
  slot.request = slot.claim.frame();
}

void SetFreshClaim(Slot& slot) {
  char key[kKeyBytes], token[kTokenBytes], hash[kHashBytes];
  RandomUuid(key);
  RandomUuid(token);
  RandomHash(hash);
  SetClaim(slot, {key, kKeyBytes}, {hash, kHashBytes}, {token, kTokenBytes});
}

void SetFinalize(Slot& slot) {
  slot.method = Method::kFinalize;
  slot.path = kFinalizePath;
  slot.request = slot.finalize.frame();
}

// The answers of fresh keys; messages are kept so that parsing reuses memory.
class FreshKeyChecker {
 public:
  std::string Check(const Slot& slot) {
    return slot.method == Method::kClaim ? CheckClaimed(slot)
                                         : CheckRecorded(slot);
  }

 private:
  std::string CheckClaimed(const Call& call) {
    if (std::string wrong = ParseAnswer(call, &claimed_); !wrong.empty()) {
      return wrong;
    }
    const v1::Claimed& claimed = claimed_.claimed();
    if (!claimed_.has_claimed()) {
      return absl::StrCat("outcome ", static_cast<int>(claimed_.outcome_case()),
                          " in place of Claimed");
    }
    if (claimed.attempt() != 1 || claimed.has_abandoned()) {
      return "a fresh key is not at its first attempt";
    }
    if (claimed.fencing_token() <= 0 || claimed.downstream_key().empty() ||
        !claimed.has_lease()) {
      return "Claimed lacks a fencing token, a downstream key or a lease";
    }
    return "";
  }

  std::string CheckRecorded(const Call& call) {
    if (std::string wrong = ParseAnswer(call, &recorded_); !wrong.empty()) {
      return wrong;
    }
    if (recorded_.result() != v1::FinalizeResponse::RESULT_RECORDED) {
      return absl::StrCat("result ", static_cast<int>(recorded_.result()),
                          " in place of RESULT_RECORDED");
    }
    return "";
  }

  v1::ClaimResponse claimed_;
  v1::FinalizeResponse recorded_;
};

class PairWorkload final : public Workload {
 public:
  explicit PairWorkload(const std::vector<RecordName>* records)
      : records_(records) {}

  bool Next(Slot& slot) override {
    if (slot.method == Method::kClaim) {
      SetFinalize(slot);
      return true;
    }
    if (records_ == nullptr) {
      SetFreshClaim(slot);
      return true;
    }
    if (next_ == records_->size()) return false;
    const RecordName& record = (*records_)[next_++];
    char token[kTokenBytes];
    RandomUuid(token);
    SetClaim(slot, record.key, record.hash, {token, kTokenBytes});
    return true;
  }

  std::string Check(const Slot& slot) override { return checker_.Check(slot); }

  bool AtBoundary(const Slot& slot) const override {
    return slot.method == Method::kFinalize;
  }

 private:
  const std::vector<RecordName>* records_;  // null: random, without end
  size_t next_ = 0;
  FreshKeyChecker checker_;
};

class ClaimWorkload final : public Workload {
 public:
  bool Next(Slot& slot) override {
    SetFreshClaim(slot);
    return true;
  }
  std::string Check(const Slot& slot) override { return checker_.Check(slot); }
  bool AtBoundary(const Slot&) const override { return true; }

 private:
  FreshKeyChecker checker_;
};

class ReplayWorkload final : public Workload {
 public:
  explicit ReplayWorkload(const std::vector<RecordName>& records)
      : records_(records), expected_(RecordedResponse().SerializeAsString()) {}

  bool Next(Slot& slot) override {
    const RecordName& record = records_[Generator()() % records_.size()];
    char token[kTokenBytes];
    RandomUuid(token);
    SetClaim(slot, record.key, record.hash, {token, kTokenBytes});
    return true;
  }

  std::string Check(const Slot& slot) override {
    if (std::string wrong = ParseAnswer(slot, &answer_); !wrong.empty()) {
      return wrong;
    }
    if (!answer_.has_replay()) {
      return absl::StrCat("outcome ", static_cast<int>(answer_.outcome_case()),
                          " in place of Replay");
    }
    answer_.replay().response().SerializeToString(&actual_);
    if (actual_ != expected_) return "the replay is not what was recorded";
    return "";
  }

  bool AtBoundary(const Slot&) const override { return true; }

 private:
  const std::vector<RecordName>& records_;
  const std::string expected_;
  std::string actual_;
  v1::ClaimResponse answer_;
};

class OneKeyWorkload final : public CrowdWorkload {
 public:
  explicit OneKeyWorkload(size_t claims)
      : left_(claims), record_(RandomRecords(1).front()) {}

  bool Next(Slot& slot) override {
    if (left_ == 0) return false;
    --left_;
    char token[kTokenBytes];
    RandomUuid(token);
    SetClaim(slot, record_.key, record_.hash, {token, kTokenBytes});
    return true;
  }

  std::string Check(const Slot& slot) override {
    if (std::string wrong = ParseAnswer(slot, &answer_); !wrong.empty()) {
      return wrong;
    }
    if (answer_.has_claimed()) {
      return ++claimed_ == 1 ? "" : "a second Claim of the key is Claimed";
    }
    if (answer_.has_in_progress()) {
      ++in_progress_;
      return "";
    }
    return absl::StrCat("outcome ", static_cast<int>(answer_.outcome_case()),
                        " in place of Claimed or InProgress");
  }

  bool AtBoundary(const Slot&) const override { return true; }

  size_t claimed() const override { return claimed_; }
  size_t in_progress() const override { return in_progress_; }

 private:
  size_t left_;
  const RecordName record_;
  size_t claimed_ = 0;
  size_t in_progress_ = 0;
  v1::ClaimResponse answer_;
};

}  // namespace

bool IsTooLate(const Call& call) {
  return call.stream_error == 0 && call.http_status == 200 &&
         call.grpc_status == kGrpcDeadlineExceeded;
}

bool IsRefusal(const Call& call) {
  return IsTooLate(call) ||
         (call.stream_error == 0 && call.http_status == 200 &&
          call.grpc_status == kGrpcUnavailable);
}

RequestTemplate::RequestTemplate(const google::protobuf::MessageLite& message,
                                 const std::vector<std::string>& fields) {
  const std::string bytes = message.SerializeAsString();
  frame_.push_back(0);
  for (int shift = 24; shift >= 0; shift -= 8) {
    frame_.push_back(static_cast<char>(bytes.size() >> shift & 0xff));
  }
  frame_ += bytes;
  for (const std::string& field : fields) {
    const size_t offset = frame_.find(field);
    if (offset == std::string::npos || frame_.rfind(field) != offset) {
      std::cerr << "A field of the template does not occur exactly once.\n";
      std::abort();
    }
    offsets_.push_back(offset);
  }
}

void RequestTemplate::Patch(size_t field, std::string_view value) {
  memcpy(frame_.data() + offsets_[field], value.data(), value.size());
}

v1::Response RecordedResponse(size_t body_bytes) {
  v1::Response response;
  response.set_status_code(201);
  auto add_header = [&response](const char* name, const char* value) {
    v1::Header* header = response.add_headers();
    header->set_name(name);
    header->set_value(value);
  };
  add_header("content-type", "application/json");
  add_header("location", "/payments/pay_5f0c6a2e9b71");
  add_header("x-request-id", "7d1f9a40c2e84b1f");
  std::string body =
      R"({"id":"pay_5f0c6a2e9b71","status":"succeeded","note":")";
  body.append(body_bytes - body.size() - 2, 'n');
  body += "\"}";
  response.set_body(body);
  return response;
}

std::vector<std::unique_ptr<Slot>> MakeSlots(size_t count,
                                             const std::string& scope,
                                             size_t body_bytes) {
  const std::string key(kKeyBytes, 'K');
  const std::string token(kTokenBytes, 'T');
  const std::string hash(kHashBytes, 'H');
  v1::ClaimRequest claim;
  claim.set_scope(scope);
  claim.set_key(key);
  claim.set_claim_token(token);
  claim.set_request_hash(hash);
  v1::FinalizeRequest finalize;
  finalize.set_scope(scope);
  finalize.set_key(key);
  finalize.set_claim_token(token);
  *finalize.mutable_response() = RecordedResponse(body_bytes);

  std::vector<std::unique_ptr<Slot>> slots;
  for (size_t i = 0; i < count; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->claim = RequestTemplate(claim, {key, token, hash});
    slot->finalize = RequestTemplate(finalize, {key, token});
    slots.push_back(std::move(slot));
  }
  return slots;
}

std::vector<RecordName> RandomRecords(size_t count) {
  std::vector<RecordName> records(count);
  for (RecordName& record : records) {
    record.key.resize(kKeyBytes);
    record.hash.resize(kHashBytes);
    RandomUuid(record.key.data());
    RandomHash(record.hash.data());
  }
  return records;
}

std::unique_ptr<Workload> MakePairWorkload() {
  return std::make_unique<PairWorkload>(nullptr);
}

std::unique_ptr<Workload> MakeRecordingWorkload(
    const std::vector<RecordName>& records) {
  return std::make_unique<PairWorkload>(&records);
}

std::unique_ptr<Workload> MakeClaimWorkload() {
  return std::make_unique<ClaimWorkload>();
}

std::unique_ptr<Workload> MakeReplayWorkload(
    const std::vector<RecordName>& records) {
  return std::make_unique<ReplayWorkload>(records);
}

std::unique_ptr<CrowdWorkload> MakeCrowdWorkload(size_t claims) {
  return std::make_unique<OneKeyWorkload>(claims);
}

}  // namespace idempotency::benchmark
