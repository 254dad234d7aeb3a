#include "client/proxy/settings.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/proxy/rules.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

constexpr char kPrefix[] = "IDEMPOTENCY_PROXY_";

// Puts a value into its field; false if it cannot be one.
using Set = std::function<bool(const std::string&, ProxySettings&)>;

struct Flag {
  const char* name;
  const char* initial;
  const char* wanted;  // what a value may be
  const char* help;
  Set set;
};

Set Text(std::string ProxySettings::*field) {
  return [field](const std::string& value, ProxySettings& settings) {
    settings.*field = value;
    return true;
  };
}

Set TlsFile(std::string TlsOptions::*field) {
  return [field](const std::string& value, ProxySettings& settings) {
    settings.tls.*field = value;
    return true;
  };
}

Set Number(std::size_t ProxySettings::*field, std::uint64_t least,
           std::uint64_t most) {
  return [=](const std::string& value, ProxySettings& settings) {
    std::uint64_t number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < least || number > most) {
      return false;
    }
    settings.*field = static_cast<std::size_t>(number);
    return true;
  };
}

Set Duration(milliseconds ProxySettings::*field, milliseconds least) {
  return [=](const std::string& value, ProxySettings& settings) {
    absl::Duration duration;
    if (!absl::ParseDuration(value, &duration) ||
        duration < absl::FromChrono(least) || duration > absl::Hours(24)) {
      return false;
    }
    settings.*field = absl::ToChronoMilliseconds(duration);
    return true;
  };
}

Set Switch(bool ProxySettings::*field) {
  return [field](const std::string& value, ProxySettings& settings) {
    return absl::SimpleAtob(value, &(settings.*field));
  };
}

// In the order of the manual.
const std::vector<Flag>& Flags() {
  using S = ProxySettings;
  constexpr char kAddress[] = "host:port";
  constexpr char kDuration[] = "a duration from 1ms to 24h";
  constexpr char kPause[] = "a duration from 0 to 24h";
  static const auto* const kFlags = new std::vector<Flag>{
      {"listen", "", kAddress,
       "Address and port for HTTP callers. Empty: no HTTP. Plain HTTP: the "
       "sidecar is meant to stand beside its service, behind whatever ends "
       "TLS.",
       Text(&S::listen)},
      {"upstream", "", kAddress,
       "The HTTP service behind it, such as 127.0.0.1:8000.",
       Text(&S::upstream)},
      {"grpc_listen", "", kAddress,
       "Address and port for gRPC callers. Empty: no gRPC.",
       Text(&S::grpc_listen)},
      {"grpc_upstream", "", kAddress, "The gRPC service behind it.",
       Text(&S::grpc_upstream)},
      {"config", "", "a path",
       "The file that says which requests are guarded, and how; see below. It "
       "is read again when it changes, looked at each second and upon SIGHUP; "
       "while it is wrong, the rules stay as they were.",
       Text(&S::config)},
      {"coordinator", "127.0.0.1:50051", kAddress,
       "The coordinator, as a name of gRPC.", Text(&S::coordinator)},
      {"coordinator_tls", "false", "true or false",
       "Speak TLS to the coordinator, also without the next three.",
       Switch(&S::coordinator_tls)},
      {"coordinator_ca", "", "a path",
       "PEM file with the CAs that may have signed the coordinator's "
       "certificate; makes it TLS. Empty: those that the system trusts. This "
       "and the next two are read again when they change.",
       TlsFile(&TlsOptions::server_ca_file)},
      {"coordinator_certificate", "", "a path",
       "PEM file with the certificate that the coordinator is shown; with "
       "--coordinator_key.",
       TlsFile(&TlsOptions::certificate_file)},
      {"coordinator_key", "", "a path",
       "PEM file with its key, without passphrase.",
       TlsFile(&TlsOptions::key_file)},
      {"admin_listen", "", kAddress,
       "Address and port for /healthz and /metrics (Prometheus), plain HTTP "
       "without authentication. Empty: none.",
       Text(&S::admin_listen)},
      {"connections_max", "512", "a number from 1 to 10000",
       "HTTP connections at a time, of a thread each; whoever comes beyond is "
       "answered 503.",
       Number(&S::connections_max, 1, 10'000)},
      {"request_bytes_max", "8388608", "a number from 0 to 1073741824",
       "Longest body, in bytes, of an HTTP request with a key, which is held "
       "in memory; a longer one is answered 413. Requests without a key are "
       "not bounded.",
       Number(&S::request_bytes_max, 0, std::uint64_t{1} << 30)},
      {"connect_timeout", "5s", kDuration,
       "How long a connection to a service may take. Without one nothing has "
       "happened, and the key is given back.",
       Duration(&S::connect_timeout, milliseconds(1))},
      {"request_timeout", "30s", kDuration,
       "How long an HTTP caller may take for a head, and for the body of a "
       "request with a key; then 408.",
       Duration(&S::request_timeout, milliseconds(1))},
      {"idle_timeout", "60s", kDuration,
       "How long an HTTP connection is kept without a request.",
       Duration(&S::idle_timeout, milliseconds(1))},
      {"stream_timeout", "5m", kDuration,
       "How long an HTTP request without a key may stand still, either way. "
       "Those with a key have their route's timeout.",
       Duration(&S::stream_timeout, milliseconds(1))},
      {"drain_delay", "0", kPause,
       "After SIGTERM /healthz says 503 for so long before callers are "
       "refused.",
       Duration(&S::drain_delay, milliseconds(0))},
      {"drain_timeout", "10s", kPause,
       "After that delay, how long requests in hand may take. Those that are "
       "then cut are settled as unknown. Keep the sum below the orchestrator's "
       "grace period.",
       Duration(&S::drain_timeout, milliseconds(0))},
  };
  return *kFlags;
}

std::string VariableOf(const Flag& flag) {
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(flag.name));
}

absl::Status SetFlag(const Flag& flag, const std::string& source,
                     const std::string& value, ProxySettings& settings) {
  if (flag.set(value, settings)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": got '", value, "', want ", flag.wanted));
}

absl::Status ReadArguments(const std::vector<std::string>& arguments,
                           ProxySettings& settings) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    const Flag* known = nullptr;
    for (const Flag& flag : Flags()) {
      if (name == absl::StrCat("--", flag.name)) known = &flag;
    }
    if (known == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is not a flag; see --help"));
    }
    std::string value;
    if (equals != std::string::npos) {
      value = arguments[i].substr(equals + 1);
    } else if (name == "--coordinator_tls") {
      value = "true";
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, ": needs a value"));
    }
    absl::Status set = SetFlag(*known, name, value, settings);
    if (!set.ok()) return set;
  }
  return absl::OkStatus();
}

absl::Status CheckTogether(const ProxySettings& settings) {
  const auto wrong = [](const char* what) {
    return absl::InvalidArgumentError(what);
  };
  if (settings.listen.empty() && settings.grpc_listen.empty()) {
    return wrong("--listen or --grpc_listen is missing; see --help");
  }
  if (settings.listen.empty() != settings.upstream.empty()) {
    return wrong("--listen and --upstream come together");
  }
  if (settings.grpc_listen.empty() != settings.grpc_upstream.empty()) {
    return wrong("--grpc_listen and --grpc_upstream come together");
  }
  if (settings.config.empty()) {
    return wrong("--config is missing; see --help for an example");
  }
  if (settings.tls.certificate_file.empty() != settings.tls.key_file.empty()) {
    return wrong(
        "--coordinator_certificate and --coordinator_key come "
        "together");
  }
  return absl::OkStatus();
}

void AppendWrapped(const char* text, std::string& manual) {
  constexpr std::size_t kColumns = 80;
  const std::string margin = "      ";
  std::string line = margin;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (line.size() > margin.size() &&
        line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&manual, line, "\n");
      line = margin;
    }
    absl::StrAppend(&line, line.size() > margin.size() ? " " : "", word);
  }
  absl::StrAppend(&manual, line, "\n");
}

constexpr char kIntroduction[] =
    R"(idempotency-proxy: stands before a service in any language, and makes
each request with an idempotency key once.

  idempotency-proxy --config=rules.json \
    --listen=127.0.0.1:8080 --upstream=127.0.0.1:8000 \
    --grpc_listen=127.0.0.1:9080 --grpc_upstream=127.0.0.1:9000

Every flag can also be given in the environment: --listen as
IDEMPOTENCY_PROXY_LISTEN. A flag goes before the environment, and that before
the default. Durations are written like 500ms, 30s, 10m. SIGTERM drains and ends
with status 0.

)";

constexpr char kFileManual[] = R"(
The file:

)";

constexpr char kFieldsManual[] = R"(
Of HTTP routes the first that fits counts; of gRPC routes the most exact. What
no route names, and what has no key, goes through as it is. Fields of a route,
and what they are if left out:

  match        HTTP: "POST /payments", "POST,PUT /orders/*", "* /admin/**".
               * is any method that changes something, any one segment of a
               path; ** any rest. GET and HEAD are never guarded
  methods      gRPC: "/shop.Payments/Charge", "/shop.Payments/*", "/*"
  scope        whose keys these are; has to be there
  policy       the coordinator's policy (the scope's)
  owner        who this is, for people (nobody)
  required     a request without a key is refused (false)
  fail_open    without the coordinator the request goes to the service
               unguarded, as often as it comes; else it is answered 503,
               UNAVAILABLE (false)
  resolves     the service resolves what an earlier attempt left: it is asked,
               with Idempotency-Abandoned, also where the policy holds (false)
  wait         how long a repeated request waits for the first one's end (0s)
  lease        how long a crashed sidecar's claim holds (the policy's)
  timeout      how long the service may take; then the outcome is unknown
               (60s)
  claim_timeout
               how long the coordinator may take to grant the request (5s)

HTTP only:

  caller_header          who sends, such as "X-Tenant": one tenant's keys never
                         meet another's. To be set by something you trust. The
                         scope then has at most 56 characters, and no other
                         route's scope begins with it and a /
  key_header, replayed_header
                         instead of Idempotency-Key and Idempotent-Replayed
  leave_out_json_fields  members of a JSON body that a retry may change:
                         "sent_at" or a pointer, "/meta/sent_at"
  leave_out_query        query parameters that a retry may change
  count_headers          headers that must be the same in a retry
  count_content_type     whether the content type must be (true)
  record_headers, leave_out_headers
                         headers of the answer that are recorded although they
                         usually are not (Set-Cookie), and the reverse
  record_bytes_max       a longer answer is recorded without its body (1048576);
                         the coordinator's --body_bytes_max holds too
)";

}  // namespace

absl::StatusOr<ProxySettings> ReadSettings(
    const std::vector<std::string>& arguments,
    const std::function<std::optional<std::string>(const std::string&)>&
        environment) {
  ProxySettings settings;
  for (const Flag& flag : Flags()) {
    flag.set(flag.initial, settings);
    const std::string variable = VariableOf(flag);
    const std::optional<std::string> value = environment(variable);
    if (!value.has_value()) continue;
    absl::Status set = SetFlag(flag, variable, *value, settings);
    if (!set.ok()) return set;
  }
  absl::Status read = ReadArguments(arguments, settings);
  if (read.ok()) read = CheckTogether(settings);
  if (!read.ok()) return read;
  return settings;
}

std::string ProxyManual() {
  std::string manual = kIntroduction;
  for (const Flag& flag : Flags()) {
    absl::StrAppend(&manual, "  --", flag.name, "  (default: ",
                    *flag.initial == '\0' ? "empty" : flag.initial, ")\n");
    AppendWrapped(flag.help, manual);
  }
  return absl::StrCat(manual, kFileManual, kRulesExample, kFieldsManual);
}

}  // namespace idempotency
