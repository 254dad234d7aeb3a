#include "server/store/postgres/statement_watch.h"

#include <sys/socket.h>

namespace idempotency {
namespace {

void Cut(int socket) { shutdown(socket, SHUT_RDWR); }

}  // namespace

StatementWatch::Guard::Guard(StatementWatch* watch, int socket,
                             SteadyTime overdue_at)
    : watch_(watch) {
  if (watch_ == nullptr) return;
  MutexLock lock(watch_->mutex_);
  entry_ = watch_->entries_.insert(
      watch_->entries_.end(), {.socket = socket, .overdue_at = overdue_at});
  if (watch_->cut_all_) Cut(socket);
}

// Under the lock, so that no socket is shut down whose number has been given
// to another connection.
StatementWatch::Guard::~Guard() {
  if (watch_ == nullptr) return;
  MutexLock lock(watch_->mutex_);
  watch_->entries_.erase(entry_);
}

int StatementWatch::CutOverdue(SteadyTime now) {
  MutexLock lock(mutex_);
  int cut = 0;
  for (Guard::Entry& entry : entries_) {
    if (entry.overdue_at > now) continue;
    Cut(entry.socket);
    entry.overdue_at = SteadyTime::max();
    ++cut;
  }
  return cut;
}

void StatementWatch::CutAll() {
  MutexLock lock(mutex_);
  cut_all_ = true;
  for (const Guard::Entry& entry : entries_) Cut(entry.socket);
}

}  // namespace idempotency
