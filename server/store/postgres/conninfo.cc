#include "server/store/postgres/conninfo.h"

#include <libpq-fe.h>

#include <array>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"

namespace idempotency {
namespace {

using Parameters = std::map<std::string, std::string>;

absl::StatusOr<Parameters> ParseUri(const std::string& uri) {
  // The message is dropped: it may repeat the URI.
  char* message = nullptr;
  const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> parsed(
      PQconninfoParse(uri.c_str(), &message), &PQconninfoFree);
  if (message != nullptr) PQfreemem(message);
  if (parsed == nullptr) {
    return absl::InvalidArgumentError(
        "the database address is no libpq URI or connection string");
  }
  Parameters parameters;
  for (const PQconninfoOption* option = parsed.get();
       option->keyword != nullptr; ++option) {
    if (option->val != nullptr) parameters[option->keyword] = option->val;
  }
  return parameters;
}

// A value between single quotes, as libpq reads it.
std::string Quoted(std::string_view value) {
  std::string quoted = "'";
  for (const char c : value) {
    if (c == '\'' || c == '\\') quoted.push_back('\\');
    quoted.push_back(c);
  }
  quoted.push_back('\'');
  return quoted;
}

// The start-up option `-c name=value`, in which blanks are escaped.
void AppendStartupOption(const SessionSetting& setting, std::string& options) {
  if (!options.empty()) options.push_back(' ');
  options.append("-c ").append(setting.name).push_back('=');
  for (const char c : setting.value) {
    if (c == ' ' || c == '\\') options.push_back('\\');
    options.push_back(c);
  }
}

// As current_setting() shows it: in seconds where they are whole.
std::string ShownMillis(std::chrono::milliseconds time) {
  const auto count = time.count();
  return count != 0 && count % 1000 == 0 ? std::to_string(count / 1000) + "s"
                                         : std::to_string(count) + "ms";
}

struct Phrase {
  std::string_view in_message;
  std::string_view cause;
};

// In the order of their certainty: a message about several addresses holds
// several of them.
constexpr std::array<Phrase, 24> kConnectCauses = {{
    {"certificate verify failed",
     "the database server's certificate is expired or not signed by a CA of "
     "sslrootcert"},
    {"does not match host name",
     "the database server's certificate is for another host name"},
    {"root certificate file", "the file of sslrootcert can't be read"},
    {"private key file", "the file of sslkey can't be used"},
    {"certificate file", "the file of sslcert can't be used"},
    {"does not support SSL",
     "the database server does not speak TLS, which sslmode asks for"},
    {"requires a valid client certificate",
     "the database server asks for a client certificate (sslcert, sslkey)"},
    {" alert ", "the database server refused the TLS handshake"},
    {"SSL error", "the TLS handshake failed"},
    {"unsupported startup parameter",
     "the address is a pooler's, which has to be said in the flags"},
    {"password authentication failed", "the password was refused"},
    {"no password supplied", "a password is required"},
    {"no pg_hba.conf entry", "pg_hba.conf does not let this client in"},
    {"authentication failed", "the authentication was refused"},
    {"session is read-only", "no writable primary among the addresses"},
    {"server is in hot standby", "no writable primary among the addresses"},
    {"too many clients", "the server has no connection left"},
    {"remaining connection slots", "the server has no connection left"},
    {"too many connections", "the server has no connection left"},
    {"starting up", "the server is starting up"},
    {"shutting down", "the server is shutting down"},
    {"does not exist", "the database or the role does not exist"},
    {"timeout expired", "no answer in time"},
    {"could not translate host name", "the host's name has no address"},
}};

}  // namespace

std::vector<SessionSetting> RequiredSettings(const ConnectionOptions& options) {
  return {
      {"lock_timeout", ShownMillis(options.lock_timeout)},
      {"statement_timeout", ShownMillis(options.statement_timeout)},
      {"idle_in_transaction_session_timeout", "10s"},
      // Each item of a batch is to be one descent of an index, whatever the
      // statistics said when the plan was made. Of the ways to a row only the
      // bitmap is left, which needs a key to look up: every other one may read
      // all of a table that was empty then.
      {"plan_cache_mode", "force_generic_plan"},
      {"enable_hashjoin", "off"},
      {"enable_mergejoin", "off"},
      {"enable_seqscan", "off"},
      {"enable_indexscan", "off"},
      {"enable_indexonlyscan", "off"},
      {"enable_bitmapscan", "on"},
      // A plan that has only ways that are off looks dear enough to compile.
      {"jit", "off"},
      // The statements are written for it: conflicts wait and look again.
      {"default_transaction_isolation", "read committed"},
      {"client_min_messages", "warning"},
      {"bytea_output", "hex"},
      {"TimeZone", "UTC"},
  };
}

absl::StatusOr<std::string> MakeConninfo(const ConnectionOptions& options) {
  absl::StatusOr<Parameters> parsed = ParseUri(options.uri);
  if (!parsed.ok()) return parsed.status();
  Parameters parameters = {
      // A host that vanished is noticed within ten to twenty seconds.
      {"keepalives_idle", "10"},
      {"keepalives_interval", "3"},
      {"keepalives_count", "3"},
      {"tcp_user_timeout", "10000"},
      {"connect_timeout", std::to_string(options.connect_timeout.count())},
      {"application_name", options.application_name},
  };
  for (auto& [name, value] : *parsed) parameters[name] = std::move(value);
  parameters["target_session_attrs"] = "read-write";
  parameters["client_encoding"] = "UTF8";
  if (!options.pooled) {
    for (const SessionSetting& setting : RequiredSettings(options)) {
      AppendStartupOption(setting, parameters["options"]);
    }
  }
  std::string conninfo;
  for (const auto& [name, value] : parameters) {
    if (!conninfo.empty()) conninfo.push_back(' ');
    conninfo.append(name).append("=").append(Quoted(value));
  }
  return conninfo;
}

std::string DescribeDatabase(const ConnectionOptions& options) {
  const absl::StatusOr<Parameters> parsed = ParseUri(options.uri);
  if (!parsed.ok()) return "(not a libpq URI or connection string)";
  std::string description;
  for (const char* const name : {"service", "host", "port", "dbname", "user"}) {
    const auto parameter = parsed->find(name);
    if (parameter == parsed->end()) continue;
    if (!description.empty()) description.push_back(' ');
    description.append(name).append("=").append(parameter->second);
  }
  return description.empty() ? "libpq's defaults" : description;
}

std::string_view ConnectFailureCause(std::string_view libpq_message) {
  for (const Phrase& phrase : kConnectCauses) {
    if (libpq_message.find(phrase.in_message) != std::string_view::npos) {
      return phrase.cause;
    }
  }
  return "no connection could be made";
}

}  // namespace idempotency
