// The open streams of one streaming method, each kept alive by the set until
// it is done.
#ifndef IDEMPOTENCY_SERVER_RPC_STREAM_SET_H_
#define IDEMPOTENCY_SERVER_RPC_STREAM_SET_H_

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/core/mutex.h"

namespace idempotency {

// Thread-safe. Nothing of a stream runs under the set's lock.
template <typename Stream>
class StreamSet {
 public:
  enum class Admission { kAdmitted, kFull, kClosed };

  explicit StreamSet(std::size_t streams_max) : streams_max_(streams_max) {}

  // Keeps `stream` in any case. One that is not admitted is to be finished at
  // once: until it is done it counts beyond the bound.
  Admission Add(std::shared_ptr<Stream> stream) {
    MutexLock lock(mutex_);
    const bool full = streams_.size() >= streams_max_;
    const Stream* const name = stream.get();
    streams_.emplace(name, std::move(stream));
    if (closed_) return Admission::kClosed;
    return full ? Admission::kFull : Admission::kAdmitted;
  }

  // May destroy the stream.
  void Remove(const Stream* stream) {
    std::shared_ptr<Stream> last;
    MutexLock lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    last = std::move(found->second);
    streams_.erase(found);
  }

  // From now on no stream is admitted.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
  }

  std::vector<std::shared_ptr<Stream>> All() const {
    MutexLock lock(mutex_);
    std::vector<std::shared_ptr<Stream>> all;
    all.reserve(streams_.size());
    for (const auto& [name, stream] : streams_) all.push_back(stream);
    return all;
  }

 private:
  const std::size_t streams_max_;
  mutable Mutex mutex_;
  std::unordered_map<const Stream*, std::shared_ptr<Stream>> streams_
      ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_STREAM_SET_H_
