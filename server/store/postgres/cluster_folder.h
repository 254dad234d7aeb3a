// The folder that an embedded cluster lives in, and the right to use it.
//
//   lock          held (flock) by the process that uses the folder
//   cluster/      PostgreSQL's own files
//   socket/       PostgreSQL's unix socket, when its path is short enough
//   postgres.log  what PostgreSQL and initdb say
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_CLUSTER_FOLDER_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_CLUSTER_FOLDER_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/postgres/child_process.h"

namespace idempotency {

// Not thread-safe. Gives the folder up when destroyed.
class ClusterFolder {
 public:
  // Takes the folder, which is made if it is absent. Refused, and left as it
  // is, with FAILED_PRECONDITION and what helps: a folder that another process
  // uses, and one that has other contents than a cluster made by this class's
  // callers. Started by root, the folder is given to the user that PostgreSQL
  // is to run as.
  static absl::StatusOr<std::unique_ptr<ClusterFolder>> Take(
      const std::string& path);

  ClusterFolder(const ClusterFolder&) = delete;
  ClusterFolder& operator=(const ClusterFolder&) = delete;
  ~ClusterFolder();

  const std::string& path() const { return path_; }
  std::string cluster_path() const;
  // Where a cluster is made before it is renamed to cluster_path(), so that an
  // interrupted initdb leaves nothing that looks like a cluster.
  std::string unfinished_cluster_path() const;
  std::string log_path() const;

  // Whom PostgreSQL runs as, when not as ourselves: the owner of the cluster
  // if there is one, else the user `postgres`, else `nobody`.
  const std::optional<Identity>& run_as() const { return run_as_; }

  // The major version that the cluster's files belong to, nothing if there is
  // no cluster yet.
  absl::StatusOr<std::optional<int>> ClusterMajor() const;

  // Puts the finished cluster in its place, durably.
  absl::Status AdoptFinishedCluster() const;

  // A folder for the unix socket, entered by PostgreSQL's user and root only.
  // It lies in /tmp when a socket in this folder would have too long a path or
  // one with a comma, which libpq cannot name.
  absl::StatusOr<std::string> MakeSocketFolder() const;

  // Moves a log that has grown past 10 MiB aside, over the one before it.
  void TrimLog() const;

 private:
  explicit ClusterFolder(std::string path) : path_(std::move(path)) {}

  bool HasCluster() const;
  absl::Status CheckContents() const;
  absl::Status ChooseIdentity();
  absl::Status Lock();
  absl::Status GiveAway(const std::string& path) const;

  const std::string path_;
  std::optional<Identity> run_as_;
  int lock_fd_ = -1;
};

// Removes what MakeSocketFolder made, if PostgreSQL left it empty.
void RemoveSocketFolder(const std::string& path);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_CLUSTER_FOLDER_H_
