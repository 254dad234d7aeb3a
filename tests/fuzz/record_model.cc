#include "tests/fuzz/record_model.h"

#include <algorithm>
#include <cstdio>

#include "absl/status/statusor.h"
#include "server/core/transitions.h"
#include "server/rpc/conversion.h"
#include "server/rpc/status.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/record_rules.h"

namespace idempotency::fuzz {
namespace {

// Orders that are tried before it counts as unexplained.
constexpr int kStepsMax = 20'000;

Told ErrorOf(const absl::Status& status) {
  return {.error = ToErrorReply(status, kRandom).details};
}

bool IsSame(const Told& one, const Told& other) {
  return one.message == other.message &&
         one.error.SerializeAsString() == other.error.SerializeAsString();
}

bool IsSameAttempt(const InProgress& seen, const v1::InProgress& told) {
  v1::ClaimResponse written;
  Require(ToProto(seen, {}, written).ok(), "InProgress can be told");
  const v1::InProgress& wanted = written.in_progress();
  return wanted.lease_expires_at().SerializeAsString() ==
             told.lease_expires_at().SerializeAsString() &&
         wanted.attempt() == told.attempt() && wanted.owner() == told.owner();
}

// Whoever has waited may be told what was seen at the last look.
bool WasSeen(const Sent& sent) {
  v1::ClaimResponse told;
  return !sent.seen.empty() && told.ParseFromString(sent.told->message) &&
         told.has_in_progress() &&
         std::any_of(sent.seen.begin(), sent.seen.end(),
                     [&](const InProgress& seen) {
                       return IsSameAttempt(seen, told.in_progress());
                     });
}

std::string TextOf(const Told& told, const Sent& sent) {
  if (told.error.code() != 0) return told.error.ShortDebugString();
  const auto parsed = [&](auto message) {
    message.ParseFromString(told.message);
    return message.ShortDebugString();
  };
  switch (sent.command.index()) {
    case 0:
      return parsed(v1::ClaimResponse());
    case 1:
      return parsed(v1::FinalizeResponse());
    case 2:
      return parsed(v1::LookupResponse());
    default:
      return parsed(v1::ReleaseResponse());
  }
}

}  // namespace

struct RecordModel::Search {
  const std::optional<Record>& stored;
  absl::Time now;
  int steps_left = kStepsMax;
  // The record at first, and after each write.
  std::vector<std::optional<Record>> states;
  std::vector<std::pair<Uuid, std::string>> evidence;
};

RecordModel::Step RecordModel::Decide(const std::optional<Record>& record,
                                      const Sent& sent, absl::Time now) const {
  const Record* const before = record.has_value() ? &*record : nullptr;
  Step step;
  const auto take = [&](auto decision, auto message, auto write) {
    step.write = std::move(decision.write);
    step.evidence = decision.evidence;
    if (step.write.has_value()) CheckWrite(before, *step.write, now);
    if (decision.answer.ok()) {
      write(*std::move(decision.answer), message);
      step.told.message = message.SerializeAsString();
    } else {
      step.told = ErrorOf(decision.answer.status());
    }
  };
  const AnswerContext context{
      .id = id_,
      .downstream_namespace = rules_.downstream_namespace,
      .random = kRandom};
  const auto with_context = [&](auto outcome, auto& message) {
    Require(ToProto(std::move(outcome), context, message).ok(),
            "every outcome can be told");
  };
  const auto without = [](const auto& outcome, auto& message) {
    ToProto(outcome, message);
  };
  if (const auto* claim = std::get_if<ClaimCommand>(&sent.command)) {
    ClaimCommand command = *claim;
    command.policy = ResolvePolicy(rules_, id_.scope, command.policy_name);
    Decision<ClaimOutcome> decision = DecideClaim(before, command, now);
    CheckClaimed(before, command, decision.answer, now);
    if (decision.answer.ok()) {
      if (auto* other = std::get_if<InProgress>(&*decision.answer)) {
        step.in_progress = *other;
      }
    }
    take(std::move(decision), v1::ClaimResponse(), with_context);
  } else if (const auto* finalize =
                 std::get_if<FinalizeCommand>(&sent.command)) {
    take(DecideFinalize(before, *finalize, now), v1::FinalizeResponse(),
         without);
  } else if (const auto* release = std::get_if<ReleaseCommand>(&sent.command)) {
    take(DecideRelease(before, *release, now), v1::ReleaseResponse(), without);
  } else {
    absl::StatusOr<LookupOutcome> found = DecideLookup(before, now);
    // How much evidence there is, is for the database to say.
    v1::LookupResponse told;
    if (found.ok() && sent.told.has_value() &&
        told.ParseFromString(sent.told->message)) {
      found->conflict_count = told.record().conflict_count();
    }
    take(Decision<LookupOutcome>{.answer = std::move(found)},
         v1::LookupResponse(), with_context);
  }
  return step;
}

bool RecordModel::Find(Search& search, std::vector<const Sent*> open,
                       std::vector<const Sent*> unseen) const {
  const std::optional<Record> record = search.states.back();
  const std::size_t evidence_before = search.evidence.size();
  // Those that leave the record alone come first, since nothing hangs on them.
  std::erase_if(open, [&](const Sent* sent) {
    if (WasSeen(*sent)) return true;
    const Step step = Decide(record, *sent, search.now);
    if (step.write.has_value() || !IsSame(step.told, *sent->told)) return false;
    if (step.evidence) {
      const auto& refused = std::get<FinalizeCommand>(sent->command);
      search.evidence.emplace_back(refused.claim_token,
                                   refused.response_digest);
    }
    return true;
  });
  if (open.empty() && record == search.stored) return true;
  const auto go_on = [&](const std::vector<const Sent*>& from, std::size_t at,
                         bool answered) {
    Step step = Decide(record, *from[at], search.now);
    if (!step.write.has_value() || search.steps_left-- <= 0) return false;
    if (answered && !IsSame(step.told, *from[at]->told)) return false;
    std::vector<const Sent*> rest = from;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(at));
    search.states.push_back(std::move(step.write));
    if (answered ? Find(search, std::move(rest), unseen)
                 : Find(search, open, std::move(rest))) {
      return true;
    }
    search.states.pop_back();
    return false;
  };
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (go_on(open, i, true)) return true;
  }
  for (std::size_t i = 0; i < unseen.size(); ++i) {
    if (go_on(unseen, i, false)) return true;
  }
  search.evidence.resize(evidence_before);
  return false;
}

void RecordModel::Explain(const Happened& happened,
                          const std::optional<Record>& stored, absl::Time now) {
  Search search{.stored = stored, .now = now, .states = {record_}};
  if (!Find(search, happened.answered, happened.unseen)) {
    Fail(happened, stored, now);
  }
  for (Sent* sent : happened.waiting) {
    for (const std::optional<Record>& state : search.states) {
      std::optional<InProgress> seen = Decide(state, *sent, now).in_progress;
      if (seen.has_value()) sent->seen.push_back(*std::move(seen));
    }
  }
  record_ = stored;
  evidence_.insert(search.evidence.begin(), search.evidence.end());
}

void RecordModel::Fail(const Happened& happened,
                       const std::optional<Record>& stored,
                       absl::Time now) const {
  std::fprintf(stderr, "key %s, %zu calls that may have been carried out\n",
               id_.key.c_str(), happened.unseen.size());
  for (const Sent* sent : happened.answered) {
    std::fprintf(stderr, "told: %s\n  at first it would be: %s\n",
                 TextOf(*sent->told, *sent).c_str(),
                 TextOf(Decide(record_, *sent, now).told, *sent).c_str());
  }
  const auto version_of = [](const std::optional<Record>& record) {
    return record.has_value() ? static_cast<long long>(record->version) : -1;
  };
  std::fprintf(stderr, "version at first %lld, now %lld\n", version_of(record_),
               version_of(stored));
  Require(false, "core/transitions explains every answer and the record");
  std::abort();
}

void RecordModel::Sweep(const std::optional<Record>& stored, absl::Time now) {
  if (stored == record_) return;
  Require(record_.has_value(), "a sweep makes no record");
  if (stored.has_value()) {
    Record parked = *record_;
    parked.expires_at = absl::InfiniteFuture();
    parked.version += 1;
    Require(parked == *stored && record_->held &&
                record_->state == RecordState::kUnfinished,
            "a sweep changes no record but one that is held, to park it");
  } else {
    Require(IsAbsent(*record_, now), "nothing is swept that has not expired");
  }
  record_ = stored;
}

}  // namespace idempotency::fuzz
