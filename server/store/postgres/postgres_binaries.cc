#include "server/store/postgres/postgres_binaries.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/store/postgres/child_process.h"

namespace idempotency {
namespace {

namespace fs = std::filesystem;

// Where Debian and its relatives keep each major version's programs.
constexpr char kPackagedVersions[] = "/usr/lib/postgresql";
constexpr std::chrono::seconds kVersionTimeout{20};

bool IsProgram(const fs::path& path) {
  std::error_code error;
  return access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path, error);
}

bool HoldsServer(const fs::path& folder) {
  return IsProgram(folder / "postgres") && IsProgram(folder / "initdb");
}

// The number that `text` begins with, or nothing.
std::optional<int> LeadingNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

// Newest first, except that `preferred` comes before all others.
std::vector<fs::path> PackagedFolders(std::optional<int> preferred) {
  std::vector<std::pair<int, fs::path>> found;
  std::error_code error;
  fs::directory_iterator entry(kPackagedVersions, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::optional<int> major =
        LeadingNumber(entry->path().filename().string());
    if (major) found.emplace_back(*major, entry->path() / "bin");
  }
  std::sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    const bool a_preferred = preferred == a.first;
    const bool b_preferred = preferred == b.first;
    if (a_preferred != b_preferred) return a_preferred;
    return a.first > b.first;
  });
  std::vector<fs::path> folders;
  for (auto& [major, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::vector<std::string> PathFolders() {
  const char* path = std::getenv("PATH");
  if (path == nullptr) return {};
  return absl::StrSplit(path, ':', absl::SkipEmpty());
}

// Standard output of a program that answers at once, or nothing.
std::optional<std::string> Ask(const fs::path& program,
                               const std::string& argument) {
  SpawnOptions options;
  options.command = {program.string(), argument};
  options.environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"};
  absl::StatusOr<ProgramResult> result =
      RunProgram(std::move(options), kVersionTimeout);
  if (!result.ok() || result->wait_status != 0) return std::nullopt;
  return std::move(result->output);
}

std::optional<fs::path> FindFolder(std::optional<int> major) {
  for (const fs::path& folder : PackagedFolders(major)) {
    if (HoldsServer(folder)) return folder;
  }
  for (const std::string& folder : PathFolders()) {
    if (HoldsServer(folder)) return folder;
  }
  for (const std::string& folder : PathFolders()) {
    const fs::path pg_config = fs::path(folder) / "pg_config";
    if (!IsProgram(pg_config)) continue;
    std::optional<std::string> answer = Ask(pg_config, "--bindir");
    if (!answer) continue;
    const fs::path named = answer->substr(0, answer->find('\n'));
    if (HoldsServer(named)) return named;
  }
  return std::nullopt;
}

// From "postgres (PostgreSQL) 15.6 (...)".
std::optional<int> MajorVersion(const fs::path& folder) {
  const std::optional<std::string> answer =
      Ask(folder / "postgres", "--version");
  if (!answer) return std::nullopt;
  constexpr std::string_view kBefore = "(PostgreSQL) ";
  const std::size_t at = answer->find(kBefore);
  if (at == std::string::npos) return std::nullopt;
  return LeadingNumber(std::string_view(*answer).substr(at + kBefore.size()));
}

}  // namespace

absl::StatusOr<PostgresBinaries> FindPostgresBinaries(
    const std::string& folder, std::optional<int> major) {
  std::optional<fs::path> found;
  if (!folder.empty()) {
    if (!HoldsServer(folder)) {
      return absl::NotFoundError(absl::StrCat(
          folder, " does not hold PostgreSQL's programs postgres and initdb"));
    }
    std::error_code error;
    found = fs::absolute(folder, error);
  } else {
    found = FindFolder(major);
  }
  if (!found) {
    return absl::NotFoundError(absl::StrCat(
        "PostgreSQL's server programs (postgres, initdb) are neither in ",
        kPackagedVersions,
        "/*/bin nor in PATH: install the package `postgresql`, or name a "
        "database with --database"));
  }
  const std::optional<int> version = MajorVersion(*found);
  if (!version) {
    return absl::FailedPreconditionError(absl::StrCat(
        (*found / "postgres").string(), " does not tell its version"));
  }
  return PostgresBinaries{found->string(), *version};
}

}  // namespace idempotency
