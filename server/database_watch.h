// Keeps an eye on the database: brings its schema up if asked to, checks that
// the server understands it, and reads the fleet's rules again and again, so
// that a change reaches every replica within seconds.
#ifndef IDEMPOTENCY_SERVER_DATABASE_WATCH_H_
#define IDEMPOTENCY_SERVER_DATABASE_WATCH_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/log.h"
#include "server/core/policies.h"
#include "server/core/store.h"

namespace idempotency {

// A step function. Not thread-safe but for IsStuck().
class DatabaseWatch {
 public:
  struct Parts {
    // Applies the migrations; null when the server is not to. Called until it
    // succeeds once.
    std::function<absl::Status()> migrate;
    // OK when the server may use the schema.
    std::function<absl::Status()> check_schema;
    // OK while the database keeps what it acknowledges, as far as that is
    // required; null when nothing is. Part of every look, since settings can
    // change.
    std::function<absl::Status()> check_durability;
    std::unique_ptr<Store> store;  // of its own
    FleetRulesCache& rules;
    const Clock& clock;
    Log& log;
    // What goes on while the database can be used, for the log.
    std::string activity = "serving";
    // Told after each step whether it can.
    std::function<void(bool)> serving;
  };

  explicit DatabaseWatch(Parts parts);

  // Looks once. Returns how long to rest before the next look.
  absl::Duration Look();

  // Has a look been under way for so long that calls can't be served? A
  // database that stands still while its machine answers keeps it waiting for
  // good. Thread-safe.
  bool IsStuck() const;

 private:
  absl::Status LookOnce();

  Parts parts_;
  bool migrated_;
  bool schema_checked_ = false;
  // When the look under way began; max: none is.
  std::atomic<SteadyTime> looking_since_ = SteadyTime::max();
  std::string last_error_;
  bool served_ = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_DATABASE_WATCH_H_
