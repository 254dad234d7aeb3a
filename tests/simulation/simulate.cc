// simulate --from=N --seeds=N [--history]: runs worlds and counts what happened
// in them. Ends with status 1 at the first seed under which a promise is
// broken, with the history of the key. --history shows that of every seed.
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
  std::cout << "broken under seed " << seed << ":\n";
  for (const std::string& violation : world.violations()) {
    std::cout << "  " << violation << "\n";
  }
}

int Simulate(std::uint64_t from, std::uint64_t seeds, bool shows_history) {
  constexpr std::chrono::seconds kProgressInterval{1};
  WorldCounts counts;
  auto next_progress = std::chrono::steady_clock::now();
  for (std::uint64_t done = 0; done < seeds; ++done) {
    if (std::chrono::steady_clock::now() >= next_progress) {
      std::cout << "progress " << done << " " << counts.operations << std::endl;
      next_progress += kProgressInterval;
    }
    const std::uint64_t seed = from + done;
    World world(seed, PlantedBug::kNone);
    world.Run();
    counts.Add(world.counts());
    if (!world.violations().empty()) {
      ShowHistory(seed);
      return 1;
    }
    if (shows_history) ShowHistory(seed);
  }
  std::cout << "progress " << seeds << " " << counts.operations << "\n";
  Print("answer", counts.answers);
  Print("event", counts.events);
  Print("fault", counts.faults);
  Print("run", {{"schedules", seeds},
                {"operations", counts.operations},
                {"steps", counts.steps},
                {"simulated seconds", counts.simulated_ms / 1000}});
  return 0;
}

int Main(int argc, char** argv) {
  std::uint64_t from = 1;
  std::uint64_t seeds = 1;
  bool shows_history = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (const auto first = NumberOf(argument, "--from")) {
      from = *first;
    } else if (const auto number = NumberOf(argument, "--seeds")) {
      seeds = *number;
    } else if (argument == "--history") {
      shows_history = true;
    } else {
      std::cerr << "usage: simulate --from=N --seeds=N [--history]\n";
      return 2;
    }
  }
  return Simulate(from, seeds, shows_history);
}

}  // namespace
}  // namespace idempotency

int main(int argc, char** argv) { return idempotency::Main(argc, argv); }
