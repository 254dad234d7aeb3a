// Input, apart by U+001E: arguments of the server's command line, and settings
// of its environment, which begin with IDEMPOTENCY_.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/config.h"
#include "server/core/limits.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;

constexpr std::size_t kPartsMax = 30;
constexpr char kPrefix[] = "IDEMPOTENCY_";

using Settings = std::vector<std::string>;  // NAME=value

// What a server that is started with them has for its configuration.
absl::StatusOr<Config> ReadWith(const Settings& environment,
                                std::vector<std::string> arguments) {
  const absl::FlagSaver flags;
  std::vector<std::string> names;
  for (const std::string& setting : environment) {
    const std::size_t equals = setting.find('=');
    names.push_back(setting.substr(0, equals));
    setenv(names.back().c_str(), setting.c_str() + equals + 1, 1);
  }
  std::string program = "idempotency-server";
  std::vector<char*> argv = {program.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  absl::StatusOr<Config> config =
      ReadConfig(static_cast<int>(argv.size()), argv.data());
  for (const std::string& name : names) unsetenv(name.c_str());
  return config;
}

// Prints the manual and ends the process, or makes it read any file there is.
bool IsLeftOut(std::string_view part) {
  return part == "--help" || part == "-help" || part == "-h" ||
         (absl::AsciiStrToLower(std::string(part)).find("tls_") !=
              std::string::npos &&
          part.find('/') != part.npos);
}

void CheckConfig(const Config& config) {
  Require(config.lanes >= 1 && config.lanes <= 64, "1 to 64 lanes");
  Require(config.queue_items_max >= 1, "something can be queued");
  Require(config.body_bytes_max <= limits::kBodyBytesMax,
          "no longer body is kept than a message holds");
  Require(config.reply_bytes_max >= limits::kReplyBytesMaxLeast,
          "there is memory for answers");
  Require(
      config.reaper_batch >= 1 && config.reaper_pause > absl::ZeroDuration(),
      "the reaper gets on, and rests");
  Require(config.deadline_max.count() >= 100, "calls have some time");
  for (const std::chrono::milliseconds time :
       {config.queue_wait_max, config.store_patience, config.drain_delay,
        config.drain_timeout, config.max_connection_age}) {
    Require(time.count() >= 0, "no time is negative");
  }
  Require(!config.downstream_namespace.has_value() ||
              !config.downstream_namespace->is_nil(),
          "a namespace is not nil");
  Require(!config.data_dir.empty(), "the private database has a folder");
  Require(!config.embedded() || (config.migrate && !config.sweep_only),
          "a private database is migrated, and served");
  if (config.sweep_only) return;
  Require(
      IsLoopback(config.listen) || config.allow_plaintext || config.tls.given(),
      "nothing is open to others by mistake");
  Require(IsLoopback(config.listen) || !config.embedded(),
          "a private database is for this machine");
  Require(config.tls.tls_certificate.empty() == config.tls.tls_key.empty(),
          "a certificate has a key");
}

std::string TextOf(const Config& config) {
  return absl::StrCat(
      config.listen, "\n", config.admin_listen, "\n", config.database, "\n",
      config.data_dir, "\n", config.migrate, config.sweep_only,
      config.database_pooled, config.database_citus, config.allow_plaintext,
      config.reflection, "\n", config.lanes, " ", config.queue_items_max, " ",
      config.queue_wait_max.count(), " ", config.body_bytes_max, " ",
      config.replay_cache_bytes, " ", config.reply_bytes_max, " ",
      config.deadline_max.count(), " ", config.store_patience.count(), " ",
      config.reaper_batch, " ", absl::FormatDuration(config.reaper_pause), " ",
      absl::FormatDuration(config.conflict_retention), " ",
      config.max_connection_age.count(), " ", config.drain_delay.count(), " ",
      config.drain_timeout.count(), "\n", config.tls.tls_client_ca);
}

void FuzzConfig(std::string_view input) {
  Settings environment;
  std::vector<std::string> arguments;
  for (const std::string_view part : fuzz::Parts(input, kPartsMax)) {
    if (part.find('\0') != part.npos || IsLeftOut(part)) return;
    const bool is_setting =
        part.starts_with(kPrefix) && part.find('=') != part.npos;
    (is_setting ? environment : arguments).emplace_back(part);
  }
  const absl::StatusOr<Config> config = ReadWith(environment, arguments);
  if (!config.ok()) {
    return Require(absl::IsInvalidArgument(config.status()) &&
                       !config.status().message().empty(),
                   "a refusal is INVALID_ARGUMENT and says why");
  }
  CheckConfig(*config);

  for (const std::string& argument : arguments) {
    const std::size_t equals = argument.find('=');
    // Its value stands by itself.
    if (equals == argument.npos) return;
    environment.push_back(absl::StrCat(
        kPrefix, absl::AsciiStrToUpper(argument.substr(2, equals - 2)),
        argument.substr(equals)));
  }
  const absl::StatusOr<Config> same = ReadWith(environment, {});
  Require(same.ok() && TextOf(*same) == TextOf(*config),
          "a setting means the same in the environment");
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::FuzzConfig(idempotency::fuzz::Text(data, size));
  return 0;
}
