// idempotency-demo: makes one call and prints what was decided in one line,
// for scripts and for trying things out by hand.
//
// Exit status: 0 when the call was answered, whatever the outcome; 1 when it
// ended with an error; 2 for a command line that makes no sense.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/request_hash.h"

namespace idempotency {
namespace {

constexpr char kUsage[] =
    R"(usage: idempotency-demo COMMAND [--flag value]...
  COMMAND is claim, finalize, lookup, release or ready

every command
  --target HOST:PORT   the coordinator (127.0.0.1:50051)
  --scope S --key K    the record
  --token UUID         the claim token (claim draws one if there is none)
  --timeout 5s         for the call
  --tls_ca FILE        TLS, with a server certificate of these CAs (PEM)
  --tls_certificate FILE  --tls_key FILE
                       TLS, showing this certificate (PEM)
claim
  --hash_of TEXT       the request, whose request hash is sent
  --policy P  --lease 2s  --wait 5s  --owner NAME  --checkpoint TEXT
  --resolve_in_doubt   take over what a policy holds
  --renew N            renew the grant with this fencing token
  --patience 10s       ask again while InProgress, as often as told
finalize
  --status 201  --body TEXT  --content_type application/json
release
  --disposition not_executed|outcome_unknown|never_executed
ready
  --patience 30s       wait until the coordinator answers
)";

// A command line that makes no sense.
struct UsageError {
  std::string what;
};

class Flags {
 public:
  Flags(int argc, char** argv) {
    for (int i = 2; i < argc; ++i) {
      std::string name = argv[i];
      if (name.rfind("--", 0) != 0) throw UsageError{"not a flag: " + name};
      name = absl::StrReplaceAll(name.substr(2), {{"-", "_"}});
      std::string value = "true";
      if (const auto equals = name.find('='); equals != std::string::npos) {
        value = std::string(argv[i]).substr(2 + equals + 1);
        name.resize(equals);
      } else if (name != "resolve_in_doubt") {
        if (++i == argc) throw UsageError{"no value for --" + name};
        value = argv[i];
      }
      values_[name] = std::move(value);
    }
  }

  std::string Text(const std::string& name, const std::string& otherwise = "") {
    const auto found = values_.find(name);
    if (found == values_.end()) return otherwise;
    std::string value = std::move(found->second);
    values_.erase(found);
    return value;
  }

  std::optional<absl::Duration> Duration(const std::string& name) {
    const std::string text = Text(name);
    if (text.empty()) return std::nullopt;
    absl::Duration value;
    if (!absl::ParseDuration(text, &value)) {
      throw UsageError{"--" + name + ": a duration such as 2s, 500ms or 1m"};
    }
    return value;
  }

  std::int64_t Number(const std::string& name, std::int64_t otherwise) {
    const std::string text = Text(name);
    std::int64_t value = otherwise;
    if (!text.empty() && !absl::SimpleAtoi(text, &value)) {
      throw UsageError{"--" + name + ": a whole number"};
    }
    return value;
  }

  // To be called once every flag was asked for.
  void RefuseTheRest() const {
    if (!values_.empty()) {
      throw UsageError{"unknown flag --" + values_.begin()->first};
    }
  }

 private:
  std::map<std::string, std::string> values_;
};

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  const std::int64_t nanos = absl::ToInt64Nanoseconds(duration);
  proto.set_seconds(nanos / 1'000'000'000);
  proto.set_nanos(static_cast<std::int32_t>(nanos % 1'000'000'000));
  return proto;
}

absl::Duration FromProto(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

std::string Shown(const google::protobuf::Duration& proto) {
  return absl::FormatDuration(
      absl::Trunc(FromProto(proto), absl::Milliseconds(1)));
}

// On one line; quotes inside stay as they are, since most bodies are JSON.
std::string Quoted(const std::string& text) {
  constexpr std::size_t kShownMax = 200;
  const std::string escaped =
      absl::StrReplaceAll(absl::Utf8SafeCEscape(text.substr(0, kShownMax)),
                          {{"\\\"", "\""}, {"\\'", "'"}});
  return absl::StrCat("'", escaped, text.size() > kShownMax ? "'..." : "'");
}

std::string Shown(const v1::Response& response) {
  std::string line = absl::StrCat("status=", response.status_code());
  for (const v1::Header& header : response.headers()) {
    absl::StrAppend(&line, " ", header.name(), "=", Quoted(header.value()));
  }
  absl::StrAppend(&line, response.body_omitted()
                             ? " body_omitted=true"
                             : " body=" + Quoted(response.body()));
  return line;
}

std::string Shown(const v1::Abandoned& abandoned) {
  std::string line = absl::StrCat(
      "abandoned_attempt=", abandoned.attempt(),
      " abandoned_reason=", v1::Abandoned::Reason_Name(abandoned.reason()),
      " abandoned_checkpoint=", Quoted(abandoned.checkpoint()));
  if (!abandoned.owner().empty()) {
    absl::StrAppend(&line, " abandoned_owner=", Quoted(abandoned.owner()));
  }
  return line;
}

std::string Shown(const v1::Claimed& claimed, const std::string& token) {
  std::string line =
      absl::StrCat("Claimed attempt=", claimed.attempt(),
                   " fencing_token=", claimed.fencing_token(),
                   " lease=", Shown(claimed.lease()), " claim_token=", token,
                   " downstream_key=", claimed.downstream_key());
  if (claimed.has_abandoned()) {
    absl::StrAppend(&line, " ", Shown(claimed.abandoned()));
  }
  return line;
}

std::string Shown(const v1::ClaimResponse& response, const std::string& token) {
  switch (response.outcome_case()) {
    case v1::ClaimResponse::kClaimed:
      return Shown(response.claimed(), token);
    case v1::ClaimResponse::kReplay:
      return absl::StrCat("Replay ", Shown(response.replay().response()));
    case v1::ClaimResponse::kInProgress:
      return absl::StrCat("InProgress retry_after=",
                          Shown(response.in_progress().retry_after()),
                          " attempt=", response.in_progress().attempt(),
                          " owner=", Quoted(response.in_progress().owner()));
    case v1::ClaimResponse::kMismatch:
      return "Mismatch";
    case v1::ClaimResponse::kInDoubt:
      return absl::StrCat("InDoubt ", Shown(response.in_doubt().abandoned()));
    case v1::ClaimResponse::OUTCOME_NOT_SET:
      break;
  }
  return "?";
}

void Print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int PrintError(const absl::Status& status) {
  Print(absl::StrCat(absl::StatusCodeToString(status.code()), " ",
                     ErrorReasonOf(status), ": ", status.message()));
  return 1;
}

void Sleep(absl::Duration duration) {
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(duration));
}

v1::ClaimRequest ClaimRequestFrom(Flags& flags) {
  v1::ClaimRequest request;
  request.set_scope(flags.Text("scope"));
  request.set_key(flags.Text("key"));
  request.set_request_hash(RequestHashOfParts({flags.Text("hash_of")}));
  request.set_claim_token(flags.Text("token"));
  request.set_policy(flags.Text("policy"));
  request.set_owner(flags.Text("owner"));
  if (const auto lease = flags.Duration("lease")) {
    *request.mutable_lease() = ToProto(*lease);
  }
  if (const auto wait = flags.Duration("wait")) {
    *request.mutable_wait() = ToProto(*wait);
  }
  if (std::string checkpoint = flags.Text("checkpoint"); !checkpoint.empty()) {
    request.set_checkpoint(std::move(checkpoint));
  }
  request.set_resolve_in_doubt(flags.Text("resolve_in_doubt") == "true");
  request.set_renew_fencing_token(flags.Number("renew", 0));
  return request;
}

int Claim(Client& client, Flags& flags, const CallOptions& options) {
  v1::ClaimRequest request = ClaimRequestFrom(flags);
  const absl::Duration patience =
      flags.Duration("patience").value_or(absl::ZeroDuration());
  flags.RefuseTheRest();

  const absl::Time patient_until = absl::Now() + patience;
  auto response = client.Claim(request, options);
  while (response.ok() && response->has_in_progress() &&
         absl::Now() < patient_until) {
    Sleep(FromProto(response->in_progress().retry_after()));
    response = client.Claim(request, options);
  }
  if (!response.ok()) return PrintError(response.status());
  Print(Shown(*response, request.claim_token()));
  return 0;
}

int Finalize(Client& client, Flags& flags, const CallOptions& options) {
  v1::FinalizeRequest request;
  request.set_scope(flags.Text("scope"));
  request.set_key(flags.Text("key"));
  request.set_claim_token(flags.Text("token"));
  v1::Response& sent = *request.mutable_response();
  sent.set_status_code(static_cast<std::int32_t>(flags.Number("status", 200)));
  v1::Header& content_type = *sent.add_headers();
  content_type.set_name("content-type");
  content_type.set_value(flags.Text("content_type", "application/json"));
  sent.set_body(flags.Text("body"));
  flags.RefuseTheRest();

  const auto response = client.Finalize(request, options);
  if (!response.ok()) return PrintError(response.status());
  Print(v1::FinalizeResponse::Result_Name(response->result()));
  return 0;
}

int Lookup(Client& client, Flags& flags, const CallOptions& options) {
  v1::LookupRequest request;
  request.set_scope(flags.Text("scope"));
  request.set_key(flags.Text("key"));
  flags.RefuseTheRest();

  const auto response = client.Lookup(request, options);
  if (!response.ok()) return PrintError(response.status());
  const v1::Record& record = response->record();
  std::string line = absl::StrCat(
      v1::Record::State_Name(record.state()), " attempt=", record.attempt(),
      " fencing_token=", record.fencing_token(), " policy=", record.policy(),
      " conflicts=", record.conflict_count(),
      " downstream_key=", record.downstream_key());
  if (!record.owner().empty()) {
    absl::StrAppend(&line, " owner=", Quoted(record.owner()));
  }
  if (record.has_abandoned()) {
    absl::StrAppend(&line, " ", Shown(record.abandoned()));
  }
  if (record.has_response()) {
    absl::StrAppend(&line, " ", Shown(record.response()));
  }
  Print(line);
  return 0;
}

int Release(Client& client, Flags& flags, const CallOptions& options) {
  v1::ReleaseRequest request;
  request.set_scope(flags.Text("scope"));
  request.set_key(flags.Text("key"));
  request.set_claim_token(flags.Text("token"));
  const std::string name = absl::StrCat(
      "DISPOSITION_",
      absl::AsciiStrToUpper(flags.Text("disposition", "not_executed")));
  flags.RefuseTheRest();
  v1::ReleaseRequest::Disposition disposition;
  if (!v1::ReleaseRequest::Disposition_Parse(name, &disposition)) {
    throw UsageError{"--disposition: " + name};
  }
  request.set_disposition(disposition);

  const auto response = client.Release(request, options);
  if (!response.ok()) return PrintError(response.status());
  Print(
      absl::StrCat("Release released=", response->released() ? "true" : "false",
                   " state=", v1::Record::State_Name(response->state())));
  return 0;
}

// Ready: a record that cannot exist is reported as missing, which only a
// server whose database answers can know.
int Ready(Client& client, Flags& flags) {
  const absl::Time until =
      absl::Now() + flags.Duration("patience").value_or(absl::ZeroDuration());
  flags.RefuseTheRest();
  v1::LookupRequest request;
  request.set_scope("demo/ready");
  request.set_key(NewClaimToken());
  for (;;) {
    const auto response =
        client.Lookup(request, {.timeout = std::chrono::seconds(1)});
    if (response.status().code() == absl::StatusCode::kNotFound) {
      Print("Ready");
      return 0;
    }
    if (absl::Now() >= until) return PrintError(response.status());
    Sleep(absl::Milliseconds(100));
  }
}

// Null where no flag asks for TLS.
std::shared_ptr<TlsFiles> TlsFrom(Flags& flags) {
  const TlsOptions options = {.server_ca_file = flags.Text("tls_ca"),
                              .certificate_file = flags.Text("tls_certificate"),
                              .key_file = flags.Text("tls_key")};
  if (options.server_ca_file.empty() && options.certificate_file.empty() &&
      options.key_file.empty()) {
    return nullptr;
  }
  auto files = TlsFiles::Load(options);
  if (!files.ok()) {
    throw UsageError{absl::StrCat("TLS: ", files.status().message())};
  }
  return *std::move(files);
}

int Run(int argc, char** argv) {
  if (argc < 2) throw UsageError{"no command"};
  const std::string command = argv[1];
  if (command == "--help" || command == "-h") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  Flags flags(argc, argv);
  ClientOptions client_options;
  client_options.tls = TlsFrom(flags);
  const auto client =
      Client::Connect(flags.Text("target", "127.0.0.1:50051"), client_options);
  CallOptions options;
  if (const auto timeout = flags.Duration("timeout")) {
    options.timeout = absl::ToChronoMilliseconds(*timeout);
  }
  if (command == "claim") return Claim(*client, flags, options);
  if (command == "finalize") return Finalize(*client, flags, options);
  if (command == "lookup") return Lookup(*client, flags, options);
  if (command == "release") return Release(*client, flags, options);
  if (command == "ready") return Ready(*client, flags);
  throw UsageError{"unknown command " + command};
}

}  // namespace
}  // namespace idempotency

int main(int argc, char** argv) {
  try {
    return idempotency::Run(argc, argv);
  } catch (const idempotency::UsageError& error) {
    std::fprintf(stderr, "idempotency-demo: %s\n\n%s", error.what.c_str(),
                 idempotency::kUsage);
    return 2;
  }
}
