#include "tests/fault/checker/history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

namespace idempotency::fault {
namespace {

absl::Status FileError(std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, std::string(what) + " " + path);
}

// Cuts off what follows the last '\n' of the file.
bool CutTornLine(int file) {
  struct stat status {};
  if (fstat(file, &status) != 0) return false;
  off_t end = status.st_size;
  char last = '\n';
  while (end > 0) {
    if (pread(file, &last, 1, end - 1) != 1) return false;
    if (last == '\n') break;
    --end;
  }
  return end == status.st_size || ftruncate(file, end) == 0;
}

}  // namespace

std::int64_t MonotonicNow() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

absl::StatusOr<std::unique_ptr<HistoryWriter>> HistoryWriter::Open(
    const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC,
                        S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  if (file < 0) return FileError("cannot open", path);
  auto writer = std::unique_ptr<HistoryWriter>(new HistoryWriter(file));
  if (!CutTornLine(file)) return FileError("cannot mend the end of", path);
  return writer;
}

HistoryWriter::~HistoryWriter() { close(file_); }

absl::Status HistoryWriter::Append(const Event& event) {
  const std::string line = FormatEvent(event);
  const ssize_t written = write(file_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  if (written < 0) return absl::ErrnoToStatus(errno, "cannot write a history");
  return absl::DataLossError("a history's line was written in part");
}

absl::Status ReadHistory(const std::string& path,
                         absl::FunctionRef<absl::Status(Event&&)> use) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileError("cannot open", path);
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (file.eof()) return absl::OkStatus();  // torn
    absl::StatusOr<Event> event = ParseEvent(line);
    absl::Status status = event.ok() ? use(std::move(*event)) : event.status();
    if (!status.ok()) {
      return absl::InvalidArgumentError(path + ":" + std::to_string(number) +
                                        ": " + std::string(status.message()));
    }
  }
  return file.bad() ? absl::DataLossError("cannot read " + path)
                    : absl::OkStatus();
}

}  // namespace idempotency::fault
