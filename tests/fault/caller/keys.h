// Which keys the callers of a run work on, and when.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_KEYS_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_KEYS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>

namespace idempotency::fault {

struct Key {
  std::string name{};
  std::string policy{};  // what its callers mostly ask for
};

// A group of threads shares a few keys at a time, each for some seconds: some
// last long enough to expire and live anew. Names go by the clock, so that all
// processes of a machine share them without talking to each other.
// Thread-safe.
class Keys {
 public:
  struct Options {
    int keys_at_once = 8;
    // A key with so many calls is left alone.
    std::int64_t calls_max = 150;
  };
  using CallsOf = std::function<std::int64_t(const std::string& key)>;

  Keys(Options options, CallsOf calls_of);

  // Mostly goes on to a key that comes later where `is_done`: little happens to
  // one that is final. Nothing: all keys of the group have had their calls.
  std::optional<Key> Pick(
      int group, std::mt19937_64& random,
      const std::function<bool(const std::string& key)>& is_done) const;

 private:
  const Options options_;
  const CallsOf calls_of_;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_KEYS_H_
