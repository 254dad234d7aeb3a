// What a connection asks for, and what it never shows.
#include "server/store/postgres/conninfo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <libpq-fe.h>

#include <map>
#include <memory>
#include <string>

namespace idempotency {
namespace {

using testing::HasSubstr;
using testing::Not;

// The connection string as libpq reads it.
std::map<std::string, std::string> Parsed(const ConnectionOptions& options) {
  const absl::StatusOr<std::string> conninfo = MakeConninfo(options);
  EXPECT_TRUE(conninfo.ok()) << conninfo.status();
  std::map<std::string, std::string> parameters;
  if (!conninfo.ok()) return parameters;
  const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> parsed(
      PQconninfoParse(conninfo->c_str(), nullptr), &PQconninfoFree);
  EXPECT_NE(parsed, nullptr);
  for (const PQconninfoOption* one = parsed.get();
       one != nullptr && one->keyword != nullptr; ++one) {
    if (one->val != nullptr) parameters[one->keyword] = one->val;
  }
  return parameters;
}

TEST(Conninfo, KeepsWhatTheUriSays) {
  const auto parameters =
      Parsed({.uri = "postgresql://app:it%27s%5C%20me@db1:5433,db2:5434/records"
                     "?sslmode=verify-full"});
  EXPECT_EQ(parameters.at("user"), "app");
  EXPECT_EQ(parameters.at("password"), "it's\\ me");
  EXPECT_EQ(parameters.at("host"), "db1,db2");
  EXPECT_EQ(parameters.at("port"), "5433,5434");
  EXPECT_EQ(parameters.at("dbname"), "records");
  EXPECT_EQ(parameters.at("sslmode"), "verify-full");
}

TEST(Conninfo, AsksForAWritablePrimaryWhateverTheUriSays) {
  const auto parameters =
      Parsed({.uri = "postgresql://db/records?target_session_attrs=any"});
  EXPECT_EQ(parameters.at("target_session_attrs"), "read-write");
}

TEST(Conninfo, BoundsTheConnectUnlessTheUriDoes) {
  EXPECT_EQ(Parsed({.uri = "postgresql://db/records"}).at("connect_timeout"),
            "3");
  EXPECT_EQ(Parsed({.uri = "postgresql://db/records?connect_timeout=7"})
                .at("connect_timeout"),
            "7");
}

TEST(Conninfo, PutsTheSettingsAfterThoseOfTheUri) {
  const std::string options =
      Parsed({.uri = "postgresql://db/records?options=-c%20work_mem%3D8MB"})
          .at("options");
  EXPECT_THAT(options, testing::StartsWith("-c work_mem=8MB -c "));
  EXPECT_THAT(options, HasSubstr("-c lock_timeout=100ms"));
  EXPECT_THAT(options, HasSubstr("-c statement_timeout=5s"));
  EXPECT_THAT(options, HasSubstr("-c plan_cache_mode=force_generic_plan"));
  EXPECT_THAT(options,
              HasSubstr("-c default_transaction_isolation=read\\ committed"));
}

TEST(Conninfo, GivesAPoolerNoStartUpOptions) {
  const auto parameters =
      Parsed({.uri = "postgresql://pooler:6432/records", .pooled = true});
  EXPECT_EQ(parameters.count("options"), 0u);
  EXPECT_EQ(parameters.at("target_session_attrs"), "read-write");
}

TEST(Conninfo, RefusesAnAddressWithoutRepeatingIt) {
  for (const char* uri : {"postgresql://app:hunter2@host:port:x/db?sslmode",
                          "host=db password=hunter2 nonsense",
                          "postgresql://app:hunter2@db/records?unknown=1"}) {
    const absl::StatusOr<std::string> conninfo = MakeConninfo({.uri = uri});
    EXPECT_EQ(conninfo.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(conninfo.status().message()),
                Not(HasSubstr("hunter2")));
  }
}

TEST(ConnectFailure, IsOneOfAFewPhrases) {
  EXPECT_EQ(ConnectFailureCause(
                "connection to server at \"db\" (10.0.0.7), port 5432 failed: "
                "FATAL:  password authentication failed for user \"app\""),
            "the password was refused");
  EXPECT_EQ(ConnectFailureCause("FATAL:  sorry, too many clients already"),
            "the server has no connection left");
  EXPECT_EQ(ConnectFailureCause("root certificate file \"/ca.crt\" does not "
                                "exist"),
            "the file of sslrootcert can't be read");
  EXPECT_EQ(ConnectFailureCause("SSL error: tlsv1 alert unknown ca"),
            "the database server refused the TLS handshake");
  EXPECT_EQ(ConnectFailureCause("postgresql://app:hunter2@db: what?"),
            "no connection could be made");
}

}  // namespace
}  // namespace idempotency
