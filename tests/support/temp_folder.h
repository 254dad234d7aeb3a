#ifndef IDEMPOTENCY_TESTS_SUPPORT_TEMP_FOLDER_H_
#define IDEMPOTENCY_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace idempotency {

// A folder for one test. It is removed, after every PostgreSQL server whose
// data lies at most two folders deep in it was stopped, when this object is
// destroyed and also when the test process dies, by SIGKILL too: a watchdog
// process outside the test's process tree does both.
//
// The folder can be entered by every user, since PostgreSQL does not run as
// root. Thread-compatible.
class TempFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TempFolder>> Make();

  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  // Waits until the folder is gone, at most for half a minute.
  ~TempFolder();

  const std::string& path() const { return path_; }

 private:
  TempFolder(std::string path, int alive_fd, int done_fd)
      : path_(std::move(path)), alive_fd_(alive_fd), done_fd_(done_fd) {}

  const std::string path_;
  // Closed by this process or by its death: the watchdog's sign to begin.
  const int alive_fd_;
  // Reads end-of-file when the watchdog has ended.
  const int done_fd_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_TEMP_FOLDER_H_
