# Running a private PostgreSQL from the installed programs. Apart from the store
# so that the tests' support can use it without libpqxx.
add_library(idempotency_embedded STATIC
  child_process.cc
  cluster_folder.cc
  embedded_cluster.cc
  postgres_binaries.cc)
target_link_libraries(idempotency_embedded
  PUBLIC idempotency_root absl::status absl::statusor
  PRIVATE absl::strings PkgConfig::PQ Threads::Threads)
