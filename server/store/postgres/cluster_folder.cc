#include "server/store/postgres/cluster_folder.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

namespace fs = std::filesystem;

constexpr char kLock[] = "lock";
constexpr char kCluster[] = "cluster";
constexpr char kUnfinishedCluster[] = "cluster.new";
constexpr char kSocket[] = "socket";
constexpr char kLog[] = "postgres.log";
constexpr char kOldLog[] = "postgres.log.1";
// The root of a freshly made file system holds this.
constexpr char kLostAndFound[] = "lost+found";

constexpr std::uintmax_t kLogBytesMax = 10 * 1024 * 1024;
// sockaddr_un::sun_path without its closing NUL.
constexpr std::size_t kSocketPathMax = 107;
constexpr char kLongestSocketName[] = "/.s.PGSQL.65535";
constexpr char kPrivateSocketFolder[] = "/tmp/idempotency-XXXXXX";

absl::Status SystemError(const std::string& what, int error) {
  return absl::ErrnoToStatus(error, what);
}

std::optional<Identity> FindUser(const char* name) {
  std::vector<char> buffer(16 * 1024);
  passwd entry;
  passwd* found = nullptr;
  if (getpwnam_r(name, &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr || entry.pw_uid == 0) {
    return std::nullopt;
  }
  return Identity{entry.pw_uid, entry.pw_gid};
}

bool IsOurs(const std::string& name) {
  constexpr std::array<std::string_view, 7> kNames = {
      kLock, kCluster, kUnfinishedCluster, kSocket,
      kLog,  kOldLog,  kLostAndFound};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

absl::Status Sync(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(absl::StrCat("cannot open ", folder), errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  if (error == 0) return absl::OkStatus();
  return SystemError(absl::StrCat("cannot sync ", folder), error);
}

// Makes the folder, with private access, and its parents, with usual access.
absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return absl::OkStatus();
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) {
    return SystemError(
        absl::StrCat("cannot make ", fs::path(path).parent_path().string()),
        error.value());
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError(absl::StrCat("cannot make the folder ", path), errno);
  }
  if (fs::is_directory(path, error)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is not a folder: choose another one with --data_dir"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterFolder>> ClusterFolder::Take(
    const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError("no data folder (--data_dir) is given");
  }
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (!error) absolute = fs::weakly_canonical(absolute, error);
  if (error) {
    return SystemError(absl::StrCat("cannot resolve ", path), error.value());
  }
  // "folder/" has an empty last component.
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  std::unique_ptr<ClusterFolder> folder(new ClusterFolder(absolute.string()));
  if (absl::Status s = MakeFolder(folder->path_); !s.ok()) return s;
  // Before anything is written into a folder that may be somebody else's, and
  // again under the lock.
  if (absl::Status s = folder->CheckContents(); !s.ok()) return s;
  if (absl::Status s = folder->ChooseIdentity(); !s.ok()) return s;
  if (absl::Status s = folder->Lock(); !s.ok()) return s;
  if (absl::Status s = folder->CheckContents(); !s.ok()) return s;
  if (absl::Status s = folder->ChooseIdentity(); !s.ok()) return s;
  if (absl::Status s = folder->GiveAway(folder->path_); !s.ok()) return s;
  return folder;
}

ClusterFolder::~ClusterFolder() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

std::string ClusterFolder::cluster_path() const {
  return absl::StrCat(path_, "/", kCluster);
}

std::string ClusterFolder::unfinished_cluster_path() const {
  return absl::StrCat(path_, "/", kUnfinishedCluster);
}

std::string ClusterFolder::log_path() const {
  return absl::StrCat(path_, "/", kLog);
}

bool ClusterFolder::HasCluster() const {
  std::error_code error;
  return fs::exists(cluster_path(), error);
}

absl::Status ClusterFolder::CheckContents() const {
  std::error_code error;
  fs::directory_iterator entries(path_, error);
  if (error) {
    return SystemError(
        absl::StrCat("cannot read the folder ", path_,
                     " (start as its owner, or choose another one with "
                     "--data_dir)"),
        error.value());
  }
  if (HasCluster()) return absl::OkStatus();
  for (; entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (IsOurs(name)) continue;
    std::error_code absent;
    if (fs::exists(fs::path(path_) / "PG_VERSION", absent)) {
      return absl::FailedPreconditionError(absl::StrCat(
          path_,
          " is the data folder of a PostgreSQL that this server did not make: "
          "start that PostgreSQL and name it with --database, or choose an "
          "empty folder with --data_dir"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " is not empty (it holds ", name,
        ") and holds no cluster of this server: choose an empty folder with "
        "--data_dir"));
  }
  if (!error) return absl::OkStatus();
  return SystemError(absl::StrCat("cannot read the folder ", path_),
                     error.value());
}

absl::Status ClusterFolder::ChooseIdentity() {
  if (geteuid() != 0) return absl::OkStatus();
  struct stat cluster;
  if (lstat(cluster_path().c_str(), &cluster) == 0) {
    if (!S_ISDIR(cluster.st_mode) || cluster.st_uid == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          cluster_path(),
          " must be a folder that belongs to an unprivileged user, as whom "
          "PostgreSQL runs: chown it, or choose another --data_dir"));
    }
    run_as_ = Identity{cluster.st_uid, cluster.st_gid};
    return absl::OkStatus();
  }
  run_as_ = FindUser("postgres");
  if (!run_as_) run_as_ = FindUser("nobody");
  if (run_as_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "PostgreSQL does not run as root, and there is neither a user "
      "`postgres` nor `nobody`: start as another user");
}

absl::Status ClusterFolder::Lock() {
  if (lock_fd_ >= 0) return absl::OkStatus();
  const std::string file = absl::StrCat(path_, "/", kLock);
  lock_fd_ =
      open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) {
    const int error = errno;
    return SystemError(
        absl::StrCat("cannot open ", file,
                     " (start as the folder's owner, or choose another one "
                     "with --data_dir)"),
        error);
  }
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return SystemError(absl::StrCat("cannot lock ", file), errno);
    }
    char holder[32] = {};
    const ssize_t got = pread(lock_fd_, holder, sizeof(holder) - 1, 0);
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " is in use by another running server (process ",
        got > 0 ? holder : "unknown",
        "): stop that one, or choose another folder with --data_dir; several "
        "servers share one database with --database"));
  }
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(lock_fd_, 0) != 0 ||
      pwrite(lock_fd_, pid.data(), pid.size(), 0) < 0) {
    return SystemError(absl::StrCat("cannot write ", file), errno);
  }
  return GiveAway(file);
}

absl::Status ClusterFolder::GiveAway(const std::string& path) const {
  if (!run_as_) return absl::OkStatus();
  if (lchown(path.c_str(), run_as_->user, run_as_->group) == 0) {
    return absl::OkStatus();
  }
  return SystemError(
      absl::StrCat("cannot give ", path, " to user ", run_as_->user), errno);
}

absl::StatusOr<std::optional<int>> ClusterFolder::ClusterMajor() const {
  if (!HasCluster()) return std::nullopt;
  std::ifstream file(cluster_path() + "/PG_VERSION");
  int major = 0;
  if (file >> major && major > 0) return major;
  return absl::FailedPreconditionError(absl::StrCat(
      cluster_path(),
      " is damaged (it has no readable PG_VERSION): restore it, or move it "
      "away to begin with an empty database"));
}

absl::Status ClusterFolder::AdoptFinishedCluster() const {
  if (std::rename(unfinished_cluster_path().c_str(), cluster_path().c_str()) !=
      0) {
    return SystemError(absl::StrCat("cannot make ", cluster_path()), errno);
  }
  return Sync(path_);
}

absl::StatusOr<std::string> ClusterFolder::MakeSocketFolder() const {
  std::string folder = absl::StrCat(path_, "/", kSocket);
  // libpq takes a comma for the end of a host's name.
  if (folder.size() + sizeof(kLongestSocketName) - 1 <= kSocketPathMax &&
      folder.find(',') == std::string::npos) {
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return SystemError(absl::StrCat("cannot make ", folder), errno);
    }
  } else {
    folder = kPrivateSocketFolder;
    if (mkdtemp(folder.data()) == nullptr) {
      return SystemError(absl::StrCat("cannot make ", folder), errno);
    }
  }
  if (absl::Status s = GiveAway(folder); !s.ok()) return s;
  return folder;
}

void ClusterFolder::TrimLog() const {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(log_path(), error);
  if (error || size < kLogBytesMax) return;
  fs::rename(log_path(), fs::path(path_) / kOldLog, error);
}

void RemoveSocketFolder(const std::string& path) { rmdir(path.c_str()); }

}  // namespace idempotency
