// The only source of chance in a simulated world: the seed decides everything.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_RANDOM_H_
#define IDEMPOTENCY_TESTS_SIMULATION_RANDOM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace idempotency {

// SplitMix64: small, quick, and good enough to make choices with.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }
  std::size_t Below(std::size_t bound) { return Next() % bound; }
  bool Chance(unsigned percent) { return Below(100) < percent; }
  bool PerMille(unsigned of_a_thousand) { return Below(1000) < of_a_thousand; }
  // 0 <= x < 1.
  double Fraction() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  // From `least` to below `bound`.
  std::chrono::microseconds Between(std::chrono::microseconds least,
                                    std::chrono::microseconds bound) {
    return least + std::chrono::microseconds(Below(
                       static_cast<std::size_t>((bound - least).count())));
  }

 private:
  std::uint64_t state_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_RANDOM_H_
