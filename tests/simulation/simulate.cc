// simulate --from=N --seeds=N [--history] [--digests]: runs worlds and counts
// what happened in them. Ends with status 1 at the first seed under which a
// promise is broken, with the history of the key. --history shows that of every
// seed; --digests a line `digest SEED NUMBER` for each, which is the same
// whenever and wherever this program runs it.
//
// Prints a line `progress SEEDS OPERATIONS` every second, and at the end lines
// `count KIND TAB NAME TAB NUMBER`.

#include <charconv>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/world.h"

namespace idempotency {
namespace {

using Counts = std::map<std::string, std::uint64_t>;

// The number after `name` and '=', if the argument is that.
std::optional<std::uint64_t> NumberOf(std::string_view argument,
                                      std::string_view name) {
  if (!argument.starts_with(name)) return std::nullopt;
  argument.remove_prefix(name.size());
  if (!argument.starts_with('=')) return std::nullopt;
  argument.remove_prefix(1);
  std::uint64_t number = 0;
  const char* const end = argument.data() + argument.size();
  const auto [rest, error] = std::from_chars(argument.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

void Print(const char* kind, const Counts& counts) {
  for (const auto& [name, count] : counts) {
    std::cout << "count " << kind << "\t" << name << "\t" << count << "\n";
  }
}

// Runs a seed again, to tell what happened.
void ShowHistory(std::uint64_t seed) {
  World world(seed, PlantedBug::kNone);
  world.KeepHistory();
  world.Run();
  for (const std::string& line : world.History()) std::cout << line << "\n";
}

void ShowViolations(std::uint64_t seed,
                    const std::vector<std::string>& violations) {
  std::cout << "broken under seed " << seed << ":\n";
  for (const std::string& violation : violations) {
    std::cout << "  " << violation << "\n";
  }
}

struct Wish {
  std::uint64_t from = 1;
  std::uint64_t seeds = 1;
  bool histories = false;
  bool digests = false;
};

int Simulate(const Wish& wish) {
  constexpr std::chrono::seconds kProgressInterval{1};
  WorldCounts counts;
  auto next_progress = std::chrono::steady_clock::now();
  for (std::uint64_t done = 0; done < wish.seeds; ++done) {
    if (std::chrono::steady_clock::now() >= next_progress) {
      std::cout << "progress " << done << " " << counts.operations << std::endl;
      next_progress += kProgressInterval;
    }
    const std::uint64_t seed = wish.from + done;
    World world(seed, PlantedBug::kNone);
    if (wish.digests) world.KeepHistory();
    world.Run();
    counts.Add(world.counts());
    if (wish.digests) {
      std::cout << "digest " << seed << " " << world.Digest() << "\n";
    }
    const bool broken = !world.violations().empty();
    if (broken || wish.histories) ShowHistory(seed);
    if (broken) {
      ShowViolations(seed, world.violations());
      return 1;
    }
  }
  std::cout << "progress " << wish.seeds << " " << counts.operations << "\n";
  Print("answer", counts.answers);
  Print("event", counts.events);
  Print("fault", counts.faults);
  Print("run", {{"schedules", wish.seeds},
                {"operations", counts.operations},
                {"steps", counts.steps},
                {"simulated seconds", counts.simulated_ms / 1000}});
  return 0;
}

int Main(int argc, char** argv) {
  Wish wish;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (const auto first = NumberOf(argument, "--from")) {
      wish.from = *first;
    } else if (const auto number = NumberOf(argument, "--seeds")) {
      wish.seeds = *number;
    } else if (argument == "--history") {
      wish.histories = true;
    } else if (argument == "--digests") {
      wish.digests = true;
    } else {
      std::cerr
          << "usage: simulate --from=N --seeds=N [--history] [--digests]\n";
      return 2;
    }
  }
  return Simulate(wish);
}

}  // namespace
}  // namespace idempotency

int main(int argc, char** argv) { return idempotency::Main(argc, argv); }
