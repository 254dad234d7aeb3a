#include "server/flag_values.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace idempotency {
namespace {

constexpr char kPrefix[] = "IDEMPOTENCY_";

std::string EnvironmentName(const char* flag) {
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(flag));
}

void PrintWrapped(const std::string& text, std::size_t indent) {
  constexpr std::size_t kColumns = 80;
  const std::string margin(indent, ' ');
  std::string line = margin;
  for (const auto word : absl::StrSplit(text, ' ')) {
    if (line.size() > indent && line.size() + 1 + word.size() > kColumns) {
      std::cout << line << "\n";
      line = margin;
    }
    if (line.size() > indent) line += ' ';
    line.append(word.data(), word.size());
  }
  std::cout << line << "\n";
}

}  // namespace

absl::Status ReadEnvironment(FlagNames names) {
  for (const char* const name : names) {
    const std::string variable = EnvironmentName(name);
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr) continue;
    std::string error;
    if (!absl::FindCommandLineFlag(name)->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(variable, ": ", error.empty() ? "bad value" : error));
    }
  }
  return absl::OkStatus();
}

// absl::ParseCommandLine would end the process by itself, with status 1, where
// it does not like an argument.
absl::Status ReadArguments(FlagNames names, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto known = std::find_if(
        names.begin(), names.end(),
        [&](const char* flag) { return name == absl::StrCat("--", flag); });
    if (known == names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is not a flag; see --help"));
    }
    absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(*known);
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (flag->IsOfType<bool>()) {
      value = "true";
    } else if (++i < argc) {
      value = argv[i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, ": needs a value"));
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", error.empty() ? "bad value" : error));
    }
  }
  return absl::OkStatus();
}

void PrintManual(FlagNames names) {
  std::cout
      << "idempotency-server: asks and remembers, for a whole fleet, whether "
         "an operation\nmay be executed or has been done.\n\n"
         "  idempotency-server                    a private database, on "
         "127.0.0.1:50051\n"
         "  idempotency-server --database=URI --migrate\n"
         "  idempotency-server --database=URI --sweep_only\n\n"
         "Every flag can also be given in the environment: --data_dir as\n"
         "IDEMPOTENCY_DATA_DIR. A flag goes before the environment, and that "
         "before the\ndefault. Durations are written like 500ms, 30s, 10m, "
         "24h; booleans as --migrate\nor --migrate=false. SIGTERM drains and "
         "ends with status 0.\n\n";
  for (const char* const name : names) {
    const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
    const std::string value = flag->DefaultValue();
    std::cout << "  --" << name
              << "  (default: " << (value.empty() ? "empty" : value) << ")\n";
    PrintWrapped(flag->Help(), 6);
  }
}

}  // namespace idempotency
