// Calls of all kinds at random, each by a path of its own: unary or through
// Bulk, at one replica or the other, waiting or not, from memory or from the
// database. However they came, the answers are those of the pure transitions.
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/async_client.h"
#include "client/status.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/transitions.h"
#include "server/core/uuid.h"
#include "server/rpc/conversion.h"
#include "server/rpc/validation.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/metrics_page.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr char kScope[] = "mixed";
constexpr char kNamespace[] = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
constexpr int kTokens = 3;
constexpr int kCallsAKey = 25;
constexpr int kKeysAtOnce = 12;

using Paths = std::vector<std::unique_ptr<AsyncClient>>;
// How often each kind of answer was given.
using Counts = std::map<std::string, int>;

std::string TokenOf(int number) {
  return "00000000-0000-4000-8000-00000000000" + std::to_string(number + 1);
}

Policy PolicyOf(const std::string& name) {
  const bool holds = name == "payment";
  return {.name = name,
          .lease = absl::Seconds(30),
          .max_lease = absl::Hours(1),
          .retention = absl::Hours(24),
          .on_abandoned = holds ? OnAbandoned::kHold : OnAbandoned::kTakeOver,
          .on_server_error =
              holds ? OnServerError::kHold : OnServerError::kRelease};
}

// The model's clock is not the database's.
void ClearTimes(google::protobuf::Message& message) {
  const auto* const reflection = message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const auto* const field : fields) {
    if (field->message_type() == nullptr || field->is_repeated()) continue;
    const std::string& type = field->message_type()->full_name();
    if (type == "google.protobuf.Timestamp" ||
        type == "google.protobuf.Duration") {
      reflection->ClearField(&message, field);
    } else {
      ClearTimes(*reflection->MutableMessage(&message, field));
    }
  }
}

// Evidence is counted apart from the record.
void ClearCounts(v1::LookupResponse& response) {
  response.mutable_record()->clear_conflict_count();
}
template <typename Response>
void ClearCounts(Response&) {}

template <typename Request, typename Response>
using Method = void (AsyncClient::*)(const Request&, const CallOptions&,
                                     Answered<Response>);

template <typename Request, typename Response>
std::future<absl::StatusOr<Response>> Ask(AsyncClient& path,
                                          Method<Request, Response> method,
                                          const Request& request) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<Response>>>();
  auto answer = promise->get_future();
  (path.*method)(request, {}, [promise](absl::StatusOr<Response> response) {
    promise->set_value(std::move(response));
  });
  return answer;
}

// One key: what its record must be, and whether the answers say so.
class Key {
 public:
  Key(const Paths& paths, unsigned seed)
      : paths_(paths),
        random_(seed),
        key_(RandomKey()),
        policy_(PolicyOf(Below(2) == 0 ? "payment" : "default")) {}

  void MakeCalls() {
    for (int i = 0; i < kCallsAKey && !testing::Test::HasFailure(); ++i) {
      const int kind = Below(10);
      if (kind < 4) {
        const v1::ClaimRequest claim = RandomClaim();
        Check(claim, Ask(Path(), &AsyncClient::Claim, claim).get());
      } else if (kind < 7 && Runs()) {
        EndWhileOneWaits();
      } else if (kind < 9) {
        EndBy(TokenOf(Below(kTokens)));
      } else {
        v1::LookupRequest lookup;
        lookup.set_scope(kScope);
        lookup.set_key(key_);
        Check(lookup, Ask(Path(), &AsyncClient::Lookup, lookup).get());
      }
    }
  }

  const Counts& answers() const { return answers_; }

 private:
  int Below(int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random_);
  }
  AsyncClient& Path() {
    return *paths_[Below(static_cast<int>(paths_.size()))];
  }
  const Record* record() const { return record_ ? &*record_ : nullptr; }
  bool Runs() const {
    return record_ &&
           StateAt(*record_, absl::Now()) == VisibleState::kInProgress;
  }
  RecordId id() const { return {.scope = kScope, .key = key_}; }

  v1::ClaimRequest RandomClaim() {
    v1::ClaimRequest claim;
    claim.set_scope(kScope);
    claim.set_key(key_);
    claim.set_claim_token(TokenOf(Below(kTokens)));
    claim.set_request_hash(std::string(32, Below(8) == 0 ? 'b' : 'a'));
    claim.set_policy(policy_.name);
    claim.set_resolve_in_doubt(Below(2) == 0);
    *claim.mutable_lease() = DurationOf(std::chrono::hours(1));
    if (Below(3) == 0) *claim.mutable_wait() = DurationOf(milliseconds(30));
    if (record_ && Below(6) == 0) {
      claim.set_renew_fencing_token(record_->fencing_token - Below(2));
    }
    return claim;
  }

  // A Finalize or Release by whoever has that token.
  void EndBy(const std::string& token) {
    if (Below(2) == 0) {
      v1::FinalizeRequest finalize;
      finalize.set_scope(kScope);
      finalize.set_key(key_);
      finalize.set_claim_token(token);
      *finalize.mutable_response() =
          ResponseOf(Below(4) == 0 ? 503 : 201,
                     std::string(Below(4) == 0 ? 20'000 : 20, 'x'));
      Check(finalize, Ask(Path(), &AsyncClient::Finalize, finalize).get());
    } else {
      v1::ReleaseRequest release;
      release.set_scope(kScope);
      release.set_key(key_);
      release.set_claim_token(token);
      release.set_disposition(
          static_cast<v1::ReleaseRequest::Disposition>(1 + Below(3)));
      Check(release, Ask(Path(), &AsyncClient::Release, release).get());
    }
  }

  // Whether the waiter came before the end or after it, it is answered from
  // what the end left.
  void EndWhileOneWaits() {
    const std::string owner = FormatUuid(record_->claim_token);
    v1::ClaimRequest waiter = RandomClaim();
    do {
      waiter.set_claim_token(TokenOf(Below(kTokens)));
    } while (waiter.claim_token() == owner);
    waiter.clear_renew_fencing_token();
    waiter.set_request_hash(record_->request_hash);
    *waiter.mutable_wait() = DurationOf(seconds(20));
    auto answer = Ask(Path(), &AsyncClient::Claim, waiter);
    std::this_thread::sleep_for(milliseconds(Below(15)));
    EndBy(owner);
    ++answers_["waited for the end"];
    Check(waiter, answer.get());
  }

  void Check(const v1::ClaimRequest& request,
             const absl::StatusOr<v1::ClaimResponse>& answer) {
    ClaimCommand command = ValidateClaim(request).value();
    command.policy = policy_;
    Decision<ClaimOutcome> decision =
        DecideClaim(record(), command, absl::Now());
    if (decision.write.has_value() && decision.answer.ok()) {
      Claimed& claimed = std::get<Claimed>(*decision.answer);
      const bool anew =
          !record_ || record_->fencing_token != claimed.fencing_token;
      if (anew && answer.ok() && answer->has_claimed()) {
        // The database's clock makes the number.
        EXPECT_GT(answer->claimed().fencing_token(), latest_fencing_token_);
        latest_fencing_token_ = answer->claimed().fencing_token();
        claimed.fencing_token = latest_fencing_token_;
        decision.write->fencing_token = latest_fencing_token_;
      }
    }
    Compare<v1::ClaimResponse>(request, std::move(decision), answer);
  }

  void Check(const v1::FinalizeRequest& request,
             const absl::StatusOr<v1::FinalizeResponse>& answer) {
    const FinalizeCommand command =
        ValidateFinalize(request, limits::kBodyBytesDefault).value();
    Compare<v1::FinalizeResponse>(
        request, DecideFinalize(record(), command, absl::Now()), answer);
  }

  void Check(const v1::ReleaseRequest& request,
             const absl::StatusOr<v1::ReleaseResponse>& answer) {
    const ReleaseCommand command = ValidateRelease(request).value();
    Compare<v1::ReleaseResponse>(
        request, DecideRelease(record(), command, absl::Now()), answer);
  }

  void Check(const v1::LookupRequest& request,
             const absl::StatusOr<v1::LookupResponse>& answer) {
    Decision<LookupOutcome> decision{.answer =
                                         DecideLookup(record(), absl::Now())};
    Compare<v1::LookupResponse>(request, std::move(decision), answer);
  }

  template <typename Response, typename Request, typename Outcome>
  void Compare(const Request& request, Decision<Outcome> decision,
               const absl::StatusOr<Response>& answer) {
    ++answers_[Decided(answer)];
    EXPECT_EQ(Told(answer), Expected<Response>(std::move(decision.answer)))
        << "in answer to " << request.ShortDebugString() << "\n"
        << answer.status();
    if (decision.write.has_value()) record_ = std::move(decision.write);
  }

  template <typename Response>
  static std::string Told(absl::StatusOr<Response> answer) {
    if (!answer.ok()) return ErrorReasonOf(answer.status());
    ClearTimes(*answer);
    ClearCounts(*answer);
    return answer->ShortDebugString();
  }

  template <typename Response, typename Outcome>
  std::string Expected(absl::StatusOr<Outcome> outcome) const {
    if (!outcome.ok()) {
      return std::string(ReasonName(ReasonOf(outcome.status())));
    }
    Response response;
    if constexpr (std::is_same_v<Outcome, ClaimOutcome> ||
                  std::is_same_v<Outcome, LookupOutcome>) {
      const AnswerContext context{
          .id = id(), .downstream_namespace = *ParseUuid(kNamespace)};
      EXPECT_TRUE(ToProto(*std::move(outcome), context, response).ok());
    } else {
      ToProto(*outcome, response);
    }
    return Told<Response>(std::move(response));
  }

  const Paths& paths_;
  std::mt19937 random_;
  const std::string key_;
  const Policy policy_;
  std::optional<Record> record_;
  std::int64_t latest_fencing_token_ = 0;
  Counts answers_;
};

TEST(MixedPathsTest, AnswersAreThoseOfTheTransitionsWhateverWayTheyCome) {
  const std::string database = Require(TempPostgres::SharedDatabase());
  const std::vector<std::string> flags = {
      "--admin_listen=127.0.0.1:0",
      std::string("--downstream_namespace=") + kNamespace};
  std::vector<std::unique_ptr<Replica>> replicas;
  Paths paths;
  for (int i = 0; i < 2; ++i) {
    replicas.push_back(StartReplica(database, flags));
    for (const BulkUse use : {BulkUse::kNever, BulkUse::kAlways}) {
      ClientOptions options;
      options.timeout = seconds(20);
      options.bulk = use;
      paths.push_back(AsyncClient::Connect(replicas.back()->target(), options));
    }
  }

  const unsigned seed = SeedOfRun();
  const auto end = steady_clock::now() + seconds(IsLongRun() ? 120 : 5);
  std::mutex mutex;
  Counts answers;
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kKeysAtOnce; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned n = 0; steady_clock::now() < end && !HasFailure(); ++n) {
        Key key(paths, seed + thread + n * kKeysAtOnce);
        key.MakeCalls();
        const std::lock_guard<std::mutex> lock(mutex);
        for (const auto& [word, count] : key.answers()) answers[word] += count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  for (const auto& [word, count] : answers) {
    std::cout << word << ": " << count << "\n";
  }
  for (const char* const word :
       {"Claimed", "Replay", "InProgress", "Mismatch", "InDoubt",
        "waited for the end", "RESULT_RECORDED", "RESULT_RELEASED",
        "RESULT_IN_DOUBT", "released", "CLAIM_RELEASED", "CLAIM_SUPERSEDED",
        "ALREADY_FINALIZED", "RECORD_NOT_FOUND", "STATE_FINALIZED"}) {
    EXPECT_GT(answers[word], 0) << word;
  }
  for (const auto& replica : replicas) {
    const MetricsPage page = Require(MetricsPage::Get(AdminPortOf(*replica)));
    EXPECT_GT(page.Value("idempotency_replay_cache_hits_total"), 0);
  }
}

}  // namespace
}  // namespace idempotency
