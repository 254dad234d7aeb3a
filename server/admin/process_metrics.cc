#include "server/admin/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "server/admin/families.h"

namespace idempotency {
namespace {

using prometheus::MetricType;

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_usec) / 1e6;
}

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

// Field `number` of /proc/self/stat, counted from 1 as in proc(5); the third
// and later ones.
std::optional<double> StatField(int number) {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field, the program's name, may hold anything.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 2; i < number; ++i) fields >> field;
  if (!fields) return std::nullopt;
  return std::stod(field);
}

std::optional<double> BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return std::nullopt;
}

std::optional<double> StartTime() {
  const std::optional<double> boot = BootTime();
  const std::optional<double> ticks = StatField(22);
  if (!boot.has_value() || !ticks.has_value()) return std::nullopt;
  return *boot + *ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::optional<double> ResidentBytes() {
  const std::optional<double> pages = StatField(24);
  if (!pages.has_value()) return std::nullopt;
  return *pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::optional<double> OpenFiles() {
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return std::nullopt;
  double count = 0;
  for (; files != std::filesystem::directory_iterator() && !error;
       files.increment(error)) {
    ++count;
  }
  return count - 1;  // without the one that this listing has open
}

std::optional<double> OpenFilesMax() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return static_cast<double>(limit.rlim_cur);
}

void AddGaugeFamily(std::string name, std::string help,
                    std::optional<double> value,
                    std::vector<prometheus::MetricFamily>& families) {
  if (!value.has_value()) return;
  FamilyBuilder family(std::move(name), std::move(help), MetricType::Gauge);
  family.AddGauge({}, *value);
  families.push_back(std::move(family).Finish());
}

}  // namespace

std::vector<prometheus::MetricFamily> CollectProcessMetrics() {
  std::vector<prometheus::MetricFamily> families;
  FamilyBuilder processor("process_cpu_seconds_total",
                          "Total user and system CPU time spent in seconds.",
                          MetricType::Counter);
  processor.AddCounter({}, ProcessorSeconds());
  families.push_back(std::move(processor).Finish());
  AddGaugeFamily("process_resident_memory_bytes",
                 "Resident memory size in bytes.", ResidentBytes(), families);
  AddGaugeFamily("process_virtual_memory_bytes",
                 "Virtual memory size in bytes.", StatField(23), families);
  AddGaugeFamily("process_open_fds", "Number of open file descriptors.",
                 OpenFiles(), families);
  AddGaugeFamily("process_max_fds", "Maximum number of open file descriptors.",
                 OpenFilesMax(), families);
  AddGaugeFamily("process_start_time_seconds",
                 "Start time of the process since unix epoch in seconds.",
                 StartTime(), families);
  return families;
}

}  // namespace idempotency
