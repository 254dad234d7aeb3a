// Statements under way, so that one whose answer does not come can be cut off.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENT_WATCH_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENT_WATCH_H_

#include <list>

#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace idempotency {

// libpq waits for an answer without a bound of its own, and PostgreSQL's
// statement_timeout ends neither the wait for a synchronous standby nor that
// for a server process that stands still. Cutting shuts the socket down: the
// waiter sees a lost connection, and nothing is cancelled at the server.
//
// Thread-safe.
class StatementWatch {
 public:
  // While it lives, the statement on `socket` may be cut.
  class Guard {
   public:
    // `watch` may be null: then nothing is watched.
    Guard(StatementWatch* watch, int socket, SteadyTime overdue_at);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    struct Entry {
      int socket;
      SteadyTime overdue_at;
    };
    friend class StatementWatch;

    StatementWatch* const watch_;
    std::list<Entry>::iterator entry_;
  };

  // Cuts every statement that is overdue; returns how many.
  int CutOverdue(SteadyTime now);
  // Cuts everything, and from now on whatever begins.
  void CutAll();

 private:
  Mutex mutex_;
  std::list<Guard::Entry> entries_ ABSL_GUARDED_BY(mutex_);
  bool cut_all_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENT_WATCH_H_
