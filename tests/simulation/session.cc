#include "tests/simulation/session.h"

#include <memory>
#include <utility>

namespace idempotency {
namespace {

// statement_timeout and the answer's margin, shorter than the server's own so
// that there are more of them.
constexpr Milliseconds kAnswerTimeout{1200};

}  // namespace

bool Session::Connect() {
  if (open_ && epoch_ == database_.epoch()) return true;
  open_ = false;
  process_.Sleep(weather_.Short(process_.scheduler().random()));
  if (process_.dead() || !database_.accepts()) return false;
  open_ = true;
  epoch_ = database_.epoch();
  return true;
}

Ending Session::Run(bool writes, StatementWork work) {
  Random& random = process_.scheduler().random();
  // A connection that has ended is noticed when it is used.
  if (open_ && epoch_ != database_.epoch()) {
    open_ = false;
    return Ending::kCut;
  }
  if (!Connect()) return Ending::kNoConnection;
  Microseconds delay = weather_.Short(random);
  Microseconds at_most = kAnswerTimeout;
  if (weather_.Strikes(random, weather_.cuts_per_mille, "connections cut")) {
    // Before the statement is there, while it runs, or after it.
    at_most = random.Between(Microseconds(0), Microseconds(3000));
    if (random.Chance(30)) {
      open_ = false;
      process_.Sleep(at_most);
      return Ending::kCut;
    }
  }
  if (weather_.Strikes(random, weather_.held_up_per_mille,
                       "statements held up")) {
    delay += random.Between(Milliseconds(20), Milliseconds(3000));
  }
  const auto reply = std::make_shared<Reply>(process_.scheduler());
  database_.Start(delay, epoch_, writes, std::move(work), reply);
  process_.WaitAt(reply->gate, at_most);
  const Ending ending =
      process_.dead() ? Ending::kCut : reply->ending.value_or(Ending::kCut);
  open_ = ending == Ending::kAnswered || ending == Ending::kLockTimeout;
  return ending;
}

}  // namespace idempotency
