// A network between the servers and PostgreSQL that fails at random moments,
// and callers whose every answer is written down and checked afterwards.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/replica.h"
#include "tests/support/tcp_gate.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::IsEmpty;

constexpr int kThreads = 16;
constexpr int kKeysInUse = 12;
constexpr milliseconds kTimeout{800};
// What a busy machine may add to a deadline.
constexpr milliseconds kDeadlineSlack{1500};

seconds Length() { return seconds(IsLongRun() ? 120 : 12); }

struct Event {
  enum class Kind { kClaim, kFinalize, kRelease };
  Kind kind;
  std::string key;
  std::string token;
  steady_clock::time_point sent;
  steady_clock::time_point answered;
  std::string decided;
  // With Claimed.
  std::int64_t fencing_token = 0;
  milliseconds lease{0};
  // Whose response was replayed or recorded: its body is a claim token.
  std::string author;
};

// What the callers saw, and what is wrong with it.
class History {
 public:
  void Add(Event event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
  }

  std::vector<std::string> Check() const {
    MutexLock lock(mutex_);
    std::map<std::string, std::vector<const Event*>> by_key;
    for (const Event& event : events_) by_key[event.key].push_back(&event);
    std::vector<std::string> wrong;
    for (const auto& [key, events] : by_key) {
      CheckOwners(events, wrong);
      CheckResponses(events, wrong);
    }
    return wrong;
  }

  std::map<std::string, int> Counts() const {
    MutexLock lock(mutex_);
    std::map<std::string, int> counts;
    for (const Event& event : events_) ++counts[event.decided];
    return counts;
  }

 private:
  using Events = std::vector<const Event*>;

  static void CheckOwners(const Events& events,
                          std::vector<std::string>& wrong) {
    std::map<std::int64_t, std::string> owner_of;
    for (const Event* a : events) {
      if (a->decided != "Claimed") continue;
      const auto owner = owner_of.emplace(a->fencing_token, a->token).first;
      if (owner->second != a->token) {
        wrong.push_back(a->key + ": two owners of one fencing token");
      }
      for (const Event* b : events) {
        if (b->decided != "Claimed" || b->token == a->token) continue;
        if (a->answered < b->sent && a->fencing_token > b->fencing_token) {
          wrong.push_back(a->key + ": a later grant has a lower token");
        }
        if (a->fencing_token < b->fencing_token &&
            b->answered < a->sent + a->lease &&
            !GivenUpBefore(*a, b->answered, events)) {
          wrong.push_back(a->key + ": granted while another lease ran");
        }
      }
    }
  }

  static bool GivenUpBefore(const Event& grant, steady_clock::time_point when,
                            const Events& events) {
    for (const Event* event : events) {
      if (event->kind == Event::Kind::kRelease && event->token == grant.token &&
          event->sent < when) {
        return true;
      }
    }
    return false;
  }

  static void CheckResponses(const Events& events,
                             std::vector<std::string>& wrong) {
    std::set<std::string> authors;
    std::set<std::string> owners;
    for (const Event* event : events) {
      if (!event->author.empty()) authors.insert(event->author);
      if (event->decided == "Claimed") owners.insert(event->token);
    }
    for (const std::string& author : authors) {
      if (!owners.contains(author)) {
        wrong.push_back("a response of somebody who was never granted");
      }
    }
    if (authors.size() > 1) wrong.push_back("two responses of one key");
    for (const Event* recorded : events) {
      if (recorded->decided != "RESULT_RECORDED") continue;
      for (const Event* later : events) {
        if (later->kind != Event::Kind::kClaim ||
            later->sent < recorded->answered) {
          continue;
        }
        if (later->decided == "Claimed" || later->decided == "InProgress") {
          wrong.push_back(recorded->key + ": " + later->decided +
                          " after a response was recorded");
        }
      }
    }
  }

  mutable Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
};

Event At(int sent_ms, int answered_ms, Event::Kind kind,
         const std::string& token, const std::string& decided) {
  const steady_clock::time_point begin;
  return {.kind = kind,
          .key = "key",
          .token = token,
          .sent = begin + milliseconds(sent_ms),
          .answered = begin + milliseconds(answered_ms),
          .decided = decided,
          .fencing_token = 0,
          .lease = milliseconds(100),
          .author = decided == "RESULT_RECORDED" ? token : ""};
}

Event Granted(int sent_ms, const std::string& token, std::int64_t fencing) {
  Event event = At(sent_ms, sent_ms + 1, Event::Kind::kClaim, token, "Claimed");
  event.fencing_token = fencing;
  return event;
}

std::size_t WrongIn(const std::vector<Event>& events) {
  History history;
  for (const Event& event : events) history.Add(event);
  return history.Check().size();
}

// The check itself: what is sound passes, and nothing else.
TEST(HistoryTest, NoticesBrokenPromises) {
  using Kind = Event::Kind;
  const Event first = Granted(0, "a", 1);
  const Event recorded = At(5, 6, Kind::kFinalize, "a", "RESULT_RECORDED");
  EXPECT_EQ(WrongIn({first, Granted(150, "b", 2)}), 0U);
  EXPECT_EQ(WrongIn({first, At(5, 6, Kind::kRelease, "a", "released"),
                     Granted(10, "b", 2)}),
            0U);
  EXPECT_EQ(WrongIn({first, recorded}), 0U);

  EXPECT_GT(WrongIn({first, Granted(50, "b", 2)}), 0U);
  EXPECT_GT(WrongIn({first, Granted(150, "b", 1)}), 0U);
  EXPECT_GT(WrongIn({Granted(0, "a", 2), Granted(150, "b", 1)}), 0U);
  EXPECT_GT(WrongIn({recorded}), 0U);
  EXPECT_GT(WrongIn({first, recorded, Granted(150, "b", 2)}), 0U);
  EXPECT_GT(
      WrongIn({first, recorded, At(9, 9, Kind::kClaim, "b", "InProgress")}),
      0U);
  EXPECT_GT(WrongIn({first, Granted(150, "b", 2), recorded,
                     At(160, 161, Kind::kFinalize, "b", "RESULT_RECORDED")}),
            0U);
}

class RandomCutsTest : public ::testing::Test {
 protected:
  struct Open {
    std::vector<v1::ClaimRequest> claims;
    std::vector<v1::FinalizeRequest> finalizes;
    std::vector<v1::ReleaseRequest> releases;
  };

  void SetUp() override {
    const TempPostgres& postgres = *Require(TempPostgres::Shared());
    database_ = Require(TempPostgres::SharedDatabase());
    gate_ = Require(TcpGate::Make(postgres.port()));
    for (int i = 0; i < 2; ++i) {
      replicas_.push_back(
          StartReplica(ThroughPort(database_, gate_->port()), {"--lanes=2"}));
    }
    MutexLock lock(mutex_);
    for (int i = 0; i < kKeysInUse; ++i) keys_.push_back(RandomKey());
  }

  // Sends a call once and writes down what became of it.
  template <typename Request>
  auto SendAndNote(Stub& stub, Event::Kind kind, const Request& request,
                   milliseconds timeout = kTimeout) {
    Event event{.kind = kind,
                .key = request.key(),
                .token = request.claim_token(),
                .sent = steady_clock::now(),
                .answered = {},
                .decided = {},
                .author = {}};
    auto answer = Send(stub, request, timeout);
    event.answered = steady_clock::now();
    event.decided = Decided(answer);
    if (event.answered - event.sent > timeout + kDeadlineSlack) {
      event.decided = "later than its deadline";
    }
    if constexpr (std::is_same_v<Request, v1::ClaimRequest>) {
      if (answer.ok() && answer->has_claimed()) {
        event.fencing_token = answer->claimed().fencing_token();
        event.lease = MillisecondsOf(answer->claimed().lease());
      }
      if (answer.ok() && answer->has_replay()) {
        event.author = answer->replay().response().body();
      }
    }
    if constexpr (std::is_same_v<Request, v1::FinalizeRequest>) {
      if (answer.ok()) event.author = request.claim_token();
    }
    history_.Add(std::move(event));
    return answer;
  }

  // Sends until it is answered; a call that never is goes to `open`.
  template <typename Request>
  auto SendInTrouble(Stub& stub, Event::Kind kind, const Request& request,
                     std::vector<Request>& open) {
    constexpr int kAttempts = 3;
    for (int attempt = 1;; ++attempt) {
      auto answer = SendAndNote(stub, kind, request);
      if (answer.ok() || !IsUnserved(answer.status())) return answer;
      if (attempt == kAttempts) {
        MutexLock lock(mutex_);
        open.push_back(request);
        return answer;
      }
    }
  }

  std::string AnyKey(std::mt19937& random) {
    MutexLock lock(mutex_);
    std::string& key = keys_[random() % keys_.size()];
    // Keys that are final wear out.
    if (random() % 12 == 0) {
      key = RandomKey();
      ++keys_used_;
    }
    return key;
  }

  void Call(unsigned seed, Stub& stub) {
    std::mt19937 random(seed);
    while (!stopping_) {
      v1::ClaimRequest claim =
          ClaimFor(milliseconds(200 + random() % 600), AnyKey(random));
      const auto claimed =
          SendInTrouble(stub, Event::Kind::kClaim, claim, open_.claims);
      if (!claimed.ok() || !claimed->has_claimed()) continue;
      const unsigned what = random() % 10;
      if (what < 6) {
        SendInTrouble(stub, Event::Kind::kFinalize,
                      FinalizeOf(claim, 201, claim.claim_token()),
                      open_.finalizes)
            .status()
            .IgnoreError();
      } else if (what < 8) {
        SendInTrouble(
            stub, Event::Kind::kRelease,
            ReleaseOf(claim,
                      what == 6
                          ? v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN
                          : v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED),
            open_.releases)
            .status()
            .IgnoreError();
      }
    }
  }

  void BreakTheNetwork(std::mt19937& random) {
    const auto rest = [&](unsigned least, unsigned most) {
      std::this_thread::sleep_for(
          milliseconds(least + random() % (most - least)));
    };
    switch (random() % 6) {
      case 0:
        gate_->CutAll();
        break;
      case 1:
      case 2:
        gate_->CutAfterNextRequest();
        break;
      case 3:
        gate_->BlackHole();
        rest(50, 500);
        break;
      case 4:
        gate_->SwallowReplies(true);
        rest(5, 200);
        gate_->CutAll();
        break;
      case 5:
        gate_->Refuse();
        rest(50, 400);
        break;
    }
    if (random() % 4 == 0) gate_->Delay(milliseconds(3), milliseconds(5));
    rest(20, 150);
    gate_->Open();
    rest(5, 60);
  }

  // Everything that was never answered is asked again, and must be answered.
  template <typename Request>
  void Settle(Event::Kind kind, const std::vector<Request>& requests) {
    for (const Request& request : requests) {
      const steady_clock::time_point end = steady_clock::now() + seconds(20);
      for (;;) {
        const auto answer =
            SendAndNote(replicas_[0]->stub(), kind, request, seconds(10));
        if (answer.ok() || !IsUnserved(answer.status())) break;
        if (steady_clock::now() > end) {
          ADD_FAILURE() << "not settled: " << answer.status();
          break;
        }
        std::this_thread::sleep_for(milliseconds(50));
      }
    }
  }

  std::string database_;
  std::unique_ptr<TcpGate> gate_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::atomic<bool> stopping_{false};
  History history_;

  Mutex mutex_;
  std::vector<std::string> keys_ ABSL_GUARDED_BY(mutex_);
  int keys_used_ ABSL_GUARDED_BY(mutex_) = kKeysInUse;
  Open open_;
};

TEST_F(RandomCutsTest, NobodyIsPromisedWhatAnotherWasPromised) {
  const unsigned seed = SeedOfRun();
  std::vector<std::thread> callers;
  std::vector<std::unique_ptr<v1::IdempotencyService::Stub>> stubs;
  for (unsigned i = 0; i < kThreads; ++i) {
    stubs.push_back(v1::IdempotencyService::NewStub(
        replicas_[i % replicas_.size()]->NewChannel()));
    callers.emplace_back(
        [this, i, seed, &stub = *stubs.back()] { Call(seed + i + 1, stub); });
  }
  std::mt19937 random(seed);
  int faults = 0;
  const steady_clock::time_point end = steady_clock::now() + Length();
  for (; steady_clock::now() < end; ++faults) BreakTheNetwork(random);
  stopping_ = true;
  for (std::thread& caller : callers) caller.join();
  for (const auto& replica : replicas_) RequireOk(replica->WaitUntilServing());

  std::cout << faults << " faults, left open: " << open_.claims.size()
            << " claims, " << open_.finalizes.size() << " finalizes, "
            << open_.releases.size() << " releases\n";
  Settle(Event::Kind::kFinalize, open_.finalizes);
  Settle(Event::Kind::kRelease, open_.releases);
  Settle(Event::Kind::kClaim, open_.claims);

  EXPECT_THAT(history_.Check(), IsEmpty());
  std::map<std::string, int> counts = history_.Counts();
  for (const auto& [what, count] : counts) {
    std::cout << "  " << count << " " << what << "\n";
  }
  EXPECT_EQ(counts["later than its deadline"], 0);
  EXPECT_EQ(counts["INTERNAL"], 0);
  // Else the faults met nobody.
  EXPECT_GT(counts["RESULT_RECORDED"], 20);
  EXPECT_GT(counts["Replay"], 20);
  EXPECT_GT(counts["DEADLINE_EXCEEDED"] + counts["STORE_UNAVAILABLE"] +
                counts["OUTCOME_UNKNOWN"],
            0);
}

TEST_F(RandomCutsTest, ASilentNetworkGrantsNobodyAndLaterOneOnly) {
  const v1::ClaimRequest before = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(replicas_[0]->stub(), before)), "Claimed");
  gate_->BlackHole();
  constexpr int kCallers = 16;
  const std::string key = RandomKey();
  std::vector<v1::ClaimRequest> claims;
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) claims.push_back(ClaimOf(key));
  for (std::size_t i = 0; i < claims.size(); ++i) {
    callers.emplace_back([this, &claims, i] {
      SendAndNote(replicas_[i % 2]->stub(), Event::Kind::kClaim, claims[i],
                  seconds(2))
          .status()
          .IgnoreError();
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& [what, count] : history_.Counts()) {
    EXPECT_TRUE(what == "DEADLINE_EXCEEDED" || what == "STORE_UNAVAILABLE" ||
                what == "OUTCOME_UNKNOWN")
        << what;
  }
  gate_->Open();
  for (const auto& replica : replicas_) RequireOk(replica->WaitUntilServing());
  std::multiset<std::string> decided;
  for (const v1::ClaimRequest& claim : claims) {
    decided.insert(Decided(Send(replicas_[1]->stub(), claim)));
  }
  EXPECT_EQ(decided.count("Claimed"), 1U);
  EXPECT_EQ(decided.count("InProgress"), kCallers - 1U);
  EXPECT_EQ(Decided(Send(replicas_[0]->stub(), FinalizeOf(before, 200, ""))),
            "RESULT_RECORDED");
}

}  // namespace
}  // namespace idempotency
