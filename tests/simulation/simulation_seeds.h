// Which seeds a simulation runs, and how many it takes to notice a planted bug.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_SIMULATION_SEEDS_H_
#define IDEMPOTENCY_TESTS_SIMULATION_SIMULATION_SEEDS_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <set>
#include <string>

namespace idempotency {

inline std::optional<std::uint64_t> FromEnvironment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

struct SeedRange {
  std::uint64_t first;
  std::uint64_t last;
  bool repeats_one;
};

// IDEMPOTENCY_SEED is one to repeat, IDEMPOTENCY_SEEDS how many from 1 on.
inline SeedRange SeedsToRun(std::uint64_t how_many) {
  const auto one = FromEnvironment("IDEMPOTENCY_SEED");
  return {.first = one.value_or(1),
          .last = one.value_or(
              FromEnvironment("IDEMPOTENCY_SEEDS").value_or(how_many)),
          .repeats_one = one.has_value()};
}

inline bool AnyOf(const std::set<std::string>& wanted,
                  const std::set<std::string>& found) {
  for (const std::string& one : wanted) {
    if (found.contains(one)) return true;
  }
  return false;
}

// The promises broken by the seeds from `first` on, until one of `promises` is
// among them or `most` were tried. `run(seed)` gives a world's violations, each
// of which begins with its promise and a colon.
template <typename Run>
std::set<std::string> BrokenPromises(const std::set<std::string>& promises,
                                     std::uint64_t first, std::uint64_t most,
                                     const Run& run) {
  std::set<std::string> broken;
  std::uint64_t tried = 0;
  while (tried < most && !AnyOf(promises, broken)) {
    for (const std::string& violation : run(first + tried++)) {
      broken.insert(violation.substr(0, violation.find(':')));
    }
  }
  std::cout << tried << " seeds\n";
  return broken;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_SIMULATION_SEEDS_H_
