// fault-caller --servers=HOST:PORT,... --scope=SCOPE --history=FILE
//              --wallet=SOCKET --name=NAME [--threads=N] [--mix=NAME] ...
//
// Writes progress to standard output, one line a second: totals since the
// start of calls and of answers by what they said. Ends as stop_signal.h says,
// with the calls under way finished and status 0. Status 2: it could not begin.
//
// With --left_keys=FILE it asks for these keys instead (left_keys.h), and ends
// when it has done so.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/ascii.h"
#include "tests/fault/caller/attempt.h"
#include "tests/fault/caller/http_shop.h"
#include "tests/fault/caller/left_keys.h"
#include "tests/fault/caller/once.h"
#include "tests/fault/caller/stop_signal.h"
#include "tests/fault/caller/world.h"

ABSL_FLAG(std::vector<std::string>, servers, {}, "IP:PORT of each");
ABSL_FLAG(std::string, scope, "fault", "of all keys");
ABSL_FLAG(std::string, history, "",
          "file to write, which must be new or empty");
ABSL_FLAG(std::string, wallet, "", "unix socket of a fault-wallet");
ABSL_FLAG(std::string, name, "c1",
          "of this process: begins the name of each operation");
ABSL_FLAG(int, threads, 20, "callers");
ABSL_FLAG(int, threads_per_key, 5,
          "callers of this process that share keys; with those of others ten "
          "at most");
ABSL_FLAG(std::int64_t, calls_per_key, 120,
          "calls of this process after which a key is left alone");
ABSL_FLAG(std::int64_t, rate, 1000, "calls a second, at most");
ABSL_FLAG(std::string, mix, "all", "all, claims, waits, renewals or hot");
ABSL_FLAG(std::uint64_t, seed, 1, "of the choices");
ABSL_FLAG(std::string, left_keys, "",
          "file of keys that were left unfinished: asks for them, and ends");

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;

// Of the operations.
constexpr int kLateDuplicatesPercent = 6;
constexpr int kNothingPercent = 1;
constexpr milliseconds kPauseWithoutKeys{20};
// A lease that runs on for longer is not waited for.
constexpr milliseconds kLeftLeaseMax{1'200};

// Whether an HTTP header can hold it.
bool IsPlain(const std::string& key) {
  return std::all_of(key.begin(), key.end(),
                     [](char c) { return absl::ascii_isprint(c); });
}

bool IsFresh(const std::string& path) {
  std::error_code none;
  const auto bytes = std::filesystem::file_size(path, none);
  return none || bytes == 0;
}

void Work(World& world, HttpShop& shop, int thread, int group) {
  Self self(world, static_cast<std::uint64_t>(thread), group);
  while (!self.stopped()) {
    self.Pace();
    const auto key = self.PickKey();
    if (!key.has_value()) {
      self.SleepFor(kPauseWithoutKeys);
    } else if (self.Chance(kLateDuplicatesPercent)) {
      self.SendARememberedOne();
    } else if (self.Chance(kNothingPercent)) {
      Attempt(self, *key).AskAboutNothing();
    } else if (self.Chance(world.mix.once)) {
      RunOneOnce(self, *key);
    } else if (self.Chance(world.mix.http) && IsPlain(key->name)) {
      shop.Request(self, *key);
    } else {
      Attempt(self, *key).Run();
    }
  }
}

void PrintProgress(const Recorder& recorder) {
  std::printf("progress ops=%lld", static_cast<long long>(recorder.calls()));
  for (const auto& [word, count] : recorder.answers()) {
    std::printf(" %s=%lld", word.c_str(), static_cast<long long>(count));
  }
  std::puts("");
  std::fflush(stdout);
}

int Fail(const std::string& why) {
  std::fprintf(stderr, "fault-caller: %s\n", why.c_str());
  return 2;
}

int AskForLeftKeysIn(const std::string& path, const Routes& routes) {
  auto keys = ReadLeftKeys(path);
  if (!keys.ok()) return Fail(keys.status().ToString());
  AskForLeftKeys(routes, *std::move(keys), kLeftLeaseMax);
  return 0;
}

int Run() {
  StopSignal stop;
  const std::vector<std::string> servers = absl::GetFlag(FLAGS_servers);
  const auto mix = MixOf(absl::GetFlag(FLAGS_mix));
  if (servers.empty()) return Fail("--servers is missing");
  if (!mix.has_value()) return Fail("there is no such mix");
  // A second caller of the same name would call its operations the same.
  if (!IsFresh(absl::GetFlag(FLAGS_history))) {
    return Fail("--history holds something");
  }
  auto history = HistoryWriter::Open(absl::GetFlag(FLAGS_history));
  if (!history.ok()) return Fail(history.status().ToString());

  Recorder recorder(**history, absl::GetFlag(FLAGS_name));
  Routes routes = MakeRoutes(recorder, servers);
  const std::string left_keys = absl::GetFlag(FLAGS_left_keys);
  if (!left_keys.empty()) return AskForLeftKeysIn(left_keys, routes);
  Keys keys({.keys_at_once = mix->keys_at_once,
             .calls_max = absl::GetFlag(FLAGS_calls_per_key)},
            [&](const std::string& key) { return recorder.CallsOf(key); });
  auto onces = MakeOnces(recorder, servers);
  Stopping stopping;
  World world{.scope = absl::GetFlag(FLAGS_scope),
              .caller = absl::GetFlag(FLAGS_name),
              .wallet_socket = absl::GetFlag(FLAGS_wallet),
              .seed = absl::GetFlag(FLAGS_seed),
              .calls_per_second = absl::GetFlag(FLAGS_rate),
              .mix = *mix,
              .recorder = recorder,
              .keys = keys,
              .routes = routes,
              .onces = onces,
              .stopping = stopping};
  auto shop = HttpShop::Start(world);
  if (!shop.ok()) return Fail(shop.status().ToString());
  std::vector<std::thread> threads;
  for (int i = 0; i < absl::GetFlag(FLAGS_threads); ++i) {
    const int group = i / absl::GetFlag(FLAGS_threads_per_key);
    threads.emplace_back([&, i, group] { Work(world, **shop, i, group); });
  }
  while (!stop.WaitFor(std::chrono::seconds(1))) PrintProgress(recorder);
  stopping.Stop();
  for (std::thread& thread : threads) thread.join();
  shop->reset();
  onces.clear();
  PrintProgress(recorder);
  return 0;
}

}  // namespace
}  // namespace idempotency::fault

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Calls of every kind at the servers of a fault run, written down.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::fault::Run();
}
