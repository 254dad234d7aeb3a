#include "tests/fault/caller/keys.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {
namespace {

// How long each of a group's keys lasts before it is followed by another.
constexpr std::int64_t kLivesMs[] = {700,  1100, 1300, 1700,
                                     2300, 3100, 5300, 8900};
// So that not all keys of a machine end together.
constexpr std::int64_t kShiftMs = 370;
constexpr int kTries = 6;
constexpr int kAheadMax = 8;

constexpr const char* kPolicies[] = {"fault_brief", "fault_record",
                                     "fault_hold",  "fault_doubt",
                                     "fault_keep",  "fault_forever"};
// Of some keys, since a name may hold nearly anything.
constexpr const char* kOddEnding = " %/\xc3\xbc";

}  // namespace

Keys::Keys(Options options, CallsOf calls_of)
    : options_(options), calls_of_(std::move(calls_of)) {}

std::optional<Key> Keys::Pick(
    int group, std::mt19937_64& random,
    const std::function<bool(const std::string& key)>& is_done) const {
  for (int i = 0; i < kTries; ++i) {
    const auto slot = random() % static_cast<unsigned>(options_.keys_at_once);
    const std::int64_t shift =
        kShiftMs * (static_cast<std::int64_t>(slot) + 3 * group);
    const std::int64_t life = kLivesMs[slot % std::size(kLivesMs)];
    std::int64_t number = (MonotonicNow() / 1'000'000 + shift) / life;
    Key key;
    for (int ahead = 0; ahead < kAheadMax; ++ahead, ++number) {
      key.name = absl::StrCat("g", group, "-", slot, "-", number);
      if (slot == 3) key.name += kOddEnding;
      if (!is_done(key.name) || random() % 8 == 0) break;
    }
    if (calls_of_(key.name) >= options_.calls_max) continue;
    const auto policy =
        (static_cast<std::uint64_t>(number) + slot) % std::size(kPolicies);
    key.policy = kPolicies[policy];
    return key;
  }
  return std::nullopt;
}

}  // namespace idempotency::fault
